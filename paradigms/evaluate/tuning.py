"""Choose the weights of a fusion (`retrieve.fusion`) that maximise a measure on dev queries.

hybrid = Fused([dense, sparse], method="raw")
weight = tune_raw(*hybrid.runs(dev.queries), dev)
hybrid = replace(hybrid, weights=(1.0, weight))
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import comb, isfinite

import numpy as np

from paradigms.data import Run, Split
from paradigms.evaluate.measures import on_split
from paradigms.retrieve.fusion import check_same, fuse

MEASURE = "nDCG@10"
STEPS = 10  # steps of a weight from 0 to 1; fewer for many systems
TRIED = 300  # maximum number of weight choices
RAW_STEPS = range(-12, 13)  # λ = scale · 2^(step / 2), from scale/64 to 64 · scale


def tune_weights(runs: Sequence[Run], dev: Split) -> tuple[float, ...]:
    """Choose weights ≥ 0 with sum 1 so that the weighted sum of runs (`fuse`) has the best dev nDCG@10.

    Candidate weights are the multiples of 1/10, or of a larger step if there would be more than 300
    candidates. Among equally good weights, the most even ones win.
    """
    if not dev.queries:
        raise ValueError("weights are chosen on dev queries, but the dev split has none")
    return max(
        _simplex(len(runs)),
        key=lambda weights: (
            round(on_split(fuse(runs, weights, "sum"), dev, [MEASURE]).mean(MEASURE), 9),
            -sum(w * w for w in weights),
        ),
    )


def tune_raw(dense: Run, sparse: Run, dev: Split, *, measure: str = MEASURE) -> float:
    """Choose the λ for which dense + λ · sparse has the highest `measure` on dev; the middle λ wins ties."""
    means = curve(dense, sparse, dev, measure)
    ties = [weight for weight, value in means.items() if value == max(means.values())]
    return ties[len(ties) // 2]


def curve(dense: Run, sparse: Run, dev: Split, measure: str = MEASURE) -> dict[float, float]:
    """Map λ to the mean of `measure`, for λ = 0 (dense alone) and λ = `scale` · 2^(n/2), n = −12 … 12."""
    middle = scale(dense, sparse)
    return {
        weight: on_split(fuse([dense, sparse], (1.0, weight), "raw"), dev, [measure]).mean(measure)
        for weight in (0.0, *(middle * 2 ** (step / 2) for step in RAW_STEPS))
    }


def scale(dense: Run, sparse: Run) -> float:
    """The λ that gives both runs equal weight: the ratio of their mean standard deviations within queries.

    Scores of −inf are ignored. Raises ValueError if, in one run, every query's scores are all equal.
    """
    check_same([dense, sparse])
    spread = {}
    for name, run in (("dense", dense), ("sparse", sparse)):
        finite = [[score for score in scores.values() if isfinite(score)] for scores in run.values()]
        deviations = [np.std(scores) for scores in finite if scores]
        spread[name] = float(np.mean(deviations)) if deviations else 0.0
        if not spread[name] > 0:
            raise ValueError(f"the {name} scores are equal within every query: λ has no scale")
    return spread["dense"] / spread["sparse"]


def _simplex(count: int) -> Iterator[tuple[float, ...]]:
    steps = next(n for n in range(STEPS, 0, -1) if n == 1 or comb(n + count - 1, n) <= TRIED)
    for bars in combinations(range(steps + count - 1), count - 1):
        edges = (-1, *bars, steps + count - 1)
        yield tuple((b - a - 1) / steps for a, b in pairwise(edges))
