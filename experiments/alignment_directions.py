"""Does it matter which side chooses? MVDR q→d, MVDR q←d and GR rerank the same candidates (Table 5).

Wu et al. 2024 (arXiv:2404.00684), §6.3 and §7.1: a T5-ColBERT with its own alignment, the same vectors with
each document token aligned to its best query token, and a T5-SEAL, trained from the same T5 on the same
queries. GR's rel is the paper's raw logit, the log probability it is trained for, or the centred logit. The
paper leaves open how spans score a document: here a document is all its windows of `span` tokens, the same
for every query, and has the rel of the best or the mean over them. Dev queries choose between the variants
of a system; no test query does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, get_args

from studies.shared_settings import PairSettings

from paradigms.io.settings import command_line


@dataclass
class Settings(PairSettings):
    """What is trained on what, and which queries are measured."""

    dev_queries: int = 50
    """dev queries that choose the Z of q←d and the scorer and pooling of GR, drawn at random; 0: all"""

    experiment = "alignment-directions"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
from studies.pages import Section
from studies.trained_pairs import (
    Bench,
    Measured,
    Rows,
    measure_pairs,
    publish,
    shown,
    some_queries,
    trained_on,
)

from paradigms import Generative, Paradigm
from paradigms.data import Corpus, Judgements, Run, Split
from paradigms.evaluate import Interval, holm, paired_test, per_query, seeds_interval
from paradigms.evaluate.report import PALETTE
from paradigms.generative.forced import sequence_scores
from paradigms.generative.outputs import Scorer
from paradigms.index import ExactIndex
from paradigms.io.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("R@1", "R@10", "RR@10")
PRIMARY = "RR@10"  # what is tested, and what chooses on dev queries
ALPHA = 0.05
CANDIDATES = "BM25"  # the order of the candidates, with the relevant that BM25 missed last
CHANCE = "random order"
FORWARD = "MVDR (q→d)"
BACKWARD = {"MVDR (q←d), Z = 1": "one", "MVDR (q←d), Z = M": "document_tokens"}
SCORERS: tuple[Scorer, ...] = get_args(Scorer)
POOLINGS: dict[str, Callable[[list[float]], float]] = {"best": max, "mean": fmean}
# R@1, R@10 and MRR@10 in percent, on NQ320K and on MS MARCO: Table 5.
PAPER = {
    "MVDR (q→d)": ((61.3, 91.9, 72.0), (46.5, 84.5, 58.9)),
    "MVDR (q←d)": ((53.2, 90.1, 65.7), (34.8, 78.8, 48.4)),
    "GR": ((47.4, 87.0, 60.5), (35.3, 77.1, 48.3)),
}


@dataclass(frozen=True)
class Results:
    """Systems on the test queries, and what the dev queries say of them."""

    values: dict[str, dict[str, np.ndarray]]  # system -> measure -> [seeds, queries]
    dev: dict[str, float]  # system -> mean of PRIMARY

    def chosen(self, systems: list[str]) -> str:
        """The best of these on the dev queries."""
        return max(systems, key=lambda system: self.dev[system])


@dataclass(frozen=True)
class Difference:
    """mean(system) − mean(other) of PRIMARY: its interval over seeds and queries, p of the paired test of
    each query's mean over the seeds, and p after Holm's correction."""

    system: str
    other: str
    interval: Interval
    p: float
    p_adjusted: float

    @property
    def positive(self) -> bool:
        return self.interval.low > 0 and self.p_adjusted < ALPHA


def main(settings: Settings) -> None:
    def measured(mvdr: Paradigm, generative: Generative, bench: Bench) -> Measured:
        return measure(mvdr, generative, bench, settings)

    bench, found, accelerator = measure_pairs(settings, measured)
    if accelerator.is_main_process:
        pool = bench.pool(bench.test, settings.depth)
        results = gather(found, by_chance(pool, bench.test.judgements, found[0]["test queries"]))
        queries = results.values[FORWARD][PRIMARY].shape[1]
        summary = (
            f"{queries} test queries over {len(bench.collection.corpus):,} documents, each with BM25's "
            f"first {settings.depth} and the relevant documents as candidates; {trained_on(settings)}. "
            "Intervals (95 %) resample seeds and queries."
        )
        sections = describe(results, settings)
        publish(settings, "Alignment directions", summary, sections, {"table5": draw(results)}, accelerator)
    accelerator.end_training()


# --- measuring --------------------------------------------------------------------------------------


def measure(mvdr: Paradigm, generative: Generative, bench: Bench, settings: Settings) -> Measured:
    """Every system's measures on the test queries, per query, and PRIMARY on dev queries."""
    corpus = bench.collection.corpus
    found: Measured = {}
    parts = {
        "test": (bench.test, MEASURES),
        "dev": (some_queries(bench.dev, settings.dev_queries), (PRIMARY,)),
    }
    for name, (split, measures) in parts.items():
        runs = rankings(mvdr, generative, split, bench.pool(split, settings.depth), corpus)
        results = {system: per_query(run, split.judgements, measures) for system, run in runs.items()}
        found[name] = {
            system: {m: values.tolist() for m, values in of.values.items()} for system, of in results.items()
        }
        found[f"{name} queries"] = next(iter(results.values())).queries
    return found


