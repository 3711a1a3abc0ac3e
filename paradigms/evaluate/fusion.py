"""score(d, q) = Σ_s w_s · part_s(d, q) over the runs of several systems, of which each may lack documents.

- rrf: part_s = 1 / (60 + rank of d in run s) (Cormack et al., "Reciprocal Rank Fusion Outperforms Condorcet
  and Individual Rank Learning Methods", SIGIR 2009): scores of any scale;
- sum: part_s = (score − min) / (max − min) over the run's documents for q.

part_s is 0 where run s lacks d. `hybrid` has the one weight between raw scores of Luan et al. instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import isfinite

from paradigms.data import Run, Split, best_first
from paradigms.evaluate.measures import on_split

METHODS = ("rrf", "sum")
MEASURE = "nDCG@10"  # that weights are chosen by
RANK = 60  # of Cormack et al.
STEPS = 10  # of weights between 0 and 1; fewer where there are many systems
TRIED = 300  # choices of weights at most


def fuse(
    runs: Sequence[Run], weights: Sequence[float] = (), method: str = "rrf", k: int | None = None
) -> Run:
    """The weighted sum for each query, best first, equal scores by id: the first k documents, or all.

    weights: one for each run, at least 0; by default all 1. ValueError for other weights or methods.

    >>> fuse([{"q": {"x": 9.0, "y": 7.0}}, {"q": {"y": 0.2, "z": 0.1}}], method="sum")
    {'q': {'x': 1.0, 'y': 1.0, 'z': 0.0}}
    """
    if method not in METHODS:
        raise ValueError(f"fusion must be one of {', '.join(METHODS)}, got {method!r}")
    weights = tuple(weights) or (1.0,) * len(runs)
    if len(weights) != len(runs) or not all(isfinite(w) and w >= 0 for w in weights):
        raise ValueError(f"{len(runs)} runs need as many weights of at least 0, not {list(weights)}")
    part = _ranks if method == "rrf" else _scaled
    fused: Run = {query: {} for run in runs for query in run}
    for run, weight in zip(runs, weights, strict=True):
        for query, scores in run.items():
            summed = fused[query]
            for document, value in part(scores).items():
                summed[document] = summed.get(document, 0.0) + weight * value
    return {query: best_first(scores, k) for query, scores in fused.items()}


def tune_weights(runs: Sequence[Run], dev: Split) -> tuple[float, ...]:
    """Weights ≥ 0 with sum 1 whose `fuse` by sum has the highest nDCG@10 on dev; of several the most equal.

    Those tried are all multiples of 1/10, or of a larger step where that makes more than 300 choices.
    ValueError for a dev split without queries.
    """
    if not dev.queries:
        raise ValueError("weights are chosen on dev queries, of which there are none: give them")
    grid = list(_simplex(len(runs)))
    return max(
        grid,
        key=lambda weights: (
            round(on_split(fuse(runs, weights, "sum"), dev, [MEASURE]).mean(MEASURE), 9),
            -sum(w * w for w in weights),
        ),
    )


def _simplex(count: int) -> Iterator[tuple[float, ...]]:
    steps = STEPS
    while steps > 1 and sum(1 for _ in combinations(range(steps + count - 1), count - 1)) > TRIED:
        steps -= 1
    for bars in combinations(range(steps + count - 1), count - 1):
        edges = (-1, *bars, steps + count - 1)
        yield tuple((b - a - 1) / steps for a, b in pairwise(edges))


def _ranks(scores: dict[str, float]) -> dict[str, float]:
    return {document: 1 / (RANK + rank) for rank, document in enumerate(best_first(scores), 1)}


def _scaled(scores: dict[str, float]) -> dict[str, float]:
    """Scores between 0 and 1, all 1 where they are equal; −inf, of documents without tokens, is 0."""
    finite = [score for score in scores.values() if isfinite(score)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low
    return {d: ((s - low) / span if span else 1.0) if isfinite(s) else 0.0 for d, s in scores.items()}
