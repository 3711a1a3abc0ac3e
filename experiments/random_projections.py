"""How many dimensions does a single vector need on a real collection before BM25's ranking survives?

Figures 2 and 3 of Luan et al., TACL 2021, on any collection, beside the exact laws of `theory`:
- Figure 2: the k at which explicit random projections order 95% of the pairs (best document, any other) of
  a margin bin correctly, beside the exact k*, Lemma 1, and the line 1.3528/h(ε) that the slope should be.
- Figure 3a: the 10th, 100th and 1000th smallest margins by document length.
- Figure 3b: the k for recall@r by document length, by explicit projections on the paper's grid of 40 values
  of k, and by the exact law, with the seconds of both at equal precision.
- how far each published bound overshoots, and what the place of the idf (query, both, document) does.

    python experiments/random_projections.py --collection pydocs
    python experiments/random_projections.py --collection path/to/scifact --matrices 8
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from studies.shared_settings import Ensemble, Tracker, Weighting

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which collection is projected, and how finely it is measured."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    split: str = "test"
    """whose queries"""
    queries: int = 100
    """how many of them, drawn at random"""
    weightings: list[Weighting] = field(default_factory=lambda: ["bm25", "tfidf", "boolean"])
    """of bm25, tfidf, boolean; the first is the one of Figures 3a and 3b"""
    beta: float = 0.05
    """error rate that the dimension must reach"""
    rank: int = 10
    """r of recall@r in Figure 3b"""
    length_bins: int = 8
    """document-length bins, equally full"""
    margin_bins: int = 20
    """bins of the margin in Figure 2, geometric"""
    ensembles: list[Ensemble] = field(default_factory=lambda: ["rademacher", "gaussian"])
    """of explicit matrices in Figure 2 (the paper's is rademacher); 3b uses gaussian if there"""
    matrices: int = 4
    """explicit matrices per ensemble and weighting"""
    samples: int = 64
    """Gaussian vectors per query for the exact law"""
    grid: tuple[int, int, int] = (32, 9472, 40)
    """smallest and largest k, and number of values, of the explicit grid (the paper's by default)"""
    bound_queries: int = 20
    """queries on which the published bounds are compared with the exact law"""
    seed: int = 0
    """of everything random"""
    output: Path = Path("results/random_projections")
    """folder of results.json, report.html and the PNG files"""
    tracker: Tracker = "none"
    """none, or wandb (offline without a key) for the numbers and figures besides"""

    def __post_init__(self) -> None:
        for name in ("queries", "rank", "length_bins", "margin_bins", "matrices", "bound_queries"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} = {getattr(self, name)}; allowed: at least 1")
        if not 0 < self.beta < 0.5:
            raise SystemExit(f"beta = {self.beta}; allowed: in (0, 0.5)")
        if self.samples < 2:
            raise SystemExit(f"samples = {self.samples}; allowed: at least 2, for a standard error")
        if not (1 <= self.grid[0] < self.grid[1] and self.grid[2] >= 2):
            raise SystemExit(f"grid = {self.grid}; allowed: 1 ≤ smallest < largest k, at least 2 values")
        if not self.weightings or not self.ensembles:
            raise SystemExit("weightings and ensembles must each name at least one")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, (__doc__ or "").partition("\n\n")[0])

import numpy as np
from rich.progress import Progress
from scipy.special import ndtri
from studies.lexical_vectors import PLACEMENTS, Counts, open_counts
from studies.pages import finite, print_sections, steps, track, write_page
from studies.projection_report import MARGIN_RANKS, Rows, describe, draw, slope_rows
from studies.projection_runs import (
    Explicit,
    Problem,
    exact_thresholds,
    k_grid,
    length_groups,
    make_problem,
    margin_rows,
    mean_required_dimension,
    run_matrices,
    stable_crossing,
)

from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar
from theory.projections import distortion, required_dimension
from theory.recall import recall_failure, required_dimension_recall, required_dimension_recall_exact

