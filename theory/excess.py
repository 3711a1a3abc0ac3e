"""Score documents by their excess over a floor: (1/n) Σ_i (max_j P_ij − τ_i)⁺, what imputation ranks by.

XTR (Lee et al. 2023, Eq. 4) imputes m_i, the k'-th similarity of query token i in the corpus, where the token
retrieved nothing of a document. With exact search that is f = (1/n) Σ_i max(M_i, m_i), M_i = max_j P_ij, and
f − (1/n) Σ_i m_i = (1/n) Σ_i (M_i − m_i)⁺: the excess over a quantile of the corpus. This module derives, for
background similarities with exponential tails, which floor is best and what a quantile makes of frequent
tokens. The laws are our own; `theory/claims/imputation.py` checks them by simulation.

The model of one query token, from `log_likelihood_ratio` on: a document's M is a + s·E with an exponential E
of mean 1; in a relevant document, with probability π, it is a match, a + s₁·E with s₁ > s. Frequent tokens
have a larger a: the maximum of L similarities of which a share p is in the tail begins near a = μ + s ln(pL).
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import digamma, logit, polygamma

from theory import checks
from theory.checks import Array


def excess(maxima: ArrayLike, floors: ArrayLike) -> Array:
    """(1/n) Σ_i (M_i − τ_i)⁺ for every document, [C].

    maxima: M [n, C], each query token's largest similarity to each document. floors: τ [n].
    """
    M = checks.vector(maxima, "maxima", axes=2, nonzero=False)
    floor = checks.vector(floors, "floors", axes=1, nonzero=False)
    if floor.shape != M.shape[:1]:
        raise ValueError(f"floors has shape {floor.shape}; allowed: one number for each of {len(M)} rows")
    return np.maximum(M - floor[:, None], 0).mean(0)


def floor_moments(k: int, n: int, location: float = 0.0, scale: float = 1.0) -> tuple[float, float]:
    """E τ = a + s(ψ(n+1) − ψ(k)) and Var τ = s²(ψ'(k) − ψ'(n+1)) of the k-th largest of n values a + s·E.

    E is exponential of mean 1 (Rényi's representation). For 1 ≪ k ≪ n, E τ is near a + s ln(n/k), with a
    standard error of about s/√k: a floor from a sample of the corpus is nearly as good if k/n stays. Of n
    similarities of which only a share p reaches the tail, n is pn: the floor grows by s for each unit that
    ln p, minus the token's IDF, grows. Raises ValueError unless 1 ≤ k ≤ n.
    """
    count = int(checks.whole(n, "n"))
    rank = int(checks.whole(k, "k", most=count))
    spread = float(checks.positive(scale, "scale"))
    mean = location + spread * (digamma(count + 1) - digamma(rank))
    return float(mean), float(spread**2 * (polygamma(1, rank) - polygamma(1, count + 1)))


def mixture_floor(share: ArrayLike, shares: ArrayLike, locations: ArrayLike, scales: ArrayLike) -> float:
    """τ with Σ_c p_c exp(−(τ − a_c)⁺/s_c) = k/n: the floor in a mixture of tails, as of matches and the rest.

    share: k/n in (0, Σ p_c). shares, locations, scales: one number for each c. While a token's own matches
    are far fewer than k, τ is that of the rest: imputation clips IDF at the documents that k' tokens come
    from. A share p < k/n of matches above τ raises it by −s ln(1 − pn/k), without bound as pn nears k. Raises
    ValueError if the shares are not positive or do not exceed k/n together, or if their number is not that of
    the locations and scales.
    """
    p = checks.positive(shares, "shares")
    a = checks.vector(locations, "locations", axes=1, nonzero=False)
    s = checks.positive(scales, "scales")
    if not p.shape == a.shape == s.shape:
        raise ValueError(
            f"shares, locations and scales have shapes {p.shape}, {a.shape}, {s.shape}; allowed: one"
        )
    target = float(checks.positive(share, "share"))
    if target >= p.sum():
        raise ValueError(f"share = {target:g}; allowed: less than the sum of the shares, {p.sum():g}")
    upper = float(np.max(a + s * np.log(p.size * p / target).clip(0)))
    lower = float(a.min())

    def above(floor: float) -> float:
        return float((p * np.exp(-np.maximum(floor - a, 0) / s)).sum() - target)

    return lower if above(lower) <= 0 else float(brentq(above, lower, upper + 1e-9, xtol=1e-13))


def log_likelihood_ratio(
    maximum: ArrayLike, location: ArrayLike, scale: ArrayLike, match_scale: ArrayLike, match: ArrayLike
) -> Array:
    """ln of M's density in relevant over other documents = ln(1−π) + softplus((M − τ*)/t), 1/t = 1/s − 1/s₁.

    τ* is `best_floor`. Since x⁺ ≤ softplus(x) ≤ x⁺ + ln 2, the excess over τ*, in units of t and summed over
    independent query tokens, is the log-likelihood ratio up to a constant and at most n ln 2. By the lemma of
    Neyman and Pearson nothing else that reads the maxima ranks better. All arguments broadcast; M ≥ a.
    Raises ValueError unless 0 < s < s₁ and 0 < π < 1.
    """
    s, s1 = _scales(scale, match_scale)
    pi = checks.probability(match, "match")
    steps = (np.asarray(maximum) - best_floor(location, s, s1, pi)) * (1 / s - 1 / s1)
    return np.asarray(np.log1p(-pi) + np.logaddexp(0, steps))


def best_floor(location: ArrayLike, scale: ArrayLike, match_scale: ArrayLike, match: ArrayLike) -> Array:
    """τ* = a + t(ln(s₁/s) − logit π): the similarity from which on a match is more likely than none.

    All arguments broadcast. τ* may lie below a, where every document exceeds it and the floor acts on none.
    Raises ValueError unless 0 < s < s₁ and 0 < π < 1.
    """
    s, s1 = _scales(scale, match_scale)
    odds = logit(checks.probability(match, "match"))
    return np.asarray(np.asarray(location) + (np.log(s1 / s) - odds) / (1 / s - 1 / s1))


def best_share(scale: ArrayLike, match_scale: ArrayLike, match: ArrayLike) -> float | Array:
    """P(M > τ*) = min(1, (s/s₁ · π/(1−π))^(s₁/(s₁−s))): the share of other documents beyond the best floor.

    It contains neither a nor the number of documents: one quantile serves rare and frequent tokens, and k'
    has to grow in proportion to the corpus. Tokens of another scale or match probability need another share
    and weights 1/t. Of floors without a soft edge the best is lower than τ*: the ratio is not flat below it.
    All arguments broadcast; scalars give a float. Raises the same errors as `best_floor`.
    """
    s, s1 = _scales(scale, match_scale)
    odds = logit(checks.probability(match, "match"))
    return checks.plain(np.exp(np.minimum(s1 / (s1 - s) * (odds - np.log(s1 / s)), 0)))


def _scales(scale: ArrayLike, match_scale: ArrayLike) -> tuple[Array, Array]:
    s = checks.positive(scale, "scale")
    s1 = checks.positive(match_scale, "match_scale")
    if np.any(s1 <= s):
        raise ValueError("match_scale must exceed scale: allowed: matches with a heavier tail")
    return s, s1
