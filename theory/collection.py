"""How many dimensions does a linear map of a collection's sparse vectors need to keep the ranking?

For queries q [m, v], documents d [n, v] are scored by ⟨q, d⟩; d1 is a query's best document. A linear map to
k dimensions keeps the ranking of a query if d1 is still among the top r documents. Two maps are compared:
Gaussian random projections, by the exact law of `theory.recall` (for cosines, by `cosine_lost`), and the
truncated singular value decomposition. Failure probabilities are averaged over queries, so k depends on the
sample of queries and is given a 95% interval. With fewer than 50 queries, the interval is too narrow, and the
k for the whole population of queries usually lies above it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse, special
from scipy.sparse.linalg import svds

from theory import checks
from theory.checks import Array
from theory.recall import rank_thresholds, required_dimension_recall_exact

# bootstrap resamples of the queries, and values of k
RESAMPLES = 2000
POINTS = 80
# largest dense Gram matrix; documents scored at once
_DENSE = 2000
_ROWS = 10_000


class Dimension(NamedTuple):
    """A dimension k and its 95% bootstrap interval over queries; values above every k tried are inf."""

    k: float
    low: float
    high: float

    def __str__(self) -> str:
        return "{:,.0f} [{:,.0f}, {:,.0f}]".format(*self)


class Draw(NamedTuple):
    """Gaussian vectors g [v, samples], and the products ⟨g, d⟩ with all documents [n, samples]."""

    gaussians: NDArray[np.float32]
    products: NDArray[np.float32]


@dataclass(frozen=True)
class Problem:
    """Document vectors [n, v], query vectors [m, v], their scores [n, m], and groups of documents."""

    documents: sparse.csr_array
    queries: sparse.csr_array
    scores: Array
    groups: list[NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        documents: Any,
        queries: Any,
        groups: list[NDArray[np.int64]] | None = None,
    ) -> "Problem":
        """Score the vectors and make a problem; by default all documents form one group.

        documents, queries: arrays or sparse matrices. Raises ValueError if the shapes do not match or a
        number is not finite.
        """
        documents, queries = (sparse.csr_array(x, dtype=np.float64) for x in (documents, queries))
        if documents.shape[1] != queries.shape[1] or 0 in documents.shape + queries.shape:
            raise ValueError(
                f"documents {documents.shape} and queries {queries.shape} do not fit; allowed: [n, v], [m, v]"
            )
        checks.finite(documents=documents, queries=queries)
        scores = (documents @ queries.T).toarray()
        return cls(documents, queries, scores, groups or [np.arange(documents.shape[0])])

    @cached_property
    def single(self) -> sparse.csr_array:
        """The documents in float32. Six digits are enough: sampling error leaves only two or three."""
        return self.documents.astype(np.float32)

    @cached_property
    def squares(self) -> Array:
        """Return the squared norms of the documents, [n]."""
        return np.asarray(self.documents.power(2).sum(axis=1), dtype=np.float64).ravel()

    def competitors(self, group: int, query: int) -> tuple[int, NDArray[np.int64], Array]:
        """Return (best document, documents below it, score differences) for a query within a group.

        If no document matches the query, the arrays are empty. Documents that tie with the best document are
        left out, because the laws and bounds require positive margins.
        """
        rows = self.groups[group]
        scores = self.scores[rows, query]
        best = int(np.argmax(scores))
        gains = scores[best] - scores
        below = gains > 1e-9 * scores[best] if scores[best] > 0 else np.zeros(len(rows), dtype=bool)
        return int(rows[best]), rows[below], gains[below]

    def margins(self, group: int, query: int) -> tuple[int, NDArray[np.int64], Array]:
        """Return (best document, documents below it, their margins) for a query within a group."""
        best, below, gains = self.competitors(group, query)
        products = self.documents @ self.documents[[best]].toarray().ravel()
        both = self.squares[best] + self.squares[below]
        squares = both - 2 * products[below]
        cancelled = np.flatnonzero(squares < 1e-6 * both)  # where the difference cancels
        copies = self.documents[np.full(len(cancelled), best)] - self.documents[below[cancelled]]
        squares[cancelled] = np.asarray(copies.power(2).sum(axis=1)).ravel()
        unit = np.sqrt(self.queries[[query]].power(2).sum())
        return best, below, np.minimum(gains / (unit * np.sqrt(squares)), 1.0)

    def draw(self, samples: int, rng: np.random.Generator) -> Draw:
        """Draw Gaussian vectors that all queries share, which leaves each query's distribution unchanged."""
        gaussians = rng.standard_normal((self.documents.shape[1], samples), dtype=np.float32)
        return Draw(gaussians, self.single @ gaussians)

    def scores_projected(self, query: int, draw: Draw) -> tuple[Array, NDArray[np.float32]]:
        """Return a [n] and b [n, samples]; scores under a Gaussian projection to k dimensions are χ_k a + b.

        The scores are exact up to a positive factor that all documents share. a = ⟨q̄, d⟩ and b = ⟨z, d⟩ with
        z = g − ⟨g, q̄⟩q̄ (`theory.recall`).
        """
        vector = self.queries[[query]]
        norm = np.sqrt(vector.power(2).sum())
        along = self.scores[:, query] / norm
        shared = (vector.data / norm).astype(np.float32) @ draw.gaussians[vector.indices]
        return along, draw.products - along.astype(np.float32)[:, None] * shared