BOUND_RANKS = (1, 10, 100)
# Pairs of one query share its best document and fail together.
FEWEST_PAIRS, FEWEST_QUERIES = 200, 20


def main(settings: Settings) -> dict[str, Any]:
    """Measure, print, draw, write; returns what results.json holds."""
    started = time.perf_counter()
    collection, counts = open_counts(settings.collection, settings.split, settings.queries, settings.seed)
    groups = length_groups(counts.lengths, min(settings.length_bins, len(counts.lengths)))
    grid = k_grid(*settings.grid)
    figure2: dict[str, Rows] = {}
    slopes: Rows = []
    with progress_bar() as progress:
        for number, weighting in enumerate(settings.weightings):
            problem = make_problem(counts, weighting, "query", groups)
            if number == 0:
                require_competitors(problem, settings.rank)
            edges, bins, margins = margin_bins(problem, settings)
            runs = {
                ensemble: run_matrices(
                    problem,
                    ensemble,
                    grid,
                    settings.matrices,
                    bins,
                    settings.rank,
                    settings.seed,
                    steps(progress, f"{weighting}: {ensemble} matrices", settings.matrices),
                )
                for ensemble in settings.ensembles
            }
            figure2[weighting] = pair_rows(margins, bins, edges, grid, runs, settings)
            slopes += slope_rows(weighting, figure2[weighting])
            if number == 0:
                lengths = [counts.lengths[rows].mean() for rows in groups]
                figure3a = margin_rows(problem, lengths, MARGIN_RANKS)
                figure3b, timing = recall_rows(problem, lengths, grid, runs, settings, progress)
                bounds = bound_rows(problem, settings, progress)
        placements = placement_rows(counts, groups[-1], settings, progress)
    results: dict[str, Any] = {
        "collection": collection.name,
        "fingerprint": collection.fingerprint,
        "documents": len(counts.lengths),
        "vocabulary": counts.documents.shape[1],
        "queries": len(counts.query_ids),
        "figure2": figure2,
        "slopes": slopes,
        "figure3a": figure3a,
        "figure3b": figure3b,
        "timing": timing,
        "bounds": bounds,
        "idf": placements,
        "settings": {key: str(value) for key, value in asdict(settings).items()},
        "seconds": time.perf_counter() - started,
    }
    figures = draw(results, settings.beta, settings.rank)
    sections = describe(results, settings.beta, settings.rank)
    print_sections(sections)
    write_json(settings.output / "results.json", results)
    title = f"Random projections of {collection.name}"
    summary = (
        f"{results['documents']:,} documents, {results['vocabulary']:,} terms, {results['queries']} queries "
        f"of split {settings.split}; {results['seconds']:.0f} s."
    )
    page = write_page(settings.output, title, summary, sections, figures, results["settings"])
    numbers = {f"slope/{row['vectors']}/{row['measured by']}": row["k · h(ε)"] for row in slopes}
    numbers |= {"speed-up at equal precision": timing["ratio, nested grid"]}
    images = [settings.output / f"{name}.png" for name in figures]
    run = f"random-projections-{collection.name}"
    track(settings.tracker, run, results["settings"], numbers, images, settings.output)
    print(f"\n{page}")
    return results


def require_competitors(problem: Problem, rank: int) -> None:
    """Recall@r needs r documents below the best one for some query; said before hours are spent."""
    most = max(len(problem.competitors(-1, query)[1]) for query in range(problem.queries.shape[0]))
    if rank > most:
        raise SystemExit(f"rank = {rank}; allowed: at most {most}, the most documents below a query's best")