def rankings(
    mvdr: Paradigm, generative: Generative, split: Split, pool: Run, corpus: Corpus
) -> dict[str, Run]:
    """system -> the pool under its rel."""
    runs = {CANDIDATES: pool}
    ids = sorted({d for scores in pool.values() for d in scores}, key=corpus.position)
    texts = [corpus[corpus.position(d)] for d in ids]
    with tempfile.TemporaryDirectory() as folder:
        index = ExactIndex.build(mvdr, ids, texts, f"{folder}/index", precision="no")
        runs[FORWARD] = index.rerank(mvdr, split.queries, pool, progress=True)
        for system, normalise in BACKWARD.items():
            other = mvdr.with_alignment("document_to_query", normalise)
            runs[system] = index.rerank(other, split.queries, pool, progress=True)
    return runs | generative_runs(generative, split.queries, pool)


def generative_runs(model: Generative, queries: Mapping[str, str], pool: Run) -> dict[str, Run]:
    """`GenerativeRetriever.rerank` under every scorer and pooling, each window scored once by each scorer."""
    runs: dict[str, Run] = {variant(scorer, way): {} for scorer in SCORERS for way in POOLINGS}
    positions = {id: n for n, id in enumerate(model.identifiers.documents)}
    ids = {id for candidates in pool.values() for id in candidates}
    own = {id: [tuple(name) for name in model.names(positions[id])] for id in ids}
    with progress_bar(True) as bar:
        for query in bar.track(pool, description="rerank seal"):
            different = sorted({window for id in pool[query] for window in own[id]})
            source = model.tokenize([queries[query]])
            for scorer in SCORERS:
                values = sequence_scores(model, source, [different], scorer)[0].tolist()
                rel = dict(zip(different, values, strict=True))
                for way, pooled in POOLINGS.items():
                    runs[variant(scorer, way)][query] = {
                        id: pooled([rel[window] for window in own[id]]) if own[id] else -np.inf
                        for id in pool[query]
                    }
    return runs


def variant(scorer: str, way: str) -> str:
    return f"GR, {scorer.replace('_', ' ')}, {way} window"


# --- what was measured ------------------------------------------------------------------------------


def by_chance(pool: Run, judgements: Judgements, queries: list[str]) -> dict[str, list[float]]:
    """What each query's candidates in random order are expected to have, by measure."""
    found: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for query in queries:
        n, relevant = len(pool[query]), sum(grade > 0 for grade in judgements[query].values())
        none, reciprocal = 1.0, 0.0  # none: P(no relevant document before this rank)
        for rank in range(1, min(10, n - relevant + 1) + 1):
            first = none * relevant / (n - rank + 1)
            reciprocal += first / rank
            none -= first
        for measure, value in zip(MEASURES, (1 / n, min(10, n) / n, reciprocal), strict=True):
            found[measure].append(value)
    return found


def gather(found: list[Measured], chance: dict[str, list[float]]) -> Results:
    """Of all seeds, which were measured on the same queries."""
    if any(seed[key] != found[0][key] for seed in found for key in ("test queries", "dev queries")):
        raise SystemExit("the seeds were measured on different queries: choose another --output")
    values = {
        system: {m: np.array([seed["test"][system][m] for seed in found]) for m in MEASURES}
        for system in found[0]["test"]
    }
    values[CHANCE] = {m: np.tile(chance[m], (len(found), 1)) for m in MEASURES}
    dev = {s: float(np.mean([seed["dev"][s][PRIMARY] for seed in found])) for s in found[0]["dev"]}
    return Results(values, dev)


def differences(results: Results) -> list[Difference]:
    """q→d less every other system, and q←d less GR, each variant: one family for Holm's correction."""
    generative = [variant(scorer, way) for scorer in SCORERS for way in POOLINGS]
    pairs = [(FORWARD, other) for other in (*BACKWARD, *generative)]
    pairs += [(system, other) for system in BACKWARD for other in generative]
    values = {system: of[PRIMARY] for system, of in results.values.items()}
    p = [paired_test(values[a].mean(0), values[b].mean(0)) for a, b in pairs]
    rows = zip(pairs, p, holm(p), strict=True)
    return [Difference(a, b, seeds_interval(values[a] - values[b]), *ps) for (a, b), *ps in rows]