def length_groups(lengths: ArrayLike, bins: int) -> list[NDArray[np.int64]]:
    """Group documents by length into bins of equal size; the last group contains all documents."""
    order = np.argsort(lengths, kind="stable")
    return [np.sort(part) for part in np.array_split(order, bins)] + [np.arange(len(order))]


def exact_thresholds(problem: Problem, ranks: Sequence[int], samples: int, seed: int) -> Array:
    """Compute `theory.recall.rank_thresholds` for each rank, group and query, [ranks, groups, m, samples].

    Entries are NaN where a group has fewer than max(ranks) competitors for a query. All queries and groups
    share the Gaussian vectors.
    """
    queries = problem.queries.shape[0]
    thresholds = np.full((len(ranks), len(problem.groups), queries, samples), np.nan)
    draw = problem.draw(samples, np.random.default_rng(seed))
    for query in range(queries):
        along, across = problem.scores_projected(query, draw)
        for group in range(len(problem.groups)):
            best, below, _ = problem.competitors(group, query)
            if len(below) >= max(ranks):
                gains = along[best] - along[below]
                noise = across[best] - across[below]
                thresholds[:, group, query] = rank_thresholds(gains, noise, ranks)
    return thresholds


def projected_dimension(thresholds: Array, beta: float = 0.05) -> Dimension:
    """Return the k at which a random projection fails with mean probability β over the queries.

    thresholds: [queries, samples]. Queries with NaN thresholds are left out; the result is NaN if no query
    remains. The interval resamples the queries and the Gaussian vectors, which all queries share. The failure
    probability is monotone in k; a resample's k is where its mean failure probability, on a grid of k,
    crosses β.
    """
    thresholds = thresholds[~np.isnan(thresholds[:, 0])]
    if not len(thresholds):
        return Dimension(np.nan, np.nan, np.nan)
    exact, _ = required_dimension_recall_exact(thresholds, beta)
    t = np.log(1 / beta)
    largest = float(np.max(thresholds))
    # At the last k, even the largest threshold fails with at most β (Laurent and Massart 2000, Lemma 1).
    last = max(2.0, (np.sqrt(t) + np.sqrt(t + largest**2)) ** 2)
    grid = np.geomspace(max(1.0, exact / 10), last, POINTS)
    rng = np.random.default_rng(0)
    queries, samples = (_resampled(count, rng) for count in thresholds.shape)
    failures = (special.gammainc(0.5 * k, 0.5 * thresholds**2) for k in grid)
    return Dimension(exact, *_interval(grid, _means(failures, queries, samples), beta))


