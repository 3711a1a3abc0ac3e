"""How many dimensions does a single vector need on a real collection before BM25's ranking survives?

The script draws Figure 3 of Luan et al., TACL 2021, for any collection, beside the exact laws of `theory`:
the 10th, 100th and 1000th smallest margins (3a) and the k for recall@r (3b) by document length. Intervals
for k resample the queries. `python -m paradigms dimensions SOURCE` gives only the answer, in seconds.
"""

from typing import Any

from studies.settings import CollectionName, OneSplit, Queries, Results, at_least, launch, refusing

from paradigms.io.command_line import flags


@flags(queries=100, precision="no", tracker="none")
class Settings(Results, CollectionName, OneSplit, Queries):
    """Settings for the collection, and the resolution of measurements."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
from studies.claims import Study
from studies.curves import Curves
from studies.pages import Rows, Section, publish

from paradigms.baselines.lexical_vectors import Counts, Weighting, count_terms, weigh
from paradigms.data import Judgements
from paradigms.evaluate import Interval
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED
from paradigms.train.script import begin, open_collection
from theory.answerable import one_vector
from theory.collection import (
    Dimension,
    Problem,
    exact_thresholds,
    left_vectors,
    length_groups,
    projected_dimension,
)
from theory.recall import required_dimension_recall_exact

# weightings of terms; Figures 3a and 3b show the first
WEIGHTINGS: tuple[Weighting, ...] = ("bm25", "tfidf", "boolean")
SAMPLES = 64  # Gaussian vectors per query for the exact law
RANK = 10  # r of recall@r in Figure 3b
LENGTH_BINS = 8  # bins of document length, with equal counts
MARGIN_RANKS = (10, 100, 1000)
NUMBERS = (4, 8, 16, 32, 64, 128)  # h of vectors by a truncated SVD
BETA = 0.05  # target error rate
MUCH = 2  # ratio of margins from which one is "much lower"


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    collection = open_collection(settings.collection, None, console)
    with refusing():
        queries = collection.split(settings.split).queries
        counts = count_terms(collection.corpus, queries, settings.queries)
    groups = length_groups(counts.lengths, min(LENGTH_BINS, len(counts.lengths)))
    lengths = np.array([counts.lengths[rows].mean() for rows in groups])
    problems = {w: Problem.of(*weigh(counts, w), groups) for w in WEIGHTINGS}
    first = WEIGHTINGS[0]
    problem = problems[first]
    query_rows = range(len(counts.query_ids))
    most = max(len(problem.competitors(-1, query)[1]) for query in query_rows)
    if most < RANK:
        raise SystemExit(f"too few documents: {most} are below a query's best; recall@{RANK} needs {RANK}")
    smallest = {  # each query's margin over all documents; 1 if none scores below the best
        weighting: np.array([of.margins(-1, query)[2].min(initial=1.0) for query in query_rows])
        for weighting, of in problems.items()
    }
    ranked = ranked_margins(problem)
    (thresholds,) = exact_thresholds(problem, [RANK], SAMPLES, 0)
    ks = [projected_dimension(value, BETA) for value in thresholds]
    rows = length_rows(ranked, ks, lengths)
    panels: dict[str, Any] = {
        "normalized margin, median over queries": {
            f"{n}th smallest": [row[f"{n}th margin"] for row in rows[:-1]] for n in MARGIN_RANKS
        },
        f"k for recall@{RANK}": {"exact law, 95% over queries": [Interval(*k) for k in ks[:-1]]},
    }
    curves = Curves(
        "mean document length (terms)", lengths[:-1].round().tolist(), panels, log_y=[*panels][:1]
    )
    sections = {
        "claims": study(smallest, ranked, thresholds, lengths).section(
            "luan2021", "margins", "Figure 2 is a law of pairs: theory_checks.py judges it."
        ),
        "figure3": Section(
            f"Figure 3, {first}: margins, and dimensions for recall@{RANK} ≥ {1 - BETA:.0%}, by length",
            "Margins are medians over queries; none where half of the queries have fewer documents below the "
            "best. low, high: 95% interval of the exact k over queries.",
            rows,
            curves.draw(),
        ),
        "answerable": Section(
            "Queries that any vectors could answer",
            "Documents by a truncated SVD to h numbers: the share of the queries for which some vector ranks "
            "every relevant document above all others (`theory.answerable`), 95% intervals over queries.",
            answerable_rows(problem, counts, collection.split(settings.split).judgements),
        ),
    }
    summary = (
        f"A random projection to k = {ks[-1]} dimensions keeps the best document by {first} among the first "
        f"{RANK} for {1 - BETA:.0%} of the queries (exact law; 95% interval over queries). "
        f"{len(counts.lengths):,} documents, {counts.documents.shape[1]:,} terms, "
        f"{len(counts.query_ids)} queries of split {settings.split}."
    )
    title = f"Random projections of {collection.name}"
    publish(settings, title, summary, sections, accelerator)
    accelerator.end_training()


def ranked_margins(problem: Problem) -> np.ndarray:
    """Return the r-th smallest margins for r in MARGIN_RANKS, [ranks, bins, m]; NaN if fewer than r exist."""
    ranked = np.full((len(MARGIN_RANKS), len(problem.groups) - 1, problem.queries.shape[0]), np.nan)
    for group, query in np.ndindex(*ranked.shape[1:]):
        margins = np.sort(problem.margins(group, query)[2])
        smallest = [margins[rank - 1] for rank in MARGIN_RANKS if rank <= len(margins)]
        ranked[: len(smallest), group, query] = smallest
    return ranked


def length_rows(ranked: np.ndarray, ks: list[Dimension], lengths: np.ndarray) -> Rows:
    """Make the rows of Figures 3a and 3b: one for each bin of lengths, and one for all documents."""
    rows: Rows = []
    for group, (k, length) in enumerate(zip(ks, lengths, strict=True)):
        everything = group == len(lengths) - 1
        row = {"documents": "all" if everything else f"{length:.0f} terms", "mean length": float(length)}
        for rank, margins in zip(MARGIN_RANKS, ranked, strict=True):
            existing = margins[group][~np.isnan(margins[group])] if not everything else margins[:0]
            # Fewer than half of the queries would be a different population than for the other ranks.
            enough = 2 * len(existing) >= len(margins[0])
            row[f"{rank}th margin"] = float(np.median(existing)) if enough else None
        rows.append(row | named(k))
    return rows


def answerable_rows(problem: Problem, counts: Counts, judgements: Judgements) -> Rows:
    """Make a row for each h, with the share of queries that some h-dimensional query vector answers."""
    vectors = left_vectors(problem.documents, max(NUMBERS))
    position = counts.corpus.position
    judged = [
        [position(id) for id, grade in judgements[query].items() if grade > 0] for query in counts.query_ids
    ]
    rows: Rows = []
    for h in NUMBERS:
        answers = [one_vector(vectors[:, :h], relevant).answerable for relevant in judged if relevant]
        if answers:
            shares = np.array([answer is True for answer in answers], dtype=float)
            rows.append({"h": h, "queries": len(shares), "answerable": shares[None]})
    return rows


def named(k: Dimension) -> dict[str, float | None]:
    """Return table cells for a dimension and its interval; empty cells if no query has enough documents."""
    names = ("exact k", "low", "high")
    return {name: None if np.isnan(value) else value for name, value in zip(names, k, strict=True)}


def study(
    smallest: dict[Weighting, np.ndarray], ranked: np.ndarray, thresholds: np.ndarray, lengths: np.ndarray
) -> Study:
    """Return what Luan et al., §2.1.3, say about margins, dimensions and length, for each query.

    The exponents a of y ∝ length^a are fitted by least squares over the bins, for queries that have a y in
    every bin.
    """
    exponents: dict[str, np.ndarray] = {}
    if len(lengths) > 2:
        ks = np.full(thresholds.shape[:2], np.nan)
        for cell in np.argwhere(~np.isnan(thresholds[:-1, :, 0])):
            ks[*cell] = required_dimension_recall_exact(thresholds[*cell], BETA)[0]
        by_query = {f"{rank}th smallest margin": y for rank, y in zip(MARGIN_RANKS, ranked, strict=True)}
        x = np.log(lengths[:-1]) - np.log(lengths[:-1]).mean()
        for name, y in (by_query | {"required dimension": ks[:-1]}).items():
            complete = y[:, ~np.isnan(y).any(axis=0)]
            if complete.size:
                exponents[name] = (x @ np.log(complete) / (x @ x))[None]
    margins: dict[str, np.ndarray] = {w: np.log10(least)[None] for w, least in smallest.items()}
    values = {"exponent a of y ∝ length^a": exponents, "log10 of a query's smallest margin": margins}
    boolean, bm25 = smallest["boolean"].min(), smallest["bm25"].min()
    count = {"quantity": "smallest margin of all queries: Boolean, BM25", "printed": "0.0169, 6.8e-06"}
    count |= {"measured": f"{boolean:.2g}, {bm25:.2g}", "sample": "counted"}
    count["verdict"] = REPRODUCED if boolean > MUCH * bm25 else CONTRADICTED
    groups = {"smallest margin": [name for name in exponents if "margin" in name]}
    return Study(values, groups, counts={"smallest margin": count})
