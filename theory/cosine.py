"""How often does a random projection swap two documents that are ranked by cosine, and how large must k be?

Users renormalise after a projection, so cos(Aq, Ad) matters, not ⟨Aq, Ad⟩ (`theory.projections`). For
Gaussian A, the error P(cos(Aq, Ad1) ≤ cos(Aq, Ad2)) depends only on k, on the cosines ρ₁ = cos(q, d1) and
ρ₂ = cos(q, d2) < ρ₁, and on ρ₁₂ = cos(d1, d2). The three projected vectors are k independent draws from a
normal law in R³, so the projected cosines are sample correlations about a known mean, with a variable in
common, and the event concerns a 3 × 3 Wishart matrix. The asymptotic law is due to Pearson and Filon 1898
(Φ with the variance V below; for projections also Tadić, Becker and Neville 2024, arXiv:2404.10148). The
one-dimensional integral is derived here.

Derivation. Let G be the ratio of the lengths of Ad2 and Ad1 outside Aq, each divided by the expected scale
√(1−ρᵢ²). Given G, the documents are ordered like the inner products of q with G·d1/√(1−ρ₁²) and d2/√(1−ρ₂²),
whose error follows Student's law (`theory.projections.pairwise_error`). By Pitman 1939 and Morgan 1939,
sinh ln G is √((1−r²)/(k−1)) times a Student variable with k − 1 degrees of freedom, where r is the partial
correlation (ρ₁₂−ρ₁ρ₂)/√((1−ρ₁²)(1−ρ₂²)), and G is independent of all components along Aq. With
cᵢ = ρᵢ/√(1−ρᵢ²):

    P(error) = E_x T_k(−√k (c₁e^{x/2} − c₂e^{−x/2}) / √(2 cosh x − 2r)),    sinh x = √(1−r²) sinh w,

where w has a density ∝ cosh^{1−k} w, and T_k is Student's distribution function. ρ₁, ρ₂, ρ₁₂ and k broadcast.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

from theory import checks
from theory.checks import Array
from theory.projections import log_pairwise_error
from theory.recall import markov_union

# nodes, zooms and kept range of logarithms, for the integral
_POINTS = 320
_ROUNDS = 4
_FALL = 45.0


class Cosines(NamedTuple):
    """ρ₁ = cos(q, d1), ρ₂ = cos(q, d2) and ρ₁₂ = cos(d1, d2)."""

    better: Any
    worse: Any
    between: Any


def cosines(query: ArrayLike, better: ArrayLike, worse: ArrayLike) -> Cosines:
    """Return the cosines between a query, a better and a worse document; all are [..., v] and broadcast."""
    q, first, second = (
        checks.vector(x, name) / np.linalg.norm(np.asarray(x, dtype=np.float64), axis=-1, keepdims=True)
        for x, name in ((query, "query"), (better, "better"), (worse, "worse"))
    )
    pairs = ((q, first), (q, second), (first, second))
    return Cosines(*(checks.plain(np.clip((a * b).sum(-1), -1, 1)) for a, b in pairs))


def cosine_error(k: ArrayLike, better: ArrayLike, worse: ArrayLike, between: ArrayLike) -> Any:
    """P(cos(Aq, Ad1) ≤ cos(Aq, Ad2)) under a Gaussian projection to k ≥ 2 dimensions, exactly.

    better, worse, between: ρ₁ > ρ₂ and ρ₁₂, the cosines of three vectors (`cosines`). Real k are allowed.
    """
    return checks.plain(np.exp(log_cosine_error(k, better, worse, between)))


def log_cosine_error(k: ArrayLike, better: ArrayLike, worse: ArrayLike, between: ArrayLike) -> Any:
    """Compute ln of `cosine_error`, even if the error is far below the smallest float64; −inf if ρ₁ = 1.

    The trapezoidal rule is applied in w, on a range narrowed to where the integrand is not negligible.
    """
    k, first, second, cross = np.broadcast_arrays(checks.dimensions(k), *_cosines(better, worse, between))
    if not np.all(k >= 2):
        raise ValueError(f"k = {np.min(k):.6g}; allowed: at least 2, since cosines in one dimension are ±1")
    sines = np.sqrt((1 - first) * (1 + first)), np.sqrt((1 - second) * (1 + second))
    with np.errstate(divide="ignore", invalid="ignore"):
        c = first / sines[0], second / sines[1]
        partial = np.clip(np.nan_to_num((cross - first * second) / (sines[0] * sines[1])), -1, 1)
    result = np.full(k.shape, -np.inf)
    inside = (sines[0] > 0) & (sines[1] > 0)  # otherwise d1 = q or d2 = −q, and the pair is never swapped
    if inside.any():
        result[inside] = _integral(k[inside], c[0][inside], c[1][inside], partial[inside])
    return checks.plain(result)


def _integral(k: Array, first: Array, second: Array, partial: Array) -> Array:
    n = k - 1
    outside = np.sqrt((1 - partial) * (1 + partial))
    normaliser = special.betaln(n / 2, 0.5)

    def log_density(w: Array) -> Array:
        """ln of the integrand (module docstring) at w [points, pairs]."""
        x = np.arcsinh(outside * np.sinh(w))
        # 2 cosh x − 2r = 4 sinh²(x/2) + 2(1 − r), without cancellation
        length = np.sqrt(4 * np.sinh(x / 2) ** 2 + 2 * (1 - partial))
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (first * np.exp(x / 2) - second * np.exp(-x / 2)) / length
        z = np.nan_to_num(z, nan=0.0, posinf=1e150, neginf=-1e150)
        # T_k(−√k z) is the error of a pair with the margin |z|/√(1+z²), or one minus this error for z < 0.
        swapped = log_pairwise_error(k, np.clip(np.abs(z) / np.sqrt(1 + z**2), 1e-150, 1))
        student = np.where(z >= 0, swapped, np.log1p(-np.exp(swapped)))
        log_cosh = np.abs(w) + np.log1p(np.exp(-2 * np.abs(w))) - np.log(2)
        return student - n * log_cosh - normaliser

    # The density of w falls by a factor e^−800 within this range.
    reach = np.arccosh(np.exp(np.minimum(800 / n, 300))) + 1
    low = -reach
    high = reach
    steps = np.linspace(0, 1, _POINTS)[:, None]
    for _ in range(_ROUNDS):
        w = low + (high - low) * steps
        values = log_density(w)
        inside = values > values.max(0) - _FALL
        first_kept = inside.argmax(0)
        last_kept = _POINTS - 1 - inside[::-1].argmax(0)
        columns = np.arange(w.shape[1])
        low = w[np.maximum(first_kept - 1, 0), columns]
        high = w[np.minimum(last_kept + 1, _POINTS - 1), columns]
    w = low + (high - low) * steps
    values = log_density(w)
    return np.asarray(special.logsumexp(values, axis=0) + np.log((high - low) / (_POINTS - 1)))


def asymptotic_cosine_error(k: ArrayLike, better: ArrayLike, worse: ArrayLike, between: ArrayLike) -> Any:
    """Φ(−√k (ρ₁−ρ₂)/√V), V = (1−ρ₁²)² + (1−ρ₂²)² − 2c: the limit for small ρ₁ − ρ₂ and large k.

    c = ½(2ρ₁₂ − ρ₁ρ₂)(1 − ρ₁² − ρ₂² − ρ₁₂²) + ρ₁₂³ (Pearson and Filon 1898). The law is inaccurate in
    the deep tail, where it ignores large deviations.
    """
    k, first, second, cross = np.broadcast_arrays(checks.dimensions(k), *_cosines(better, worse, between))
    c = 0.5 * (2 * cross - first * second) * (1 - first**2 - second**2 - cross**2) + cross**3
    V = (1 - first**2) ** 2 + (1 - second**2) ** 2 - 2 * c
    with np.errstate(divide="ignore"):
        return checks.plain(special.ndtr(-np.sqrt(k) * (first - second) / np.sqrt(np.maximum(V, 0))))


def cosine_recall_bound(k: ArrayLike, better: ArrayLike, worse: ArrayLike, between: ArrayLike, r: int) -> Any:
    """P(R ≥ r) ≤ min_{0≤s<r} Σ_{i>s} p_i / (r − s), where p_i is the i-th largest of n errors `cosine_error`.

    R counts the rivals whose cosine is at least the best document's after a projection to k dimensions, which
    all documents share. The mean of R is exactly Σ p_i, and the best document has rank R + 1. better: ρ₁.
    worse, between [n]: ρ₂ and ρ₁₂ of each rival. `theory.collection.cosine_lost` simulates the probability
    itself.
    """
    rivals, cross = np.broadcast_arrays(checks.vector(worse, "worse", axes=1, nonzero=False), between)
    rank = int(checks.whole(r, "r", most=len(rivals)))
    errors = cosine_error(checks.dimensions(k)[..., None], better, rivals, cross)
    return checks.plain(markov_union(np.asarray(errors), rank))


def required_cosine_dimension(
    better: ArrayLike, worse: ArrayLike, between: ArrayLike, beta: ArrayLike = 0.05
) -> Any:
    """Return the smallest whole k ≥ 2 at which `cosine_error` is at most β.

    better, worse, between: ρ₁ > ρ₂ and ρ₁₂, which broadcast with beta.
    """
    first, second, cross, level = np.broadcast_arrays(
        *_cosines(better, worse, between), checks.probability(beta)
    )

    def excess(k: Array, first: Array, second: Array, cross: Array, level: Array) -> Array:
        return np.asarray(log_cosine_error(k, first, second, cross)) - np.log(level)

    arguments = first, second, cross, level
    low = np.full(first.shape, 2.0)
    high = np.full(first.shape, 4.0)
    while np.any(short := excess(high, *arguments) > 0):
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    at_once = excess(low, *arguments) <= 0
    with np.errstate(invalid="ignore"):
        root = np.where(at_once, low, elementwise.find_root(excess, (low, high), args=arguments).x)
    below = np.maximum(2.0, np.round(root))  # the root's last digits are uncertain
    enough = excess(below, *arguments) <= 0
    return checks.plain(np.where(enough, below, np.maximum(np.ceil(root), below + 1)))


def _cosines(better: ArrayLike, worse: ArrayLike, between: ArrayLike) -> tuple[Array, Array, Array]:
    """Check ρ₁ > ρ₂ and ρ₁₂. Raises ValueError if no three vectors have these cosines."""
    named = {"better": better, "worse": worse, "between": between}
    checked = (checks.interval(x, name, -1, 1) for name, x in named.items())
    first, second, cross = np.broadcast_arrays(*checked)
    if not np.all(first > second):
        raise ValueError("better does not exceed worse; allowed: cos(q, d1) > cos(q, d2)")
    volume = 1 - first**2 - second**2 - cross**2 + 2 * first * second * cross
    if not np.all(volume >= -1e-9):
        raise ValueError(
            "better, worse and between are not the cosines of three vectors; allowed: a Gram matrix"
        )
    return first, second, cross
