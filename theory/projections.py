"""How often does a random projection A to k dimensions swap two documents, and how large must k be?

Luan, Eisenstein, Toutanova, Collins, "Sparse, Dense, and Attentional Representations for Text Retrieval",
TACL 2021, section 2. The query q scores documents by ⟨q, d⟩, and after the projection by ⟨Aq, Ad⟩. A is k × v
with independent entries, N(0, 1/k) ("gaussian") or ±1/√k ("rademacher"). Notation: δ = d1 − d2, bars mark
unit vectors, ε = ⟨q̄, δ̄⟩ is the normalized margin, and h(ε) = ε²/2 − ε³/3. A ranking error is
⟨Aq, Ad1⟩ ≤ ⟨Aq, Ad2⟩ for a pair with ε > 0. A tie counts as an error; its probability is 0 for Gaussian A,
but not for Rademacher A.

The bounds come from the paper. The exact laws are derived here: given Aq, the rows of A restricted to the
orthogonal complement of q are still independent Gaussians, so a Gaussian error is an event about one Student
variable.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

from theory import checks
from theory.checks import Array

Ensemble = Literal["gaussian", "rademacher"]

# Gauss-Laguerre nodes for the deep tail, where the integrand is analytic in a wide region around the origin.
_LAGUERRE_NODES, _LAGUERRE_WEIGHTS = np.polynomial.laguerre.laggauss(40)
_DEEP = 1e-290
_SCAN_LIMIT = 10_000_000  # dimensions


def normalized_margin(query: Any, better: Any, worse: Any) -> Any:
    """μ(q, d1, d2) = ⟨q, d1 − d2⟩ / (‖q‖ ‖d1 − d2‖): the cosine that decides how easily a pair is swapped.

    The margin (Definition 2.1) is positive if `better` scores higher and negative if `better` scores lower.
    Scaling q or δ does not change the margin; q → Sq, d → S⁻¹d does, although every score stays the same.
    query, better and worse are [..., v] and broadcast against each other; the result is [...]. Raises
    ValueError for a zero query, equal documents, or numbers that are not finite.
    """
    query, difference = _query_and_difference(query, better, worse)
    cosine = np.sum(query * difference, axis=-1)
    cosine = cosine / (np.linalg.norm(query, axis=-1) * np.linalg.norm(difference, axis=-1))
    return checks.plain(np.clip(cosine, -1.0, 1.0))


def _query_and_difference(query: Any, better: Any, worse: Any) -> tuple[Array, Array]:
    """Check q and δ, and scale them by powers of two, so that squares are finite and ties stay exact."""
    query = checks.vector(query, "query")
    better, worse = (checks.vector(x, n, nonzero=False) for x, n in ((better, "better"), (worse, "worse")))
    try:
        np.broadcast_shapes(query.shape, better.shape, worse.shape)
    except ValueError as error:
        raise ValueError(
            f"query {query.shape}, better {better.shape} and worse {worse.shape} do not fit; "
            "allowed: [..., v], broadcasting against each other"
        ) from error
    difference = better - worse
    if not np.any(difference != 0, axis=-1).all():
        raise ValueError("better and worse are equal; allowed: two different documents (d1 ≠ d2)")
    q, delta = (np.ldexp(x, -np.frexp(np.abs(x).max(-1, keepdims=True))[1]) for x in (query, difference))
    return q, delta


def distortion(margin: ArrayLike) -> Any:
    """h(ε) = ε²/2 − ε³/3: the rate in the exponent of the paper's bounds (Eq. 1)."""
    margin = checks.margins(margin)
    return checks.plain(margin**2 * (0.5 - margin / 3))


def pairwise_error_bound(k: ArrayLike, margin: ArrayLike, constant: float = 4) -> Any:
    """P(error) ≤ c · exp(−(k/2) h(ε)), for both ensembles, with ties counted as errors.

    Lemma 1 is printed with c = 4. c = 2 (`constant=2`) holds as well, because a ranking error is a one-sided
    deviation. For Gaussian A, c = ½ holds too, because p ≤ ½(1−ε²)^{k/2} and ln(1−ε²) ≤ −h(ε). The bound is
    not clipped; above 1 it is vacuous. k and margin broadcast.
    """
    k, constant = checks.dimensions(k), float(checks.positive(constant, "constant"))
    return checks.plain(constant * np.exp(-0.5 * k * distortion(margin)))


def pairwise_error(k: ArrayLike, margin: ArrayLike) -> Any:
    """p(k, ε) = P(t_k > √k ε / √(1 − ε²)): the exact error of a Gaussian projection.

    p equals ½ I_{1−ε²}(k/2, ½). The result is accurate down to the smallest normal float64; for smaller
    errors use `log_pairwise_error`. Real k ≥ 1 are allowed. k and margin broadcast.
    """
    k, margin = checks.dimensions(k), checks.margins(margin)
    with np.errstate(divide="ignore"):
        return checks.plain(special.stdtr(k, -margin * np.sqrt(k / ((1 - margin) * (1 + margin)))))


