"""Which sets of documents can a query rank first, given the vectors' dimension, margin, bits and rounding?

Weller, Boratko, Naim, Lee, "On the Theoretical Limitations of Embedding-Based Retrieval", 2025 (LIMIT). There
are n documents and, for every set S of k documents, a query whose relevant documents are S. A query answers S
if each document of S scores strictly above all other documents. Results:

- Single vectors of 2k dimensions answer all C(n, k) sets, for every n (`moment_vectors`), and for n ≥ 3k no
  smaller dimension does (`unanswerable_set`). So neither the dimension nor the sign rank grows with n. The
  cyclic polytope, the O(k² ln n) centroids of Gaussian vectors and the ceiling of `packing_gap` are also
  results of Wang et al. 2026, arXiv:2601.20844. Bangachev et al. 2026, arXiv:2605.23556, reach a margin of
  order k^(−½) in O(k ln(n/k)) dimensions, which is fewer than random vectors need.
- The margin shrinks (`moment_gap`, `packing_gap`) unless the dimension grows (`random_dimension`), and float
  types lose it: a pair at 25 documents in float16, at 223 in float32 (`first_broken_size`).
- Queries that are encoded without knowledge of relevance need `pattern_bits` bits for each document.
- With two-dimensional tokens, the maximum over tokens answers any relevance matrix (`ring`).
"""

from math import comb

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.special import gammaln

from theory import checks
from theory.checks import Array
from theory.projections import required_dimension


def moment_vectors(documents: int, k: int = 2) -> Array:
    """d_i = (cos t_i, sin t_i, …, cos k t_i, sin k t_i)/√k, t_i = 2πi/n: [n, 2k], unit vectors on one curve.

    The curve is the trigonometric moment curve, whose hull is a cyclic polytope (Gale 1963). `moment_queries`
    returns queries that answer all sets of at most k documents. Raises ValueError if n < 1 or k < 1.
    """
    n = int(checks.whole(documents, "documents"))
    most = int(checks.whole(k, "k"))
    angles = 2 * np.pi / n * np.arange(n)[:, None] * np.arange(1, most + 1)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(n, -1) / np.sqrt(most)


def moment_queries(documents: int, relevant: ArrayLike) -> Array:
    """q_S with ⟨q_S, d(t)⟩ = c − a ∏_{s∈S} (1 − cos(t − t_s)), a > 0: unit queries for `moment_vectors`.

    The product is a trigonometric polynomial of degree k, 0 on S and positive elsewhere, so S scores strictly
    above every other document. relevant: indices of documents, [..., k], distinct in each row. Returns
    [..., 2k].
    """
    n = int(checks.whole(documents, "documents"))
    rows = _sets(relevant, n)
    k = rows.shape[-1]
    grid = 2 * np.pi / (2 * k + 1) * np.arange(2 * k + 1)
    product = np.prod(1 - np.cos(grid - 2 * np.pi / n * rows[..., None]), axis=-2)
    waves = np.fft.rfft(product)[..., 1:]  # exact: 2k + 1 points determine a polynomial of degree k
    queries = np.stack([-waves.real, waves.imag], axis=-1).reshape(*rows.shape[:-1], 2 * k)
    return queries / np.linalg.norm(queries, axis=-1, keepdims=True)


def gaps(queries: ArrayLike, documents: ArrayLike, relevant: ArrayLike) -> Array:
    """min_{s∈S} ⟨q_S, d_s⟩ − max_{c∉S} ⟨q_S, d_c⟩ for each query, [m]: positive where S is answered.

    queries: [m, h]. documents: [n, h]. relevant: [m, k] with k < n. For unit vectors this is the cosine gap.
    """
    Q, D = (checks.vector(x, n, axes=2) for x, n in ((queries, "queries"), (documents, "documents")))
    rows = _sets(relevant, len(D))
    if rows.ndim != 2 or rows.shape[1] >= len(D):
        raise ValueError(f"relevant has shape {rows.shape}; allowed: [m, k] with k below {len(D)} documents")
    scores = Q @ D.T
    least = np.take_along_axis(scores, rows, 1).min(1)
    np.put_along_axis(scores, rows, -np.inf, 1)
    return np.asarray(least - scores.max(1))


def moment_gap(documents: ArrayLike) -> float | Array:
    """(1 − cos θ)² / √(8 cos²θ + ½), θ = 2π/n: the least cosine gap of any pair with `moment_queries`, n ≥ 6.

    Pairs of documents with one document between them attain this gap. It tends to (2π)⁴/√136 · n⁻⁴.
    """
    θ = 2 * np.pi / checks.whole(documents, "documents", least=6)
    return checks.plain((2 * np.sin(θ / 2) ** 2) ** 2 / np.sqrt(8 * np.cos(θ) ** 2 + 0.5))


