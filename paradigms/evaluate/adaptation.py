"""Choose a strategy s with a few judged queries; measure E[v(s, q) − v(default, q)] on other queries.

Few-shot alignment adaptation (Qian et al. 2022, ALIGNER, §3.1 and §4.1) chooses the strategy with the highest
measure on each fold of judged queries, and measures it on the queries outside the fold. `values` [strategies,
queries] contains the values of one measure. A strategy is a row number, row 0 is the default, and earlier
rows win ties.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from jaxtyping import Float, Int

TIE = 1e-9  # closer means are equal: reordering the sum of the same measures changes it by less
LEVEL = 0.05
EXACT_SHOTS = 10  # up to this many, all 2^shots sign patterns are counted; beyond, 999 random ones
PARTITIONS = 8  # random partitions into folds that `adapt` averages, per shot
TOGETHER = 256  # folds whose sign patterns are in memory together

Values = Float[np.ndarray, "strategies ... shots"]  # measures on the judged queries of one or many folds
Chosen = Int[np.ndarray, "..."]
Rule = Callable[[Values], Chosen]  # the judged queries' values -> strategies


@dataclass(frozen=True)
class Adaptation:
    """The strategy chosen on each fold, and the gain per query."""

    chosen: Int[np.ndarray, " folds"]  # strategy
    adapted: Float[np.ndarray, " folds"]  # mean measure of the chosen strategy outside the fold
    default: Float[np.ndarray, " folds"]  # mean measure of the default, on the same queries
    gain: Float[np.ndarray, " queries"]  # see `adapt`


def folds(queries: int, shots: int, seed: int | list[int] = 0) -> Int[np.ndarray, "folds shots"]:
    """Draw ⌊queries/shots⌋ disjoint sets of `shots` query numbers. Raises ValueError if shots >= queries."""
    if not 1 <= shots < queries:
        raise ValueError(f"shots must be at least 1 and fewer than the {queries} queries, got {shots}")
    order = np.random.default_rng(seed).permutation(queries)
    return order[: queries // shots * shots].reshape(-1, shots)


def best(values: Values) -> Chosen:
    """argmax_s mean_q values[s, q], the paper's rule; the first strategy wins ties."""
    means = values.mean(axis=-1)
    return np.asarray((means >= means.max(axis=0) - TIE).argmax(axis=0))


def best_if_significant(values: Values) -> Chosen:
    """Choose `best` if it beats the default significantly (`evidence`, p <= LEVEL), otherwise the default.

    If no strategy is truly better, at most a share LEVEL of the folds deviates from the default. A fold needs
    at least five judged queries to deviate from it (2⁻⁵ ≤ .05).
    """
    choice = best(values)
    p = np.take_along_axis(evidence(values), choice[None], axis=0)[0]
    return np.where(p <= LEVEL, choice, 0)


def evidence(values: Values) -> Float[np.ndarray, "strategies ..."]:
    """Return one-sided p-values for "strategy s is no better than the default", corrected for all strategies.

    This is the paired sign-flip test with the maximal statistic (Westfall & Young 1993): t_s = Σ_q d_sq /
    ‖d_s‖ with d_sq = values[s, q] − values[0, q]. A query's sign is flipped for all strategies together, and
    p_s is the share of sign patterns whose largest t reaches t_s. For up to EXACT_SHOTS queries, p is exact;
    for more, p = (1 + patterns as extreme)/(1 + random patterns). The default itself has p = 1.
    """
    d = values - values[0]
    length = np.sqrt((d**2).sum(axis=-1, keepdims=True))  # sign flips do not change it
    t = np.divide(d, length, out=np.zeros_like(d), where=length > 0)
    signs, extra = _signs(t.shape[-1], t.shape[-1] <= EXACT_SHOTS)
    largest = (t @ signs.T).max(axis=0)  # [..., patterns]
    reached = np.array([(largest >= total[..., None] - TIE).sum(axis=-1) for total in t.sum(axis=-1)])
    return (reached + extra) / (len(signs) + extra)


@lru_cache(maxsize=8)
def _signs(shots: int, exact: bool) -> tuple[Float[np.ndarray, "patterns shots"], int]:
    """Return sign patterns and the number of observed patterns to add: 1 for random patterns, else 0."""
    if exact:
        return np.array(list(product((1.0, -1.0), repeat=shots))), 0
    return np.random.default_rng(0).choice((1.0, -1.0), size=(999, shots)), 1


def adapt(
    values: Float[np.ndarray, "strategies queries"], shots: int, rule: Rule = best, seed: int = 0
) -> Adaptation:
    """Apply `rule` to folds of `shots` queries, and measure each choice on the queries outside its fold.

    gain: one value per query. The mean gain is θ = E[v(s(Q₁ … Q_k), Q₀) − v(default, Q₀)], and the gains'
    variance gives θ's interval. Gains per fold would not give an interval, because folds share queries. θ is
    a U-statistic, and gain_q is its jackknife pseudo-value (Efron & Stein 1981): θ plus (n − 1)/(n − k) times
    the contributions of q as the query that is searched, E[h | Q₀ = q] − θ, and as one of the k queries that
    choose the strategy, k · (E[h | Q₁ = q] − θ), averaged over PARTITIONS · shots random partitions. If
    strategies are equal, 95% intervals cover 92 to 95% up to k = n/10, and 82% at k = n/3. Raises ValueError
    if a value is NaN.
    """
    if np.isnan(values).any():
        raise ValueError("a measure is NaN: no strategy can be chosen by it")
    strategies, queries = values.shape
    seeds = [[seed, n] for n in range(PARTITIONS * shots)]
    parts = np.concatenate([folds(queries, shots, each) for each in seeds])  # [folds, shots]
    chunks = np.array_split(parts, -(-len(parts) // TOGETHER))
    chosen = np.concatenate([rule(values[:, part]) for part in chunks])
    rows = np.arange(len(parts))
    inside = values[:, parts].sum(axis=2)  # [strategies, folds]
    outside = (values.sum(axis=1, keepdims=True) - inside) / (queries - shots)
    adapted = outside[chosen, rows]
    plain = outside[0]
    # holding[s, q]: folds with query q that chose strategy s; outside_of[s, q]: folds without q that chose s.
    holding = np.zeros((strategies, queries))
    summed = np.zeros(queries)
    np.add.at(holding, (chosen[:, None], parts), 1)
    np.add.at(summed, parts, (adapted - plain)[:, None])
    outside_of = np.bincount(chosen, minlength=strategies)[:, None] - holding
    mean = (adapted - plain).mean()  # for queries in all folds or in no fold
    choosing = _quotient(summed, holding.sum(axis=0), mean)
    searched = _quotient((outside_of * (values - values[0])).sum(axis=0), outside_of.sum(axis=0), mean)
    contributed = searched - searched.mean() + shots * (choosing - choosing.mean())
    gain = searched.mean() + (queries - 1) / (queries - shots) * contributed
    return Adaptation(chosen, adapted, plain, gain)


def _quotient(total: np.ndarray, count: np.ndarray, otherwise: float) -> np.ndarray:
    return np.divide(total, count, out=np.full(len(total), otherwise), where=count > 0)