def _log_squared_sine(margin: Array) -> Array:
    """ln(1 − ε²) without cancellation for ε near 0 or 1."""
    with np.errstate(divide="ignore"):
        return np.where(margin < 0.7, np.log1p(-(margin**2)), np.log((1 - margin) * (1 + margin)))


def log_pairwise_error(k: ArrayLike, margin: ArrayLike) -> Any:
    """Compute ln p(k, ε) for the exact Gaussian error p, even if p is far below the smallest float64.

    For p < 1e-290, the result is computed by quadrature of
    p = (1−ε²)^{k/2} / (k B(k/2, ½)) · ∫₀^∞ e^{−w} dw / √(1 − (1−ε²) e^{−2w/k}).
    ε = 1 gives −inf. k and margin broadcast.
    """
    k, margin = np.broadcast_arrays(checks.dimensions(k), checks.margins(margin))
    error = np.asarray(pairwise_error(k, margin))
    deep = error < _DEEP
    with np.errstate(divide="ignore"):
        result = np.log(error)
        if deep.any():
            n = k[deep]
            log_sine = _log_squared_sine(margin[deep])
            root = np.sqrt(-np.expm1(log_sine[..., None] - 2 * _LAGUERRE_NODES / n[..., None]))
            integral = np.sum(_LAGUERRE_WEIGHTS / root, axis=-1)
            result = np.asarray(result)
            result[deep] = 0.5 * n * log_sine - np.log(n) - special.betaln(0.5 * n, 0.5) + np.log(integral)
    return checks.plain(result)


def _exact_real(margin: Array, beta: Array) -> Array:
    margin, beta = np.broadcast_arrays(margin, beta)

    def excess(k: Array, margin: Array = margin, beta: Array = beta) -> Array:
        return np.asarray(log_pairwise_error(k, margin)) - np.log(beta)

    # p ≤ ½ (1−ε²)^{k/2} bounds the root from above; the approximation mostly lies within 1 of it.
    with np.errstate(divide="ignore"):
        most = np.maximum(1.0, -2 * np.log(np.maximum(1.0, 0.5 / beta)) / _log_squared_sine(margin))
    guess = np.clip(_approximation(margin, beta), 1.0, most)
    low = np.maximum(guess - 1, 1.0)
    high = np.minimum(guess + 1, most)
    low, high = np.where(excess(low) > 0, low, 1.0), np.where(excess(high) <= 0, high, most)
    with np.errstate(invalid="ignore"):  # ln 0 at ε = 1
        root = elementwise.find_root(excess, (low, high), args=(margin, beta)).x
    return np.where(excess(low) <= 0, low, root)


def _exact(margin: Array, beta: Array) -> Array:
    root = _exact_real(margin, beta)
    # The root's last digits are uncertain, so the law itself decides the whole number.
    below = np.maximum(1.0, np.round(root))
    enough = np.asarray(pairwise_error(below, margin)) <= beta
    return np.where(enough, below, np.maximum(np.ceil(root), below + 1))


def _approximation(margin: Array, beta: Array) -> Array:
    z_squared = special.ndtri(beta) ** 2
    return np.asarray(z_squared * (1 - margin**2) / margin**2 + (z_squared + 1) / 2)


METHODS: dict[str, Callable[[Array, Array], Array]] = {
    "exact": _exact,
    "exact_real": _exact_real,
    "approximation": _approximation,
    "lemma1": lambda margin, beta: np.asarray(2 / distortion(margin) * np.log(4 / beta)),
    "corollary1": lambda margin, beta: np.asarray(12 / margin**2 * np.log(4 / beta)),
}


def required_dimension(margin: ArrayLike, beta: ArrayLike = 0.05, method: str = "exact") -> Any:
    """Return the k at which a pair with margin ε is swapped with probability at most β.

    "exact": the smallest whole k with p(k, ε) ≤ β for a Gaussian projection (this is the paper's k*).
    "exact_real": the real k ≥ 1 with p(k, ε) = β, or 1 if p(1, ε) ≤ β; use this for ratios and slopes.
    "approximation": z²(1−ε²)/ε² + (z²+1)/2, z = Φ⁻¹(1−β), β < ½. Its error in k at β = .05 is under .01 for ε
    ≤ .1, .06 at ε = .4 and up to .92 beyond, where k cannot fall below 1; the error at β = .01 and ε = .4 is
    .09. Near β = ½ the approximation falls below 1, by up to ½.
    "lemma1": 2 ln(4/β) / h(ε), Eq. 2: every k at or above this value suffices, for both ensembles.
    "corollary1": 12 ε⁻² ln(4/β), weaker than Eq. 2. The printed strict inequality is not needed.
    The last three methods return real thresholds that are not rounded. margin and beta broadcast.
    """
    if method not in METHODS:
        raise ValueError(f"method = {method!r}; allowed: {', '.join(METHODS)}")
    beta = checks.probability(beta)
    if method == "approximation" and not np.all(beta < 0.5):
        raise ValueError(f"beta = {np.max(beta):.6g} with method 'approximation'; allowed: in (0, 0.5)")
    return checks.plain(METHODS[method](checks.margins(margin), beta))


