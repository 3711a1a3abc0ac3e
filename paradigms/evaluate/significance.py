"""Is system a better than system b on the same queries? Paired tests, corrected for multiple comparisons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from paradigms.evaluate.measures import PerQuery, bootstrap_intervals

BETTER, WORSE = "†", "‡"
RISES, FALLS, STAYS = "↗", "↘", "→"  # marks of training: significantly better, worse, or neither
UNTRAINED = "untrained"
ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """mean(system) - mean(baseline) of one measure, its interval, and the test of whether it is 0."""

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
    a: Float[np.ndarray, " queries"], b: Float[np.ndarray, " _"], *, resamples: int = 9999, seed: int = 0
) -> float:
    """Two-sided p of mean(a - b) = 0, a and b measured on the same queries, by the randomisation test.

    Fisher 1935; for retrieval Smucker et al., CIKM 2007: under the null hypothesis each difference is equally
    likely with either sign. Ties are left out. If at most `resamples` sign patterns remain, p is exact; else
    (1 + count of patterns as extreme)/(1 + resamples). Without any difference p is 1.
    """
    if a.shape != b.shape:
        raise ValueError(f"a paired test needs the same queries on both sides, not {len(a)} and {len(b)}")
    difference = a - b
    if np.isnan(difference).any():
        raise ValueError("a paired test needs values without NaN")
    if not difference.any():
        return 1.0
    moved = difference[difference != 0]
    found, near = moved.sum(), 1e-12 * np.abs(moved).sum()  # sums in another order differ by less
    sums = np.concatenate(list(_flipped_sums(moved, resamples, seed)))
    extra = int(2 ** len(moved) > resamples)  # of patterns that are drawn: the one that was found
    tail = min((sums >= found - near).sum(), (sums <= found + near).sum())
    return min(1.0, 2 * float(tail + extra) / (len(sums) + extra))


def _flipped_sums(
    values: Float[np.ndarray, " n"], resamples: int, seed: int
) -> Iterator[Float[np.ndarray, " patterns"]]:
    """Σ ±values of every pattern of signs, or of `resamples` drawn ones where there are more."""
    n = len(values)
    if 2**n <= resamples:
        yield np.array(list(product((1.0, -1.0), repeat=n))) @ values
        return
    generator, chunk = np.random.default_rng(seed), max(1, 1_000_000 // n)
    for start in range(0, resamples, chunk):
        flipped = generator.integers(2, size=(min(chunk, resamples - start), n), dtype=np.int8)
        yield values.sum() - 2 * (flipped @ values)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that control the familywise error rate (Holm 1979), in the order given.

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
    systems: Mapping[str, PerQuery],
    baseline: str | None,
    measures: Sequence[str] = ("nDCG@10",),
    *,
    seed: int = 0,
) -> list[Comparison]:
    """Compare each system with the baseline on each of `measures`: one family of Holm's correction.

    So choose few measures beforehand. baseline: None = every system before it. The mark is † for better and ‡
    for worse at an adjusted p below `ALPHA`. With groups, differences and tests are those of the
    macro-averages. ValueError for an unknown baseline or measure, or systems that were not measured on the
    same queries.
    """
    if baseline is not None and baseline not in systems:
        raise ValueError(f"the baseline {baseline!r} is not among the systems: {', '.join(systems)}")
    if baseline is None:
        pairs = [(name, before) for n, name in enumerate(systems) for before in list(systems)[:n]]
    else:
        pairs = [(name, baseline) for name in systems if name != baseline]
    _check_queries(systems, measures)
    tested = [
        (a, b, measure, systems[a].weighted(measure), systems[b].weighted(measure))
        for a, b in pairs
        for measure in measures
    ]
    return _tested(tested, ("", BETTER, WORSE), next(iter(systems.values())).groups, seed)


def compare_training(
    trained: Mapping[str, PerQuery],
    untrained: Mapping[str, PerQuery],
    measures: Sequence[str] = ("nDCG@10",),
    *,
    seed: int = 0,
) -> list[Comparison]:
    """Compare each system of `untrained` with what training made of it: one family of Holm's correction.

    The baseline of each row is `UNTRAINED`. The mark is ↗ for better, ↘ for worse and → for neither at an
    adjusted p below `ALPHA`. Raises ValueError as `compare` does.
    """
    both = {name: trained[name] for name in untrained}
    _check_queries(both | {f"{name}, {UNTRAINED}": of for name, of in untrained.items()}, measures)
    tested = [
        (name, UNTRAINED, measure, both[name].weighted(measure), before.weighted(measure))
        for name, before in untrained.items()
        for measure in measures
    ]
    groups = next(iter(both.values())).groups if both else None
    return _tested(tested, (STAYS, RISES, FALLS), groups, seed)


def _check_queries(systems: Mapping[str, PerQuery], measures: Sequence[str]) -> None:
    """Raises ValueError for a measure that is missing, or systems measured on different queries."""
    for system, results in systems.items():
        first, reference = next(iter(systems.items()))
        if lost := [measure for measure in measures if measure not in results.values]:
            raise ValueError(f"{lost[0]!r} was not measured; there are: {', '.join(results.values)}")
        if results.queries != reference.queries:
            raise ValueError(
                f"{system!r} and {first!r} were not measured on the same queries in the same order: "
                "use per_query with the same judgements for both"
            )


def _tested(
    tested: Sequence[tuple[str, str, str, np.ndarray, np.ndarray]],
    marks: tuple[str, str, str],
    groups: Sequence[str] | None,
    seed: int,
) -> list[Comparison]:
    """Test pairs, each (system, baseline, measure, values of both), as one family of Holm's correction.

    marks: of no significant difference, of better and of worse.
    """
    if not tested:
        return []
    p_values = [paired_test(a, b, seed=seed) for *_, a, b in tested]
    intervals = bootstrap_intervals(np.array([a - b for *_, a, b in tested]), groups=groups, seed=seed)
    rows = []
    for (*names, _, _), interval, p, adjusted in zip(
        tested, intervals, p_values, holm(p_values), strict=True
    ):
        mark = marks[0] if adjusted >= ALPHA else marks[1] if interval.mean > 0 else marks[2]
        rows.append(Comparison(*names, *interval, p, adjusted, mark))
    return rows