def unanswerable_set(points: ArrayLike) -> NDArray[np.int64]:
    """Find a set of at most ⌊(h+2)/2⌋ of h + 2 points in R^h that no inner product puts above the others.

    points: [h + 2, h]. Radon 1921: an affine dependence Σ c_i x_i = 0, Σ c_i = 0 splits the points into
    points with c > 0 and points with c < 0. The convex hulls of both parts meet. At a common point, a linear
    function is a mean over each part, so neither part scores strictly above the other. The smaller part is
    returned. With h = 2k − 1, this part has at most k points: if n ≥ 3k, adding points outside the h + 2
    makes a set of k that no query answers. So sets of k need 2k dimensions.
    """
    X = checks.vector(points, "points", axes=2, nonzero=False)
    if len(X) != X.shape[1] + 2:
        raise ValueError(f"points has shape {X.shape}; allowed: [h + 2, h]")
    dependence = np.linalg.svd(np.vstack([X.T, np.ones(len(X))]))[2][-1]
    above = np.flatnonzero(dependence > 0)
    below = np.flatnonzero(dependence < 0)
    return above if len(above) <= len(below) else below


def random_dimension(documents: ArrayLike, k: int = 2, failure: float = 1.0) -> float | Array:
    """Return the h at which projected one-hot vectors answer all sets, except with probability `failure`.

    Before the Gaussian projection (`theory.projections`), q_S = Σ_{s∈S} e_s and d_i = e_i have the margin
    1/√(2k) in each of the C(n, k)·k·(n − k) triples; the union bound with the exact pairwise law gives h. At
    failure = 1, some projection answers all sets. h grows like 2(k + 1) ln n / −ln(1 − 1/(2k)), which is 6.95
    (k + 1) ln n for pairs and near 4k(k + 1) ln n for large k. documents: n ≥ 2k, an array of any shape.
    """
    most = int(checks.whole(k, "k"))
    n = checks.whole(documents, "documents", least=2 * most)
    triples = np.exp(_log_comb(n, most)) * most * (n - most)
    return checks.plain(required_dimension(1 / np.sqrt(2 * most), float(failure) / triples))


def packing_gap(documents: ArrayLike, k: ArrayLike, dimension: ArrayLike) -> float | Array:
    """γ ≤ min(2 / (C(n, k)^{1/h} − 1), n/√(k(n−1)(n−k))): an upper bound on the gap of unit vectors in R^h.

    γ is the least cosine gap of all sets of k < n documents. The first bound is a packing bound (as in
    Theorem 1 of the ICLR 2026 version of Weller et al.): for sets S ≠ S' take a ∈ S∖S', c ∈ S'∖S. Then
    ⟨q_S − q_S', d_a − d_c⟩ ≥ 2γ and ‖d_a − d_c‖ ≤ 2, so the C(n, k) unit queries lie γ apart. Balls of
    radius γ/2 around the queries are disjoint and fit into a ball of radius 1 + γ/2: C(n, k) ≤ (1 + 2/γ)^h.
    The second bound holds for every h: γ is at most the distance between the mean of S and the mean of the
    complement of S, averaged over S (Wang et al. 2026, arXiv:2601.20844). The regular simplex attains the
    second bound for h ≥ n − 1. All arguments broadcast.
    """
    n = checks.whole(documents, "documents", least=2)
    h = checks.dimensions(dimension, "dimension")
    most = _some_of(k, n - 1)
    return checks.plain(
        np.minimum(2 / np.expm1(_log_comb(n, most) / h), n / np.sqrt(most * (n - 1) * (n - most)))
    )


def pattern_bits(
    documents: ArrayLike, queries: ArrayLike, k: ArrayLike = 2, *, distinct: bool = False
) -> float | Array:
    """(m/n) log₂ C(n, k): bits per document that an index needs if query vectors do not depend on relevance.

    m queries, each with any k of n documents, have C(n, k)^m relevance patterns. If the queries' vectors are
    the same for all patterns, only the index distinguishes the patterns. An index that stores M vectors of h
    numbers with b bits each per document has h·M·b bits per document. distinct: no two queries have the same
    set, as in LIMIT, so that there are C(n, k)! / (C(n, k) − m)! patterns of m ≤ C(n, k) queries. All
    arguments broadcast.
    """
    n = checks.whole(documents, "documents")
    m = checks.whole(queries, "queries")
    log_sets = _log_comb(n, _some_of(k, n))
    if not distinct:
        return checks.plain(m / n * log_sets / np.log(2))
    sets = np.rint(np.exp(log_sets))
    if not np.all(m <= sets):
        raise ValueError(f"queries = {np.max(m):g}; allowed with distinct sets: at most {np.min(sets):g}")
    return checks.plain((gammaln(sets + 1) - gammaln(sets - m + 1)) / n / np.log(2))