def verdict(results: Results, found: list[Difference]) -> str:
    """A model that is not above random order has not learned enough to be compared."""
    values = {system: of[PRIMARY] for system, of in results.values.items()}
    for system in {d.system for d in found} | {d.other for d in found}:
        if seeds_interval(values[system] - values[CHANCE]).low <= 0:
            return "out of reach at this scale"
    return "reproduced" if all(d.positive for d in found) else "not reproduced"


def claims(results: Results) -> Rows:
    """The statements of §7.1 for the variants that dev queries choose, and for GR's raw logit."""
    found = {(d.system, d.other): d for d in differences(results)}
    backward = results.chosen(list(BACKWARD))
    best = results.chosen([variant(scorer, way) for scorer in SCORERS for way in POOLINGS])
    logit = results.chosen([variant("logit", way) for way in POOLINGS])
    seeds, queries = results.values[FORWARD][PRIMARY].shape
    stated: list[tuple[str, str, list[Difference]]] = [
        ("q→d ranks better than q←d", "+6.3 on NQ320K, +10.5 on MS MARCO", [found[FORWARD, backward]])
    ]
    for other in dict.fromkeys((best, logit)):
        stated += [
            (f"q→d ranks better than {other}", "+11.5, +10.6", [found[FORWARD, other]]),
            (
                f"q←d stands between q→d and {other}",
                "roughly; above GR by 5.2, 0.1",
                [found[FORWARD, backward], found[backward, other]],
            ),
        ]
    rows: Rows = [
        {
            "claim": claim,
            "the paper (MRR@10, points)": said,
            f"measured ({PRIMARY})": "; ".join(
                f"{d.system} − {d.other}: {shown(d.interval, '+')}" for d in of
            ),
            "p (Holm)": "; ".join(f"{d.p_adjusted:.4f}" for d in of),
            "sample": f"{queries} queries, {seeds} seeds",
            "verdict": verdict(results, of),
        }
        for claim, said, of in stated
    ]
    keys = list(rows[0])
    missing = "the absolute numbers of NQ320K and MS MARCO", "Table 5", "T5-base, neither collection here"
    return [*rows, dict(zip(keys, (*missing, "–", "–", "out of reach at this scale"), strict=True))]


def describe(results: Results, settings: Settings) -> dict[str, Section]:
    """Sections of the page and the console by the name of their files."""
    papers = {FORWARD: "MVDR (q→d)"} | dict.fromkeys(BACKWARD, "MVDR (q←d)")
    table: Rows = []
    for system, of in results.values.items():
        row: dict[str, Any] = {"system": system}
        row |= {m: shown(seeds_interval(of[m])) for m in MEASURES}
        row["dev RR@10"] = f"{results.dev[system]:.3f}" if system in results.dev else "–"
        said = PAPER.get(papers.get(system, "GR" if system.startswith("GR") else ""))
        for name, numbers in zip(("NQ320K", "MS MARCO"), said or (None, None), strict=True):
            row[f"paper, {name}"] = "–" if numbers is None else "/".join(f"{x:.1f}" for x in numbers)
        table.append(row)
    tests = [
        {
            "difference of RR@10": f"{d.system} − {d.other}",
            "mean": shown(d.interval, "+"),
            "p": f"{d.p:.4f}",
            "p (Holm)": f"{d.p_adjusted:.4f}",
        }
        for d in differences(results)
    ]
    return {
        "claims": Section(
            "What the paper says and what we measured",
            "Reproduced: the interval lies above 0 and the paired permutation test over queries (each "
            f"query's mean over the seeds) has p < {ALPHA} after Holm's correction for all {len(tests)} "
            "differences below; out of reach where a system's interval of the difference from random order "
            "holds 0. The Z of q←d, and the scorer and pooling of GR, are the best on dev queries; "
            "GR's raw logit is the relevance that the paper states.",
            claims(results),
        ),
        "table5": Section(
            "Reranking (Table 5)",
            "R@1, R@10 and RR@10; the paper's R@1/R@10/MRR@10 in percent, of T5-base. BM25: the candidates "
            "as they come. Every GR row is beside the paper's one.",
            table,
            ["table5"],
        ),
        "differences": Section("Differences", "One family of tests.", tests),
    }


def draw(results: Results) -> Figure:
    """PRIMARY of every system with its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    systems = list(results.values)
    for place, system in enumerate(systems):
        mean, low, high = seeds_interval(results.values[system][PRIMARY])
        kind = [system in (CANDIDATES, CHANCE), system == FORWARD, system in BACKWARD, True].index(True)
        axes.errorbar(
            mean, place, xerr=[[mean - low], [high - mean]], fmt="o", capsize=3, color=PALETTE[kind]
        )
    axes.set_yticks(range(len(systems)), systems)
    axes.invert_yaxis()
    axes.set(xlabel=f"{PRIMARY}, mean and 95 % interval over seeds and queries")
    axes.grid(axis="x", alpha=0.3)
    return figure


if __name__ == "__main__":
    main(Settings(**given))
