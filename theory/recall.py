"""How likely is a random projection to push the best document out of the top r?

Luan et al., TACL 2021, section 2.1.1. A query q has a best document d1 and n competitors d2 with margins
μ(q, d1, d2) > 0 (`theory.projections`). All documents share one k × v projection A. The projection pushes d1
out of the top r exactly if R ≥ r, where R = #{d2 : ⟨Aq, Ad1⟩ ≤ ⟨Aq, Ad2⟩}. Competitors that tie with d1
before the projection (μ = 0) are not covered: leave them out.

Bounds need only the margins. The exact Gaussian law needs the vectors, since competitors err together: given
Aq, the scores of all documents are, up to one common positive factor, χ_k ⟨q̄, d⟩ + ⟨z, d⟩, with z ~ N(0, I)
projected on the complement of q and an independent chi variable χ_k. Let t(d2) = −⟨z, δ⟩ / ⟨q̄, δ⟩, and let
T_r be the r-th largest t. Then R ≥ r if and only if χ_k ≤ T_r, and

    P(R ≥ r) = E_z[ F_{χ²_k}( max(T_r, 0)² ) ].

No k × v matrix is drawn, k enters only through a smooth distribution function, and one sample of vectors z
serves every k and every r. The law is derived here; the bounds eq3 and lemma1_sum come from the paper.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, sparse, special

from theory import checks
from theory.checks import Array
from theory.projections import distortion, pairwise_error, pairwise_error_bound

_BLOCK = 2_000_000


def lemma2_bound(k: ArrayLike, margins: ArrayLike, r: int) -> Any:
    """P(R ≥ r) ≤ 4 (n − r + 1) exp(−(k/2) h(ε)), where ε is the r-th smallest of the n margins [n].

    This is Lemma 2, for both ensembles. The bound is not clipped at 1. Every bound in this module returns an
    array with the shape of k.
    """
    ordered, r = _ordered(margins, r)
    count = len(ordered) - r + 1
    return checks.plain(count * np.asarray(pairwise_error_bound(k, ordered[r - 1])))


def eq3_required_dimension(
    margin: ArrayLike, documents: ArrayLike, r: ArrayLike, beta: ArrayLike = 0.05
) -> Any:
    """k = (2/h(ε)) ln(4 (n − r + 1)/β), Eq. 3: at this real k and above, Lemma 2 gives P(R ≥ r) ≤ β.

    margin: ε, the r-th smallest of n margins. documents: n. All arguments broadcast.
    """
    r, documents = checks.whole(r, "r"), checks.whole(documents, "documents")
    if not np.all(r <= documents):
        raise ValueError(
            f"r = {np.max(r):g}; allowed: at most the number of documents, {np.min(documents):g}"
        )
    count = 4 * (documents - r + 1)
    return checks.plain(2 / distortion(margin) * np.log(count / checks.probability(beta)))


def lemma1_sum_bound(k: ArrayLike, margins: ArrayLike, r: int) -> Any:
    """P(R ≥ r) ≤ Σ_{i≥r} 4 exp(−(k/2) h(μ_(i))), from the proof of Lemma 2, before its last step.

    margins: [n].
    """
    ordered, r = _ordered(margins, r)
    return _per_dimension(lambda n: np.sum(pairwise_error_bound(n, ordered[r - 1 :])), k)


def t_union_bound(k: ArrayLike, margins: ArrayLike, r: int) -> Any:
    """P(R ≥ r) ≤ Σ_{i≥r} p(k, μ_(i)), with the exact Gaussian pairwise error p.

    R ≥ r needs an error outside the r − 1 smallest margins, so the union bound applies. margins: [n].
    """
    ordered, r = _ordered(margins, r)
    return _per_dimension(lambda n: np.sum(pairwise_error(n, ordered[r - 1 :])), k)


def markov_union_bound(k: ArrayLike, margins: ArrayLike, r: int) -> Any:
    """P(R ≥ r) ≤ min_{0≤s<r} Σ_{i>s} p(k, μ_(i)) / (r − s), for Gaussian A; at most the t-union bound.

    R ≥ r needs r − s errors outside the s smallest margins. Markov's inequality bounds the probability of so
    many errors. margins: [n].
    """
    ordered, r = _ordered(margins, r)
    return _per_dimension(lambda n: markov_union(np.asarray(pairwise_error(n, ordered)), r), k)


BOUNDS: dict[str, Callable[[ArrayLike, ArrayLike, int], Any]] = {
    "eq3": lemma2_bound,
    "lemma1_sum": lemma1_sum_bound,
    "t_union": t_union_bound,
    "markov_union": markov_union_bound,
}


def required_dimension_recall(
    margins: ArrayLike, r: int, beta: float = 0.05, method: str = "markov_union"
) -> float:
    """Return the real k ≥ 1 at which a bound on P(R ≥ r), computed from the n margins [n], falls to β.

    method: "eq3" (the paper's bound), "lemma1_sum", "t_union" and "markov_union" give smaller and smaller k,
    all sufficient for Gaussian A; the k of "eq3" and "lemma1_sum" is also sufficient for Rademacher A. The
    result is 1 if k = 1 suffices. `required_dimension_recall_exact` gives the k of the exact law.
    """
    if method not in BOUNDS:
        raise ValueError(f"method = {method!r}; allowed: {', '.join(BOUNDS)}")
    ordered, r = _ordered(margins, r)
    log_beta = np.log(checks.probability(beta))
    high = max(1.0, eq3_required_dimension(ordered[r - 1], len(ordered), r, beta))
    if method == "eq3":
        return high

    def excess(k: float) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(BOUNDS[method](k, ordered, r)) - log_beta)

    return _root(excess, high * (1 + 1e-12))  # for one margin, the bound's root is `high` itself


def rank_thresholds(gains: ArrayLike, noise: ArrayLike, ranks: Sequence[int]) -> Array:
    """max(T_r, 0), [ranks, samples], where T_r is the r-th largest of −noise/gains over the documents.

    gains: ⟨q̄, δ⟩ > 0, [n]. noise: ⟨z, δ⟩ with z ⊥ q, [n, samples]. Use this function to share the products
    ⟨z, d⟩ among many queries or parts of a collection; otherwise use `recall_thresholds`.
    """
    gains, noise = np.asarray(checks.positive(gains, "gains")), np.asarray(noise, dtype=np.float64)
    if gains.ndim != 1 or noise.ndim != 2 or len(noise) != len(gains) or len(gains) == 0:
        raise ValueError(f"gains {gains.shape} and noise {noise.shape}; allowed: [n] and [n, samples], n ≥ 1")
    order = checks.whole(ranks, "ranks", most=len(gains)).astype(np.int64).ravel()
    # The samples axis comes first: selection along contiguous memory is over twice as fast.
    ratios = np.divide(noise.T, gains, order="C")
    ratios.partition(np.unique(order) - 1, axis=1)
    return np.maximum(-ratios[:, order - 1].T, 0.0)


def recall_thresholds(
    query: Any, better: Any, others: Any, ranks: Sequence[int], *, samples: int = 1000, seed: int = 0
) -> Array:
    """Draw samples of max(T_r, 0), [ranks, samples]; `recall_failure` computes P(R ≥ r) from them at any k.

    query [v], better [v] and others [n, v] are dense arrays, or scipy sparse matrices with one row, one row
    and n rows. Only columns with a nonzero entry are drawn. Beyond the inputs, memory stays near 50 MB for
    any number of samples. Raises ValueError if another document does not score below `better`.
    """
    query, better, others = (
        sparse.csr_array(
            np.atleast_2d(x) if isinstance(x, np.ndarray | list | tuple) else x, dtype=np.float64
        )
        for x in (query, better, others)
    )
    checks.finite(query=query, better=better, others=others)
    shapes = query.shape, better.shape, others.shape
    if {query.shape[0], better.shape[0]} != {1} or len({width for _, width in shapes}) != 1:
        raise ValueError(
            f"query {shapes[0]}, better {shapes[1]}, others {shapes[2]}; allowed: [v], [v] and [n, v]"
        )
    total = int(checks.whole(samples, "samples", least=2))
    norm = float(np.sqrt(query.power(2).sum()))
    if norm == 0:
        raise ValueError("query is a zero vector; allowed: non-zero vectors")
    documents = sparse.vstack([better, others], format="csc")
    columns = np.union1d(query.indices, np.flatnonzero(np.diff(documents.indptr)))
    documents, unit = documents[:, columns].tocsr(), query[:, columns].toarray().ravel() / norm
    scores = documents @ unit
    gains = scores[0] - scores[1:]
    if not np.all(gains > 0):
        raise ValueError(f"{np.sum(gains <= 0)} of others do not score below better; allowed: smaller scores")
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(documents.shape))
    parts = []
    for start in range(0, total, block):
        gaussians = rng.standard_normal((len(columns), min(block, total - start)))
        gaussians -= unit[:, None] * (unit @ gaussians)
        products = documents @ gaussians
        parts.append(rank_thresholds(gains, products[0] - products[1:], ranks))
    return np.concatenate(parts, axis=1)


def recall_failure(k: ArrayLike, thresholds: ArrayLike) -> tuple[Any, Any]:
    """Compute P(R ≥ r) and its standard error at each k, from samples of the threshold at one rank.

    thresholds: [samples], or [queries, samples] for the mean over queries with independent samples.
    Returns two arrays with the shape of k (floats for a scalar k). The law is exact; the standard error
    covers the sampling of z, but not the choice of queries.
    """
    k, squares = checks.dimensions(k), _squares(thresholds)
    values = np.array([special.gammainc(0.5 * n, 0.5 * squares) for n in k.ravel()])
    values = values.reshape(k.shape + squares.shape)
    errors = np.sqrt(np.sum(np.var(values, axis=-1, ddof=1), axis=-1) / squares.shape[1]) / squares.shape[0]
    return checks.plain(values.mean(axis=(-2, -1))), checks.plain(errors)


def required_dimension_recall_exact(thresholds: ArrayLike, beta: float = 0.05) -> tuple[float, float]:
    """Solve P(R ≥ r) = β, by the exact law, for a real k ≥ 1; return k and its standard error.

    At this k and above, recall@r is at least 1 − β, on average if there are several queries. thresholds: as
    in `recall_failure`. If k = 1 suffices, the result is 1. The standard error of k is the standard error of
    P(R ≥ r) divided by the slope of P at k, even if k = 1, where P may be near β by chance. The standard
    error is inf if P is flat at β for lack of samples, and 0 if no sample fails.
    """
    squares = _squares(thresholds)
    level = float(checks.probability(beta))
    # Laurent and Massart: P(χ²_k ≤ k − 2√(k t)) ≤ e^{−t}; at this k the largest sample alone gives at most β.
    t = np.log(1 / level)
    high = (np.sqrt(t) + np.sqrt(t + squares.max())) ** 2
    root = _root(lambda k: recall_failure(k, thresholds)[0] - level, max(1.0, high))
    step = 1e-4 * root
    (failure, error), (beyond, _) = (recall_failure(k, thresholds) for k in (root, root + step))
    slope = (failure - beyond) / step
    return root, float(error / slope) if slope > 0 else (np.inf if error > 0 else 0.0)


def orthogonal_recall_failure(k: float, margins: ArrayLike, r: int) -> float:
    """Compute P(R ≥ r) by quadrature, if the components of the δ outside q are orthogonal (Gaussian A).

    The ⟨z, δ_i⟩ are then independent, since z ⊥ q. Given χ_k, the errors are therefore independent with
    chances Φ(−χ_k μ_i/√(1−μ_i²)), and R is a Poisson binomial variable. margins: [n].
    """
    (ordered, r), n = _ordered(margins, r), float(checks.dimensions(k))
    # As a function of y = χ^¼, the integrand is smooth at 0 even for fractional k, and falls slowly for
    # margins near 1.
    beyond = np.linspace(1.0, np.sqrt(n) + 12, int(np.sqrt(n)) + 12)[1:] ** 0.25
    edges = np.concatenate([np.linspace(0.0, 1.0, 9), beyond])
    nodes, weights = np.polynomial.legendre.leggauss(24)
    half = 0.5 * np.diff(edges)[:, None]
    root = (edges[:-1, None] + half * (nodes + 1)).ravel()
    chi = root**4
    log_density = (1 - n / 2) * np.log(2) + (n - 1) * np.log(chi) - chi**2 / 2 - special.gammaln(n / 2)
    with np.errstate(divide="ignore"):
        slopes = ordered / np.sqrt((1 - ordered) * (1 + ordered))
    lost = at_least(special.ndtr(-slopes[:, None] * chi), r)
    return float(np.sum((half * weights).ravel() * 4 * root**3 * np.exp(log_density) * lost))


def markov_union(errors: Array, r: int) -> Array:
    """Return min_{0≤s<r} (sum of all but the s largest probabilities [..., n]) / (r − s)."""
    beyond = np.cumsum(np.sort(errors, axis=-1), axis=-1)[..., ::-1][..., :r]
    return np.min(beyond / (r - np.arange(r)), axis=-1)


def at_least(chances: Array, r: int) -> Array:
    """P(at least r successes) in independent trials with probabilities [n, ...], without cancellation."""
    state = np.zeros((r, *chances.shape[1:]))
    state[0] = 1.0
    reached = np.zeros(chances.shape[1:])
    for chance in chances:
        reached = reached + state[-1] * chance
        state[1:] = state[1:] * (1 - chance) + state[:-1] * chance
        state[0] = state[0] * (1 - chance)
    return reached


def _ordered(margins: ArrayLike, r: int) -> tuple[Array, int]:
    """Sort the margins in ascending order, and check that the rank is at most their number."""
    array = checks.margins(margins, "margins")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"margins has shape {array.shape}; allowed: one axis of at least one margin")
    return np.sort(array), int(checks.whole(r, "r", most=array.size))


def _per_dimension(bound: Callable[[float], Any], k: ArrayLike) -> Any:
    k = checks.dimensions(k)
    return checks.plain(np.array([float(bound(n)) for n in k.ravel()]).reshape(k.shape))


def _root(excess: Callable[[float], float], high: float) -> float:
    """Find the root k in [1, high] of the decreasing function `excess`, to 1e-12; 1 if excess(1) ≤ 0."""
    return float(optimize.brentq(excess, 1.0, high, rtol=1e-12)) if excess(1.0) > 0 else 1.0


def _squares(thresholds: ArrayLike) -> Array:
    array = np.atleast_2d(np.asarray(thresholds, dtype=np.float64))
    if array.ndim != 2 or array.shape[1] < 2 or not (np.isfinite(array).all() and np.all(array >= 0)):
        raise ValueError(
            f"thresholds has shape {np.shape(thresholds)}; "
            "allowed: [samples] or [queries, samples], at least two samples, finite and not negative"
        )
    return array**2