def first_broken_size(dtype: DTypeLike, most: int = 2000) -> int:
    """Find the least n ≥ 6 at which rounding breaks `moment_vectors` for a pair with one document in between.

    Documents and queries are rounded to `dtype`; scores are computed in float64. Raises ValueError if no pair
    fails at any n ≤ `most`.
    """
    for n in range(6, int(checks.whole(most, "most", least=6)) + 1):
        pairs = (np.arange(n)[:, None] + [0, 2]) % n
        vectors = moment_queries(n, pairs), moment_vectors(n)
        queries, documents = (x.astype(dtype).astype(np.float64) for x in vectors)
        if gaps(queries, documents, pairs).min() <= 0:
            return n
    raise ValueError(f"{np.dtype(dtype)} loses no pair of up to {most} documents")


def forster_bound(relevance: ArrayLike) -> float:
    """√(mn) / ‖2R − 1‖₂ ≤ sign rank of R (Forster 2002), a lower bound on the dimension plus one.

    relevance: R [m, n], whose entries are 0 or 1. The sign rank is the least rank of a real matrix with the
    signs of 2R − 1; vectors that answer every row of R have h ≥ sign rank − 1 (Weller et al. 2025). The bound
    is large for dense patterns (√n for Hadamard matrices) and near 1 if few documents are relevant: the sign
    rank is at most `sign_change_bound`.
    """
    signs = 2 * _relevance(relevance) - 1
    return float(np.sqrt(signs.size) / np.linalg.norm(signs, 2))


def sign_change_bound(relevance: ArrayLike) -> int:
    """1 + max changes in a row of R ≥ sign rank of R; at most 2k + 1 with k relevant documents per row.

    Alon, Frankl and Rödl 1985: on a line, a polynomial with a root at every change has the row's signs.
    """
    return 1 + int(np.abs(np.diff(_relevance(relevance), axis=1)).sum(1).max())


def ring(queries: int) -> Array:
    """Return unit vectors [m, 2] that, as tokens scored by their maximum, answer any relevance matrix.

    queries: m. Query j is the token u_j. A document has the token u_j for every query j to which it is
    relevant. For any m × n relevance matrix, max_i ⟨u_i, u_j⟩ is 1 for relevant documents and at most
    cos(2π/m) for others.
    """
    angles = 2 * np.pi / int(checks.whole(queries, "queries")) * np.arange(queries)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def all_sets(documents: int, k: int = 2) -> NDArray[np.int64]:
    """Return all subsets of k out of n documents, [C(n, k), k], in lexicographic order, as in LIMIT."""
    from itertools import combinations

    n = int(checks.whole(documents, "documents"))
    most = int(checks.whole(k, "k"))
    return np.array(list(combinations(range(n), most)), dtype=np.int64).reshape(comb(n, most), most)


def _some_of(k: ArrayLike, most: Array) -> Array:
    """Check that k lies between 1 and `most`, the largest size of a set, and return k."""
    sizes = checks.whole(k, "k")
    if not np.all(sizes <= most):
        raise ValueError(f"k = {np.max(sizes):g}; allowed: at most {np.min(most):g} of the documents")
    return sizes


def _sets(relevant: ArrayLike, documents: int) -> NDArray[np.int64]:
    """Check and return indices [..., k] of documents, which must be distinct in each row."""
    rows = checks.whole(relevant, "relevant", least=0, most=documents - 1).astype(np.int64)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError(f"relevant has shape {rows.shape}; allowed: [..., k] with k of at least 1")
    if np.any(np.diff(np.sort(rows, axis=-1), axis=-1) == 0):
        raise ValueError("relevant repeats a document in a row; allowed: distinct documents")
    return rows


def _log_comb(n: Array, k: ArrayLike) -> Array:
    return np.asarray(gammaln(n + 1) - gammaln(np.asarray(k) + 1) - gammaln(n - np.asarray(k) + 1))


def _relevance(value: ArrayLike) -> Array:
    matrix = checks.vector(value, "relevance", axes=2, nonzero=False)
    if not np.isin(matrix, (0, 1)).all():
        raise ValueError("relevance contains numbers other than 0 and 1")
    return matrix