def truncated(problem: Problem, r: int, most: int) -> tuple[NDArray[np.int64], Array]:
    """Return k [K], and lost [m, K]: 1 where a truncated SVD pushes the best document out of the top r.

    D ≈ U_k Σ_k V_kᵀ, where V_kᵀ maps to the k dimensions that keep most of the documents' squared length.
    Every k from 1 to the smaller of `most` and the rank of D is tried. Queries with fewer than r competitors
    are left out.
    """
    rank, most = int(checks.whole(r, "r")), int(checks.whole(most, "most"))
    left = left_vectors(problem.documents, most)
    lost = []
    for query in range(problem.queries.shape[0]):
        best, below, _ = problem.competitors(-1, query)
        if len(below) < rank:
            continue
        reduced = left.T @ problem.scores[:, query]  # D V_k V_kᵀ q = U_k U_kᵀ D q
        highest = np.cumsum(left[best] * reduced)
        ahead = np.zeros(left.shape[1], dtype=np.int64)
        for rows in np.array_split(below, -(-len(below) // _ROWS)):
            ahead += (np.cumsum(left[rows] * reduced, axis=1) >= highest).sum(0)
        lost.append(ahead >= rank)
    ks = np.arange(1, left.shape[1] + 1)
    return ks, np.array(lost, dtype=np.float64).reshape(-1, len(ks))


def left_vectors(documents: sparse.csr_array, most: int) -> Array:
    """Return the left singular vectors U [n, k] of the k ≤ `most` largest nonzero singular values.

    Up to a scale for each column, U contains the documents after a truncated SVD. documents: [n, v]. Large
    matrices are decomposed by ARPACK until convergence, and smaller ones with a dense solver.
    """
    small = min(documents.shape)
    if small <= max(_DENSE, most):
        wide = documents.shape[1] > documents.shape[0]
        gram = documents @ documents.T if wide else documents.T @ documents
        values, vectors = linalg.eigh(gram.toarray(), subset_by_index=[max(0, small - most), small - 1])
        vectors = vectors[:, values > 1e-10 * values[-1]][:, ::-1]
        return vectors if wide else (documents @ vectors) / np.sqrt(values[values > 1e-10 * values[-1]][::-1])
    left, values, _ = svds(documents, k=most, random_state=0)
    return left[:, values > 1e-5 * values[-1]][:, ::-1]


def least_dimension(ks: ArrayLike, lost: Array, beta: float = 0.05) -> Dimension:
    """The smallest k such that, at this k and all larger ones, at most a share β of the queries is lost.

    ks: [K]. lost: 1 where a query's best document leaves the top r, [m, K], or [m, K, samples] for random
    maps that all queries share. The interval resamples the queries and the maps. The result is inf if the
    largest k is not enough, and NaN if there are no queries. Measured failure is not monotone in k, so it may
    cross β several times.
    """
    ks, lost = np.asarray(ks, dtype=np.float64), np.atleast_2d(lost)
    if not lost.size:
        return Dimension(np.nan, np.nan, np.nan)
    lost = lost.reshape(*lost.shape[:2], -1)
    above = np.flatnonzero(lost.mean((0, 2)) > beta)
    k = np.append(ks, np.inf)[above[-1] + 1] if above.size else ks[0]
    rng = np.random.default_rng(0)
    queries, samples = (_resampled(count, rng) for count in (lost.shape[0], lost.shape[2]))
    means = _means(lost.transpose(1, 0, 2), queries, samples)
    return Dimension(float(k), *_interval(ks, means, beta))


def cosine_lost(
    documents: ArrayLike, queries: ArrayLike, ks: ArrayLike, r: int, *, samples: int = 32, seed: int = 0
) -> Array:
    """Return 1 where Gaussian maps push the document of highest cosine out of the top r, [m, K, samples].

    documents [n, h] and queries [m, h] are compared by cosine before and after a projection to each k of
    ks [K]; projected vectors are renormalised (`theory.cosine`). All queries share the `samples` maps; the
    first k rows of a map project to k dimensions. Rivals that tie with the best one are left out.
    """
    D, Q = (checks.vector(x, name, axes=2) for x, name in ((documents, "documents"), (queries, "queries")))
    sizes = checks.whole(ks, "ks").astype(np.int64).ravel()
    rank = int(checks.whole(r, "r", most=len(D) - 1))
    if D.shape[1] != Q.shape[1] or np.any(np.diff(sizes) <= 0):
        raise ValueError(
            f"documents {D.shape}, queries {Q.shape}, ks {sizes}; allowed: [n, h], [m, h], rising"
        )
    D, Q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (D, Q))
    scores = D @ Q.T
    each = np.arange(len(Q))
    best = scores.argmax(0)
    rivals = scores < scores[best, each] - 1e-9
    draws = int(checks.whole(samples, "samples"))
    rng = np.random.default_rng(seed)
    lost = np.zeros((len(Q), len(sizes), draws))
    for draw in range(draws):
        inner = np.zeros(scores.shape)
        squares = np.zeros((len(D), 1))
        for number, rows in enumerate(np.diff(sizes, prepend=0)):
            map_to = rng.standard_normal((D.shape[1], rows))
            part = D @ map_to
            inner += part @ (Q @ map_to).T
            squares += (part**2).sum(1, keepdims=True)
            cosine = inner / np.sqrt(squares)
            lost[:, number, draw] = ((cosine >= cosine[best, each]) & rivals).sum(0) >= rank
    return lost


def reached_by(thresholds: Array, lost: float) -> float:
    """Return the k at which a random projection loses a fraction `lost` of the queries.

    This k compares random projections with a map that loses the same fraction. thresholds: [queries,
    samples], as in `projected_dimension`. Raises ValueError if `lost` is outside (0, 1).
    """
    measured = thresholds[~np.isnan(thresholds[:, 0])]
    return required_dimension_recall_exact(measured, float(checks.probability(lost, "lost")))[0]


def _resampled(count: int, rng: np.random.Generator) -> Array:
    """Draw the weights of `count` items in each resample, [RESAMPLES, count]; each row sums to 1."""
    return rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count


def _means(failures: Iterable[Array], queries: Array, samples: Array) -> Array:
    """Average each failure array [m, samples] over resampled queries and samples, [RESAMPLES, K]."""
    return np.stack([((queries @ of) * samples).sum(1) for of in failures], axis=1)


def _interval(grid: Array, means: Array, beta: float) -> tuple[float, float]:
    """Return a 95% interval for the k at which resampled curves [RESAMPLES, K] fall to β, linear in log k."""
    points = means.shape[1]
    last = points - 1 - (means > beta)[:, ::-1].argmax(1)  # last point above β, if one exists
    never = ~(means > beta).any(1)
    always = means[:, -1] > beta
    after = np.minimum(last + 1, points - 1)
    rows = np.arange(RESAMPLES)
    before = means[rows, last]
    behind = means[rows, after]
    share = np.clip((before - beta) / np.maximum(before - behind, 1e-300), 0, 1)
    ks = grid[last] * (grid[after] / grid[last]) ** share
    ks = np.where(never, grid[0], np.where(always, np.inf, ks))
    low, high = np.quantile(ks, [0.025, 0.975], method="nearest")
    return float(low), float(high)