def boolean_margin(query_terms: ArrayLike, document_terms: ArrayLike) -> Any:
    """ε = 1/√(2 L_Q L_D): the smallest positive margin of Boolean vectors with at most L_Q and L_D terms.

    Proof of Corollary 2 (A.4): scores differ by at least 1, ‖q‖² ≤ L_Q, ‖δ‖² ≤ 2 L_D. Two documents without
    a common term attain ε if one contains a single query term and the other contains no query term.
    """
    product = 2 * checks.whole(query_terms, "query_terms") * checks.whole(document_terms, "document_terms")
    return checks.plain(1 / np.sqrt(product))


def boolean_required_dimension(
    query_terms: ArrayLike, document_terms: ArrayLike, beta: ArrayLike = 0.05, method: str = "exact"
) -> Any:
    """Return the k that keeps any two Boolean documents in order with probability 1 − β, whatever the margin.

    method: "corollary2", 24 L_Q L_D ln(4/β) as printed, or a method of `required_dimension`, applied to
    `boolean_margin`. The statement covers each pair, not all pairs of a collection at once.
    """
    margin = boolean_margin(query_terms, document_terms)
    return required_dimension(margin, beta, "corollary1" if method == "corollary2" else method)


def rademacher_error_two_sparse(k: ArrayLike, margin: ArrayLike) -> Any:
    """P(error) of a Rademacher projection for q̄ = e1, δ̄ = (ε, √(1−ε²)), exactly.

    A row contributes (ε ± √(1−ε²))/k with equal chance, so the error is a binomial tail. It is not monotone
    in k, and it is zero for ε > 1/√2. k must be whole.
    """
    k, margin = checks.whole(k, "k"), checks.margins(margin)
    with np.errstate(divide="ignore"):
        ratio = margin / np.sqrt(1 - margin**2)
    # An error means that the number B of plus signs satisfies 2B − k ≤ −k ε/√(1−ε²).
    limit = 0.5 * k * np.maximum(1 - ratio, -1.0)
    nearest = np.round(limit)
    tied = np.abs(limit - nearest) <= 1e-12 * k
    most = np.where(tied, nearest, np.floor(limit))
    return checks.plain(np.where(most < 0, 0.0, special.bdtr(np.maximum(most, 0), k.astype(np.int64), 0.5)))


def rademacher_required_dimension(
    margin: float, beta: float = 0.05, definition: Literal["first", "stable"] = "stable"
) -> int:
    """Return k*, the dimension for an error of at most β, for the pair of `rademacher_error_two_sparse`.

    The error is not monotone in k, so there are two definitions: "first", the smallest k with error ≤ β; or
    "stable", the smallest k such that the error is ≤ β at this k and all larger ones, as in bounds of the
    form "every k ≥ ... suffices". Ties count as errors. Arguments are scalars. Every k is tried up to
    2 ln(1/β)(1−ε²)/ε², beyond which Hoeffding's inequality gives error ≤ β. Raises ValueError if there are
    more than 10,000,000 of these.
    """
    if definition not in ("first", "stable"):
        raise ValueError(f"definition = {definition!r}; allowed: first, stable")
    epsilon = float(checks.margins(margin))
    level = float(checks.probability(beta))
    last = int(np.ceil(max(1.0, -2 * np.log(level) * (1 - epsilon**2) / epsilon**2)))
    if last > _SCAN_LIMIT:
        raise ValueError(f"margin = {epsilon:.6g} needs a scan of {last} dimensions; allowed: {_SCAN_LIMIT}")
    k = np.arange(1, last + 1)
    good = rademacher_error_two_sparse(k, epsilon) <= level
    if definition == "first":
        return int(k[np.argmax(good)])
    return 1 if good.all() else int(k[~good][-1]) + 1


def simulated_error(
    k: int,
    query: ArrayLike,
    better: ArrayLike,
    worse: ArrayLike,
    *,
    ensemble: Ensemble = "rademacher",
    samples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Estimate P(error) from `samples` explicit k × v projections; return (estimate, standard error).

    Coordinates in which q and δ are both zero do not matter and are not drawn. Rademacher entries are ±1, so
    vectors of small whole numbers are projected exactly, and ties are exact. Vectors are [v].
    """
    size = int(checks.whole(k, "k"))
    count = int(checks.whole(samples, "samples", least=2))
    if ensemble not in ("gaussian", "rademacher"):
        raise ValueError(f"ensemble = {ensemble!r}; allowed: gaussian, rademacher")
    q, delta = _query_and_difference(query, better, worse)
    pair = np.stack([q, delta], axis=-1)[(q != 0) | (delta != 0)]
    rng = np.random.default_rng(seed)
    errors = 0
    block = max(1, 4_000_000 // (size * len(pair)))
    for start in range(0, count, block):
        shape = (min(block, count - start), size, len(pair))
        rows = rng.standard_normal(shape) if ensemble == "gaussian" else 2.0 * rng.integers(0, 2, shape) - 1
        projected = rows @ pair
        inner = np.sum(projected[..., 0] * projected[..., 1], axis=-1)
        errors += int(np.sum(inner <= 0))
    estimate = errors / count
    return estimate, float(np.sqrt(estimate * (1 - estimate) / count))
