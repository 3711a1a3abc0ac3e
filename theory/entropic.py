"""Entropy-regularised top-k: max sᵀλ + εH(λ) over 1ᵀλ = k, λ ∈ [0,1]^m  (Qian et al. 2022, Eq. 4, 5, 9).

Here H(λ) = −Σ λ_i ln λ_i. The solution is a softmax with a cap, λ_i = min(1, exp((s_i + a)/ε)): the n1
largest scores are capped at 1, and the other scores U share the remaining budget,
λ_U = (k − n1)·softmax(s_U/ε).

In all functions below, scores s are [..., m]. A score of −inf marks padding, which gets λ = 0 and does not
count towards the length. k ≥ 0 and ε > 0 broadcast against the leading axes [...]. If the budget k is at
least the length, λ is 1 on every token. The alignment of Eq. 9 is the same problem per row. Every function
raises ValueError for NaN or +inf scores, a k that is negative or not finite, or an ε that is not positive or
not finite (`hard_top_k` is the limit ε → 0).

Three misprints in the paper are included with corrections: the KKT line has +ε1ᵀλ where the objective has
−ε1ᵀλ, the dual lacks a factor ε, and the "descent" in A.1 ascends.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from theory import checks
from theory.checks import Array


class Solution(NamedTuple):
    """λ = min(1, exp((s + a)/ε)), and quantities for computing derivatives of λ.

    gates [..., m] is λ. shift [...] is a: −inf at k = 0, +inf if all tokens are capped. capped [...] is n1,
    the number of tokens at the cap. free [..., m] marks U.
    """

    gates: Array
    shift: Array
    capped: NDArray[np.int64]
    free: NDArray[np.bool_]


class Iterates(NamedTuple):
    """The values of Eq. 5 after 1, 2, …, T iterations.

    gates: λ, [T, ..., m]. shift: dual variable a, [T, ...]. caps: dual variables b, [T, ..., m].
    """

    gates: Array
    shift: Array
    caps: Array


def solve(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Solution:
    """λ = argmax sᵀλ + εH(λ), 1ᵀλ = k, 0 ≤ λ ≤ 1, exactly, in O(m log m).

    With s in descending order, a(n) = ε[ln(k−n) − LSE_{i>n}(s_(i)/ε)] meets the budget if the n largest
    scores are capped, and n1 is the least n with s_(n+1) + a(n) ≤ 0. This is the exact counterpart of Qian et
    al. 2022, Eq. 5.
    """
    s, budget, temperature = _arguments(scores, k, epsilon)
    x = s / temperature[..., None]
    length = np.isfinite(x).sum(-1)
    descending = -np.sort(-x, axis=-1)
    tails = np.logaddexp.accumulate(descending[..., ::-1], axis=-1)[..., ::-1]  # LSE over i > n, n = 0 … m−1
    n = np.arange(x.shape[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.log(np.maximum(budget[..., None] - n, 0))
        first = (descending + left - tails <= 0).argmax(-1)  # exists if k is below the length
        scaled_shift = np.take_along_axis(left - tails, first[..., None], -1)[..., 0]
    everything = budget >= length
    capped = np.where(everything, length, first)
    scaled_shift = np.where(everything, np.inf, scaled_shift)
    rank = np.argsort(np.argsort(-x, axis=-1, kind="stable"), axis=-1)
    free = (rank >= capped[..., None]) & np.isfinite(x)
    with np.errstate(invalid="ignore"):
        share = np.exp(np.minimum(x + scaled_shift[..., None], 0))
    gates = np.where(free, share, np.isfinite(x).astype(float))
    return Solution(gates, scaled_shift * temperature, capped, free)


def entropic_top_k(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Array:
    """λ [..., m] = argmax sᵀλ + εH(λ), 1ᵀλ = k, 0 ≤ λ ≤ 1; ε = 0 gives the hard limit.

    Qian et al. 2022, Eq. 4 (salience) and, per row, Eq. 9 (alignment). ε may be 0 only for all rows at once.
    """
    if np.all(np.asarray(epsilon) == 0):
        return hard_top_k(scores, k)
    return solve(scores, k, epsilon).gates


def hard_top_k(scores: ArrayLike, k: ArrayLike) -> Array:
    """lim_{ε→0} of the entropic top-k: 1 above the k-th score; tokens at that score share the rest equally.

    For whole k without ties, this is the 0/1 indicator of the k largest scores.
    """
    s, budget, _ = _arguments(scores, k, 1.0)
    real = np.isfinite(s)
    place = np.clip(np.ceil(budget), 1, np.maximum(real.sum(-1), 1)).astype(int) - 1
    threshold = np.take_along_axis(-np.sort(-s, axis=-1), place[..., None], -1)
    above = real & (s > threshold)
    tied = real & (s == threshold)
    left = np.clip(budget - above.sum(-1), 0, None)
    share = np.minimum(left / np.maximum(tied.sum(-1), 1), 1)
    return np.where(above, 1.0, np.where(tied, share[..., None], 0.0))


def jacobian(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Array:
    """J_ij = ∂λ_i/∂s_j = (1/ε)(λ_i 1[i=j] − λ_i λ_j / r) for i, j ∈ U with r = k − n1; 0 elsewhere.

    J is [..., m, m], symmetric and positive semidefinite, and its rows sum to 0. If a score lies exactly at
    the cap, λ is not differentiable; the result is then the derivative for the uncapped score. Autograd
    through the masked softmax with U held fixed gives the same matrix.
    """
    gates, share = _free_gates(scores, k, epsilon)
    temperature = np.asarray(epsilon, dtype=float)[..., None, None]
    diagonal = gates[..., :, None] * np.eye(gates.shape[-1])
    return (diagonal - gates[..., :, None] * share[..., None, :]) / temperature


def budget_gradient(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Array:
    """∂λ/∂k = λ_U / (k − n1) = softmax(s_U/ε), 0 elsewhere: [..., m], sums to 1 unless U is empty.

    At k = 0 this is the right derivative; at k ≥ m it is zero.
    """
    return _free_gates(scores, k, epsilon)[1]


def temperature_gradient(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Array:
    """∂λ/∂ε = −(λ_U/ε²)(s − s̄), s̄ = Σ_U λ_i s_i / (k − n1), 0 elsewhere: [..., m], sums to 0."""
    gates, share = _free_gates(scores, k, epsilon)
    s = np.where(gates > 0, np.asarray(scores, dtype=float), 0.0)  # scores are −inf on padding
    mean = (share * s).sum(-1, keepdims=True)
    return -gates * (s - mean) / np.asarray(epsilon, dtype=float)[..., None] ** 2


def iterate(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike, iterations: int) -> Iterates:
    """Eq. 5, T times from a = b = 0: a ← ε ln k − ε LSE((s+b)/ε), b ← min(−s−a, 0), λ = exp((s+b+a)/ε).

    The iteration is coordinate ascent on the dual (the paper says descent), and all iterates are returned. a
    grows towards the exact shift, so a truncated run undershoots: Σλ_T ≤ k. In terms of w = exp(−a/ε), one
    iteration is w ← (1/k)Σ min(w, e^{s_i/ε}). It converges linearly, at rate n1/k once the capped set is
    right, and is never slower.

    Eq. 5 is followed literally for k ≥ m, too: λ_T only tends to 1, whereas `solve` gives 1 at once.
    iterations must be ≥ 1.
    """
    s, budget, temperature = _arguments(scores, k, epsilon)
    steps = int(checks.whole(iterations, "iterations"))
    shape = (steps, *s.shape)
    gates = np.empty(shape)
    caps = np.empty(shape)
    shift = np.empty(shape[:-1])
    b = np.zeros_like(s)
    with np.errstate(divide="ignore"):
        log_budget = np.log(budget)
        for step in range(steps):
            total = np.logaddexp.reduce((s + b) / temperature[..., None], axis=-1)
            a = temperature * (log_budget - np.where(np.isneginf(total), 0.0, total))  # ε ln k for padding
            b = np.where(np.isfinite(s), np.minimum(-s - a[..., None], 0), 0.0)
            gates[step] = np.exp((s + b + a[..., None]) / temperature[..., None])
            caps[step], shift[step] = b, a
    return Iterates(gates, shift, caps)


def convergence_rate(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Array:
    """ρ = n1/k [...]: the factor by which each iteration of Eq. 5 eventually shrinks exp((a* − a)/ε) − 1.

    The rate is derived here: an iteration is a concave, piecewise linear function of w (see `iterate`), with
    slope n1/k at the fixed point, where n1 tokens are capped. Raises ValueError unless 0 < k < m.
    """
    s, budget, _ = _arguments(scores, k, epsilon)
    if not np.all((budget > 0) & (budget < np.isfinite(s).sum(-1))):
        raise ValueError(f"k = {k!r} has no rate; allowed: 0 < k < the number of real scores")
    return solve(scores, k, epsilon).capped / budget


def sufficient_iterations(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike, tolerance: float) -> Array:
    """T with Σλ_T ≥ (1 − tolerance)k for Eq. 5: T = 1 + ⌈ln(e_1/tolerance) / ln(k/n1)⌉, [...].

    T follows from 1 − Σλ_T/k ≤ e_T ≤ (n1/k)^{T−1} e_1, with e_t = exp((a* − a_t)/ε) − 1. The first excess
    e_1 = exp((a* − a_1)/ε) − 1 grows exponentially with the spread of s over ε, so “a few iterations” suffice
    only if scores lie within a few ε of one another. Raises the errors of `convergence_rate`, and ValueError
    unless 0 < tolerance < 1.
    """
    allowed = checks.probability(tolerance, "tolerance")
    rate = np.asarray(convergence_rate(scores, k, epsilon))
    gap = solve(scores, k, epsilon).shift - iterate(scores, k, epsilon, 1).shift[0]
    scaled = np.maximum(gap / np.asarray(epsilon, dtype=float), np.finfo(float).tiny)
    log_excess = scaled + np.log(-np.expm1(-scaled))  # ln(e^x − 1) without overflow
    with np.errstate(divide="ignore"):
        steps = (log_excess - np.log(allowed)) / -np.log(rate)
    return 1 + np.ceil(np.maximum(steps, 0))


def primal(scores: ArrayLike, gates: ArrayLike, epsilon: ArrayLike) -> Array:
    """sᵀλ + εH(λ) [...], the objective of Eq. 4, with 0 ln 0 = 0, for gates λ ≥ 0, [..., m]."""
    s, _, temperature = _arguments(scores, 0, epsilon)
    weights = np.asarray(gates, dtype=float)
    linear = np.where(np.isfinite(s), s, 0.0) * weights
    return (linear - temperature[..., None] * xlogy(weights, weights)).sum(-1)


def dual(
    scores: ArrayLike,
    k: ArrayLike,
    epsilon: ArrayLike,
    shift: ArrayLike,
    caps: ArrayLike,
    factor: ArrayLike | None = None,
) -> Array:
    """g(a, b) = ka + 1ᵀb − ε 1ᵀexp((s+a+b)/ε) [...], to be maximised over a ∈ ℝ, b ≤ 0.

    Qian et al. 2022, A.1, with the factor ε in the last term, which follows from substituting λ. At the
    optimum, −g − εk equals the primal. shift: a, [...]. caps: b, [..., m]. factor: a value to use instead of
    ε for this factor. The paper prints the dual with factor 1: its maximiser over a has Σλ = εk instead of k,
    and Eq. 5 does not ascend it.
    """
    s, budget, temperature = _arguments(scores, k, epsilon)
    a = np.asarray(shift, dtype=float)
    b = np.asarray(caps, dtype=float)
    weights = np.exp((s + a[..., None] + b) / temperature[..., None])
    return budget * a + b.sum(-1) - np.asarray(epsilon if factor is None else factor) * weights.sum(-1)


def stationarity(
    scores: ArrayLike, gates: ArrayLike, epsilon: ArrayLike, shift: ArrayLike, caps: ArrayLike
) -> Array:
    """∂/∂λ of the Lagrangian −sᵀλ − εH(λ) − ε1ᵀλ + a(k − 1ᵀλ) + bᵀ(1 − λ) = −s + ε ln λ − a − b, [..., m].

    This is the KKT line of Qian et al. 2022, A.1, with the sign of Eq. 6. The derivative is 0 at the solution
    λ = exp((s+a+b)/ε), where the printed sign +ε1ᵀλ gives 2ε. scores and gates: finite, [..., m], with
    gates > 0. shift: a, [...]. caps: b, [..., m].
    """
    s = checks.vector(scores, "scores", nonzero=False)
    weights = checks.positive(gates, "gates")
    temperature = checks.positive(epsilon, "epsilon")[..., None]
    return -s + temperature * np.log(weights) - np.asarray(shift)[..., None] - np.asarray(caps)


def _free_gates(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> tuple[Array, Array]:
    """Return λ on U and softmax(s_U/ε), each token's share of the remaining budget; both are 0 outside U."""
    solution = solve(scores, k, epsilon)
    s, _, temperature = _arguments(scores, k, epsilon)
    x = np.where(solution.free, s / temperature[..., None], -np.inf)
    top = x.max(-1, keepdims=True)
    weights = np.exp(x - np.where(np.isfinite(top), top, 0.0))
    share = weights / np.maximum(weights.sum(-1, keepdims=True), 1.0)  # the largest is 1 unless U is empty
    return np.where(solution.free, solution.gates, 0.0), share


def _arguments(scores: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> tuple[Array, Array, Array]:
    """Check s, k and ε. Return s with padding set to −inf, and all three with the same leading axes."""
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim == 0 or s.shape[-1] == 0:
        raise ValueError(f"scores has shape {s.shape}; allowed: [..., m] with m of at least 1")
    if np.isnan(s).any() or np.isposinf(s).any():
        raise ValueError("scores contains NaN or +inf; allowed: finite numbers, and -inf for padding")
    budget = np.asarray(k, dtype=np.float64)
    if not np.all((budget >= 0) & np.isfinite(budget)):
        raise ValueError(f"k = {k!r}; allowed: finite and at least 0")
    temperature = checks.positive(epsilon, "epsilon")
    try:
        lead = np.broadcast_shapes(s.shape[:-1], budget.shape, temperature.shape)
    except ValueError as error:
        raise ValueError(
            f"k {budget.shape} and epsilon {temperature.shape} do not broadcast against the leading axes of "
            f"scores {s.shape}"
        ) from error
    return (
        np.broadcast_to(s, (*lead, s.shape[-1])),
        np.broadcast_to(budget, lead),
        np.broadcast_to(temperature, lead),
    )
