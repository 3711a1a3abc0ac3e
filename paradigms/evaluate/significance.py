"""Test whether systems differ on the same queries: paired tests, corrected for multiple comparisons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from jaxtyping import Float

from paradigms.evaluate.measures import KEPT_QUERIES, PerQuery, bootstrap_intervals

BETTER, WORSE = "†", "‡"
RISES, FALLS, STAYS = "↗", "↘", "→"  # marks for training: significantly better, worse, or neither
UNTRAINED = "untrained"
ALPHA = 0.05
RESAMPLES = 9999  # number of random sign patterns


@dataclass(frozen=True)
class Comparison:
    """The difference mean(system) - mean(baseline) in a measure, its interval, and the test against 0."""

    system: str
    baseline: str
    measure: str
    difference: float
    low: float
    high: float
    p: float
    p_adjusted: float
    mark: str


def paired_test(
    a: Float[np.ndarray, " queries"], b: Float[np.ndarray, " _"], clusters: Sequence[str] | None = None
) -> float:
    """Return the two-sided p-value of mean(a - b) = 0 from a paired randomisation test on the same queries.

    Under the null hypothesis, each difference is equally likely to have either sign (Fisher 1935; for
    retrieval, Smucker et al., CIKM 2007). Ties are left out. With at most RESAMPLES sign patterns, p is
    exact; otherwise, it is (1 + number of patterns as extreme)/(1 + RESAMPLES). If all differences are 0, p
    is 1. The result agrees with scipy.stats.permutation_test, which is several times slower. clusters: each
    query's cluster; all differences in a cluster change sign together.
    """
    if a.shape != b.shape:
        raise ValueError(f"a paired test needs the same queries on both sides, not {len(a)} and {len(b)}")
    difference = a - b
    if np.isnan(difference).any():
        raise ValueError("a paired test needs values without NaN")
    if clusters is not None:
        difference = np.bincount(np.unique(clusters, return_inverse=True)[1], difference)
    if not difference.any():
        return 1.0
    moved = difference[difference != 0]
    observed = moved.sum()
    rounding = 1e-12 * np.abs(moved).sum()  # reordering changes the sum by less
    sums = np.concatenate(list(_flipped_sums(moved)))
    extra = int(2 ** len(moved) > RESAMPLES)  # the observed pattern counts among drawn ones
    tail = min((sums >= observed - rounding).sum(), (sums <= observed + rounding).sum())
    return min(1.0, 2 * float(tail + extra) / (len(sums) + extra))


def mean_test(
    values: Float[np.ndarray, " queries"],
    mean: float,
    clusters: Sequence[str] | None = None,
    limits: tuple[float, float] = (-1.0, 1.0),
) -> float:
    """Return the two-sided p-value of E[value] = `mean`, for values within `limits`, as differences are.

    For each side, one unseen query with the worst possible difference joins the sample, and p is the
    probability that a mean with random weights, exponential before they are normalised, lies on the other
    side (Gaffke 2005; Learned-Miller and Thomas 2020, arXiv:1905.06208). No shape or variance is assumed:
    100 equal differences leave room for rare larger ones. For differences that are 0 or a loss of 1, the
    bounds are Clopper and Pearson's, which are exact; for other bounded values, validity is a conjecture
    without a known counterexample, which tests/evaluate/test_claims.py simulates at the bound. Values beyond
    the limits (logarithms) extend them. clusters: each query's cluster, which has one weight; an unseen
    cluster has their mean size.
    """
    if np.isnan(values).any():
        raise ValueError("a test of a mean needs values without NaN")
    ends = np.array([min(limits[0], values.min()), max(limits[1], values.max())]) - mean
    values = values - mean
    size = len(values)
    if clusters is not None:
        values = np.bincount(np.unique(clusters, return_inverse=True)[1], values)
    wrong = np.zeros(2)
    drawn = _kept_weights if len(values) <= KEPT_QUERIES else _random_weights
    for weights in drawn(len(values), RESAMPLES):
        sums = (weights[:, 1:] @ values)[:, None] + weights[:, :1] * ends * size / len(values)
        wrong += (sums[:, 0] <= 0).sum(), (sums[:, 1] >= 0).sum()
    return float(min(1.0, 2 * (1 + wrong.min()) / (1 + RESAMPLES)))


def _random_weights(n: int, times: int) -> Iterator[Float[np.ndarray, "chunk _"]]:
    """Yield n + 1 exponential weights `times` times, in chunks of about 8 MB; always the same ones."""
    generator = np.random.default_rng(0)
    chunk = max(1, 1_000_000 // n)
    for start in range(0, times, chunk):
        yield generator.exponential(size=(min(chunk, times - start), n + 1))


@lru_cache(maxsize=1)
def _kept_weights(n: int, times: int) -> list[Float[np.ndarray, "_ _"]]:
    return list(_random_weights(n, times))


def _flipped_sums(values: Float[np.ndarray, " n"]) -> Iterator[Float[np.ndarray, " patterns"]]:
    """Yield Σ ±values for every sign pattern, or for RESAMPLES random patterns if there are more."""
    n = len(values)
    if 2**n <= RESAMPLES:
        yield np.array(list(product((1.0, -1.0), repeat=n))) @ values
        return
    generator = np.random.default_rng(0)
    chunk = max(1, 1_000_000 // n)
    for start in range(0, RESAMPLES, chunk):
        flipped = generator.integers(2, size=(min(chunk, RESAMPLES - start), n), dtype=np.int8)
        yield values.sum() - 2 * (flipped @ values)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values to control the familywise error rate (Holm 1979), keeping their order.

    p~_(r) = max over s <= r of min(1, (m - s + 1) p_(s)), with p_(1) <= ... <= p_(m).
    """
    p = np.asarray(p_values, dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must lie in [0, 1], not {list(p_values)}")
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted.tolist()


def compare(
    systems: Mapping[str, PerQuery], baseline: str | None, measures: Sequence[str] = ("nDCG@10",)
) -> list[Comparison]:
    """Compare each system with the baseline on each of `measures`, with Holm's correction over all tests.

    Choose a few measures beforehand. baseline: None compares each system with every earlier system. The mark
    is † for better and ‡ for worse, at an adjusted p below `ALPHA`. With groups, macro-averages are compared.
    Raises ValueError if the baseline or a measure is unknown, or if queries differ between systems.
    """
    if baseline is not None and baseline not in systems:
        raise ValueError(f"the baseline {baseline!r} is not among the systems: {', '.join(systems)}")
    if baseline is None:
        names = [(name, before) for n, name in enumerate(systems) for before in list(systems)[:n]]
    else:
        names = [(name, baseline) for name in systems if name != baseline]
    _check_queries(systems, measures)
    return _tested([(a, b, systems[a], systems[b]) for a, b in names], measures, ("", BETTER, WORSE))


def compare_training(
    trained: Mapping[str, PerQuery], untrained: Mapping[str, PerQuery], measures: Sequence[str] = ("nDCG@10",)
) -> list[Comparison]:
    """Compare trained systems with their untrained versions, with Holm's correction over all tests.

    The baseline of each row is `UNTRAINED`. The mark is ↗ for better and ↘ for worse; otherwise it is →.
    """
    both = {name: trained[name] for name in untrained}
    _check_queries(both | {f"{name}, {UNTRAINED}": row for name, row in untrained.items()}, measures)
    pairs = [(name, UNTRAINED, both[name], before) for name, before in untrained.items()]
    return _tested(pairs, measures, (STAYS, RISES, FALLS))


def _check_queries(systems: Mapping[str, PerQuery], measures: Sequence[str]) -> None:
    """Raise ValueError if a measure is missing, or if queries differ between systems."""
    for system, results in systems.items():
        first, reference = next(iter(systems.items()))
        if lost := [measure for measure in measures if measure not in results.values]:
            raise ValueError(f"{lost[0]!r} was not measured; there are: {', '.join(results.values)}")
        if results.queries != reference.queries:
            same = "on the same queries in the same order: use per_query with the same judgements"
            raise ValueError(f"{system!r} and {first!r} were not measured {same}")


def _tested(
    pairs: Sequence[tuple[str, str, PerQuery, PerQuery]], measures: Sequence[str], marks: tuple[str, str, str]
) -> list[Comparison]:
    """Test pairs (system, baseline, values of both) on measures, with Holm's correction over all tests.

    marks: the marks for no significant difference, for better and for worse.
    """
    tested = [
        (system, baseline, measure, a.weighted(measure), b.weighted(measure))
        for system, baseline, a, b in pairs
        for measure in measures
    ]
    if not tested:
        return []
    p_values = [paired_test(a, b) for *_, a, b in tested]
    differences = np.stack([a - b for *_, a, b in tested])
    intervals = bootstrap_intervals(differences, groups=pairs[0][2].groups)
    rows = []
    for (system, baseline, measure, *_), p, adjusted, interval in zip(
        tested, p_values, holm(p_values), intervals, strict=True
    ):
        mark = marks[0] if adjusted >= ALPHA else marks[1] if interval.mean > 0 else marks[2]
        rows.append(Comparison(system, baseline, measure, *interval, p, adjusted, mark))
    return rows
