"""A few judged queries -> an alignment strategy, and what that choice is worth on all other queries.

Few-shot alignment adaptation (Qian et al. 2022, ALIGNER, §3.1 and §4.1): the judged queries are split into
folds; on each fold the strategy with the highest measure is chosen, and measured on the queries outside the
fold. Everything here reads a table of measures, one row per strategy and one column per query, and knows
nothing of models: `strategies` are row numbers, in an order in which earlier rows win ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float, Int

TIE = 1e-9  # means closer than this are equal: sums of the same measures in another order differ by less
LEVEL = 0.05
EXACT_SHOTS = 13  # up to 2^13 sign patterns are all counted


@dataclass(frozen=True)
class Adaptation:
    """What the folds chose, and the mean measure of three strategies on each fold's remaining queries."""

    shots: int
    chosen: Int[np.ndarray, " folds"]  # strategy
    adapted: Float[np.ndarray, " folds"]  # of the chosen strategy
    default: Float[np.ndarray, " folds"]
    oracle: Float[np.ndarray, " folds"]  # of the strategy that is best over all queries

    @property
    def gain(self) -> Float[np.ndarray, " folds"]:
        """What adaptation changed, on the same queries."""
        return self.adapted - self.default


def folds(queries: int, shots: int, seed: int = 0) -> Int[np.ndarray, "folds shots"]:
    """⌊queries/shots⌋ disjoint random sets of `shots` query numbers; queries left over belong to none.

    ValueError unless 1 <= shots < queries: something must be left to measure on.
    """
    if not 1 <= shots < queries:
        raise ValueError(f"shots must be at least 1 and fewer than the {queries} queries, got {shots}")
    order = np.random.default_rng(seed).permutation(queries)
    return order[: queries // shots * shots].reshape(-1, shots)


def best(values: Float[np.ndarray, "strategies shots"], default: int = 0) -> int:
    """argmax_s mean_q values[s, q], the paper's rule; of equal means the default wins, then the first."""
    means = values.mean(axis=1)
    winners = np.flatnonzero(means >= means.max() - TIE)
    return default if default in winners else int(winners[0])


def best_if_significant(
    values: Float[np.ndarray, "strategies shots"], default: int = 0, *, level: float = LEVEL
) -> int:
    """`best` where its advantage over the default is significant (`evidence`, p <= level), else the default.

    Where no strategy is better than the default, a change happens on at most a share `level` of the folds,
    which bounds the loss from adapting: at most level · (default − worst). At level .05 five judged queries
    are the fewest that can ever justify a change (2⁻⁵ ≤ .05).
    """
    choice = best(values, default)
    return choice if choice == default or evidence(values, default)[choice] <= level else default


def evidence(
    values: Float[np.ndarray, "strategies shots"], default: int = 0, *, resamples: int = 9999, seed: int = 0
) -> Float[np.ndarray, " strategies"]:
    """One-sided p of "strategy s is no better than the default", corrected for having tried all of them.

    The paired sign-flip test with the maximal statistic (Westfall & Young 1993): t_s = Σ_q d_sq / ‖d_s‖,
    d_sq = values[s, q] − values[default, q]. Under the null hypothesis the differences of a query, those of
    all strategies together, are as likely with the other sign; p_s is the share of sign patterns whose
    largest t (the default's own is 0) reaches t_s. Up to 13 queries all patterns are counted and p is exact;
    beyond, `resamples` random ones, p = (1 + as extreme)/(1 + resamples). The default itself has p = 1.
    """
    d = values - values[default]
    length = np.sqrt((d**2).sum(axis=1, keepdims=True))  # no flip of signs changes it
    t = np.divide(d, length, out=np.zeros_like(d), where=length > 0)
    shots = t.shape[1]
    if shots <= EXACT_SHOTS:
        signs, extra = np.array(list(product((1.0, -1.0), repeat=shots))), 0
    else:
        signs, extra = np.random.default_rng(seed).choice((1.0, -1.0), size=(resamples, shots)), 1
    largest = (signs @ t.T).max(axis=1)
    reached = (largest[:, None] >= t.sum(axis=1) - TIE).sum(axis=0)
    return (reached + extra) / (len(signs) + extra)


Rule = Callable[[Float[np.ndarray, "strategies shots"], int], int]
RULES: dict[str, Rule] = {"best": best, "best if significant": best_if_significant}


def adapt(
    values: Float[np.ndarray, "strategies queries"],
    shots: int,
    rule: Rule = best,
    default: int = 0,
    seed: int = 0,
) -> Adaptation:
    """`rule` on each fold of `shots` queries, measured on the queries outside the fold.

    Same seed, same folds, whatever the rule and the values. ValueError for a default that is no row of
    `values`, or a measure that is not a number.
    """
    if not 0 <= default < len(values):
        raise ValueError(f"the default strategy {default} is none of the {len(values)} strategies")
    if np.isnan(values).any():
        raise ValueError("a measure is NaN: no strategy can be chosen by it")
    parts = folds(values.shape[1], shots, seed)
    totals = values.sum(axis=1)
    oracle = best(values, default)
    left = values.shape[1] - shots
    chosen = np.array([rule(values[:, part], default) for part in parts])
    means = np.stack([(totals - values[:, part].sum(axis=1)) / left for part in parts])
    rows = np.arange(len(parts))
    return Adaptation(shots, chosen, means[rows, chosen], means[:, default], means[:, oracle])