def margin_bins(problem: Problem, settings: Settings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(edges, bin of each (document, query) or -1, margins [n, m]), bins where k* lies on the grid of k."""
    z2 = ndtri(settings.beta) ** 2
    edges = np.sqrt(z2 / (z2 + np.geomspace(settings.grid[1], settings.grid[0], settings.margin_bins + 1)))
    margins = np.full(problem.scores.shape, np.nan)
    for query in range(problem.queries.shape[0]):
        _, below, values = problem.margins(len(problem.groups) - 1, query)
        margins[below, query] = values
    bins = np.digitize(margins, edges) - 1
    bins[np.isnan(margins) | (bins >= settings.margin_bins)] = -1
    return edges, bins, margins


def pair_rows(
    margins: np.ndarray,
    bins: np.ndarray,
    edges: np.ndarray,
    grid: np.ndarray,
    runs: dict[Ensemble, Explicit],
    settings: Settings,
) -> Rows:
    """Figure 2: one row per margin bin with enough pairs."""
    rows: Rows = []
    rng = np.random.default_rng(settings.seed)
    for number in range(len(edges) - 1):
        members = bins == number
        inside, queries = margins[members], int(members.any(axis=0).sum())
        if len(inside) < FEWEST_PAIRS or queries < FEWEST_QUERIES:
            continue
        sample = rng.choice(inside, size=min(2000, len(inside)), replace=False)
        middle = float(np.exp(np.log(inside).mean()))
        row: dict[str, Any] = {
            "margin": middle,
            "1/h(ε)": float(1 / distortion(middle)),
            "pairs": len(inside),
            "queries": queries,
            "exact k*": mean_required_dimension(sample, settings.beta),
            "Lemma 1": required_dimension(middle, settings.beta, "lemma1"),
        }
        for ensemble, run in runs.items():
            failure = run.wrong[:, number] / (len(inside) * settings.matrices)
            row[f"{ensemble}, grid"], row[ensemble] = stable_crossing(grid, failure, settings.beta)
        rows.append(row)
    return rows


def recall_rows(
    problem: Problem,
    lengths: list[float],
    grid: np.ndarray,
    runs: dict[Ensemble, Explicit],
    settings: Settings,
    progress: Progress,
) -> tuple[Rows, dict[str, Any]]:
    """Figure 3b by both ways, and what each costs.

    Equal precision means: the same standard error of the mean failure at k*, averaged over groups. For the
    exact law that error is measured. For an explicit matrix it is √(β(1−β)/queries), as if queries failed
    independently of each other; where they do not, a matrix is worth less. The deviations of the measured
    curve from the exact one, in those variances, say how true that is (1: exactly). Seconds are processor
    seconds, in which a busy neighbour does not show.
    """
    step = steps(progress, "exact law", problem.queries.shape[0])
    start = time.process_time()
    thresholds = exact_thresholds(problem, [settings.rank], settings.samples, settings.seed, step)[
        settings.rank
    ]
    curves = [recall_failure(grid, group)[0] if len(group) else None for group in thresholds]
    seconds = time.process_time() - start
    run = runs["gaussian"] if "gaussian" in runs else next(iter(runs.values()))
    failure = run.lost.mean(axis=0)
    rows, needed, deviations = [], [], []
    for group, (length, found, curve) in enumerate(zip(lengths, thresholds, curves, strict=True)):
        if curve is None:
            continue
        k, error = required_dimension_recall_exact(found, settings.beta)
        crossing = stable_crossing(grid, failure[:, group], settings.beta)
        last = group == len(lengths) - 1
        rows.append(
            {
                "documents": "all" if last else f"{length:.0f} terms",
                "mean length": length,
                "queries": len(found),
                "exact k": k,
                "±": finite(error),
                "explicit, grid": crossing[0],
                "explicit": crossing[1],
            }
        )
        variance = settings.beta * (1 - settings.beta) / len(found)
        precision = recall_failure(k, found)[1]
        needed += [variance / precision**2] if precision > 0 else []
        # Over the k of the grid where something happens: how far explicit failures lie from the exact curve.
        variances = curve * (1 - curve) / len(found) / settings.matrices
        inner = (curve > 0.01) & (curve < 0.99)
        deviations += list((failure[:, group] - curve)[inner] ** 2 / variances[inner])
    matrices = float(np.mean(needed)) if needed else 0.0
    nested = (run.projecting + run.counting) / settings.matrices
    fresh = run.projecting / settings.matrices * grid.sum() / grid[-1] + run.counting / settings.matrices
    timing = {
        "values of k": len(grid),
        "exact law, seconds": seconds,
        "explicit grid, seconds per matrix (nested in k)": nested,
        "explicit grid, seconds per matrix (fresh for every k, from seconds per row)": fresh,
        "matrices for equal precision": matrices,
        "ratio, nested grid": matrices * nested / seconds,
        "ratio, fresh matrices": matrices * fresh / seconds,
        "mean squared deviation of explicit from exact, in variances": (
            float(np.mean(deviations)) if deviations else None
        ),
    }
    return rows, timing


def bound_rows(problem: Problem, settings: Settings, progress: Progress) -> Rows:
    """k for recall@r over all documents by each bound over the exact k: medians over single queries."""
    few = Problem(
        problem.documents,
        problem.queries[: settings.bound_queries],
        problem.squares,
        problem.scores[:, : settings.bound_queries],
        problem.groups[-1:],
    )
    ranks = [rank for rank in BOUND_RANKS if rank < len(problem.groups[-1])]
    step = steps(progress, "bounds", 2 * few.queries.shape[0])
    thresholds = exact_thresholds(few, ranks, 6 * settings.samples, settings.seed + 1, step)
    methods = {
        "Eq. 3": "eq3",
        "sum of Lemma 1": "lemma1_sum",
        "t-union": "t_union",
        "Markov-union": "markov_union",
    }
    ratios: dict[int, list[list[float]]] = {rank: [] for rank in ranks}
    usable = 0
    for query in range(few.queries.shape[0]):
        margins = few.margins(0, query)[2]
        if len(margins) >= max(ranks):
            for rank in ranks:
                exact, _ = required_dimension_recall_exact(thresholds[rank][0][usable], settings.beta)
                needed = [
                    required_dimension_recall(margins, rank, settings.beta, m) for m in methods.values()
                ]
                ratios[rank].append([exact, *(k / exact for k in needed)])
            usable += 1
        step()
    return [
        {"r": rank, "queries": usable, "exact k": float(median[0])}
        | {f"{name} / exact": float(value) for name, value in zip(methods, median[1:], strict=True)}
        for rank in ranks
        if usable
        for median in [np.median(ratios[rank], axis=0)]
    ]


def placement_rows(counts: Counts, everything: np.ndarray, settings: Settings, progress: Progress) -> Rows:
    """k for recall@r over all documents by where the idf stands; the scores are the same in all of a kind."""
    cases = [(w, p) for w in settings.weightings for p in PLACEMENTS if w != "boolean" or p == "query"]
    step = steps(progress, "place of the idf", len(cases) * len(counts.query_ids))
    rows: Rows = []
    for weighting, placement in cases:
        problem = make_problem(counts, weighting, placement, [everything])
        found = exact_thresholds(problem, [settings.rank], settings.samples, settings.seed, step)
        thresholds = found[settings.rank][0]
        if not len(thresholds):  # under this weighting every query's documents tie
            continue
        k, error = required_dimension_recall_exact(thresholds, settings.beta)
        ranked = [
            np.partition(m, settings.rank - 1)[settings.rank - 1]
            for m in (problem.margins(0, q)[2] for q in range(len(counts.query_ids)))
            if len(m) >= settings.rank
        ]
        place = "no idf" if weighting == "boolean" else placement
        rows.append(
            {
                "vectors": weighting,
                "idf in": place,
                "exact k": k,
                "±": finite(error),
                f"median margin of rank {settings.rank}": float(np.median(ranked)),
            }
        )
    return rows


if __name__ == "__main__":
    main(Settings(**given))
