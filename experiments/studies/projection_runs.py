"""Lexical vectors under random projections: the exact law, and explicit k × v matrices on a grid of k."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from studies.lexical_vectors import Counts, Placement, weigh
from studies.pages import tracked
from studies.shared_settings import Ensemble, Weighting

from paradigms.evaluate import Interval
from theory.projections import pairwise_error
from theory.recall import rank_thresholds, recall_failure, required_dimension_recall_exact
from theory.roots import decreasing_root

RESAMPLES, POINTS = 2000, 80  # of the bootstrap over queries: draws of the queries, and values of k


@dataclass(frozen=True)
class Problem:
    """Vectors of documents [n, v] and queries [m, v], their scores [n, m], and groups of documents."""

    documents: sparse.csr_array
    queries: sparse.csr_array
    scores: np.ndarray
    groups: list[np.ndarray]

    @cached_property
    def single(self) -> sparse.csr_array:
        """The documents in single precision: six digits, where sampling leaves two or three."""
        return self.documents.astype(np.float32)

    @cached_property
    def squares(self) -> np.ndarray:
        """Squared norms of the documents, [n]."""
        return np.asarray(self.documents.power(2).sum(axis=1)).ravel()

    def competitors(self, group: int, query: int) -> tuple[int, np.ndarray, np.ndarray]:
        """(best document, those below it, by how much) of a group for a query; none if nothing matches.

        Documents that tie with the best have no positive margin; no statement here covers them.
        """
        rows = self.groups[group]
        scores = self.scores[rows, query]
        best = int(np.argmax(scores))
        gains = scores[best] - scores
        below = gains > 1e-9 * scores[best] if scores[best] > 0 else np.zeros(len(rows), dtype=bool)
        return int(rows[best]), rows[below], gains[below]

    def margins(self, group: int, query: int) -> tuple[int, np.ndarray, np.ndarray]:
        """(best document, those below it, their margins) of a group for a query."""
        best, below, gains = self.competitors(group, query)
        products = self.documents @ self.documents[[best]].toarray().ravel()
        norms = np.sqrt(self.squares[best] + self.squares[below] - 2 * products[below])
        unit = np.sqrt(self.queries[[query]].power(2).sum())
        return best, below, np.minimum(gains / (unit * norms), 1.0)

    def scores_projected(
        self, query: int, samples: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """(a [n], b [n, samples]): under a Gaussian projection to k numbers the scores are χ_k a + b.

        Up to one positive factor for all documents; a = ⟨q̄, d⟩, b = ⟨z, d⟩ with z ⊥ q (`theory.recall`).
        """
        vector = self.queries[[query]]
        norm = np.sqrt(vector.power(2).sum())
        unit = (vector.data / norm).astype(np.float32)
        gaussians = rng.standard_normal((self.documents.shape[1], samples), dtype=np.float32)
        gaussians[vector.indices] -= unit[:, None] * (unit @ gaussians[vector.indices])
        return self.scores[:, query] / norm, self.single @ gaussians


def make_problem(
    counts: Counts, weighting: Weighting, placement: Placement, groups: list[np.ndarray]
) -> Problem:
    """The vectors of a weighting, scored."""
    documents, queries = weigh(counts, weighting, placement)
    return Problem(documents, queries, (documents @ queries.T).toarray(), groups)


def length_groups(lengths: np.ndarray, bins: int) -> list[np.ndarray]:
    """Documents in equally full bins of length, then all documents as the last group."""
    order = np.argsort(lengths, kind="stable")
    return [np.sort(part) for part in np.array_split(order, bins)] + [np.arange(len(lengths))]


# --- the exact law ----------------------------------------------------------------------------------


def exact_thresholds(
    problem: Problem, ranks: Sequence[int], samples: int, seed: int, name: str = ""
) -> np.ndarray:
    """Thresholds of the exact law (`theory.recall.rank_thresholds`): [ranks, groups, m, samples].

    NaN where a group has fewer than max(ranks) competitors for a query. Every query draws its own Gaussian
    vectors, so that the queries' errors are independent; the groups of one query share them. name: of a
    progress bar.
    """
    rng, queries = np.random.default_rng(seed), problem.queries.shape[0]
    found = np.full((len(ranks), len(problem.groups), queries, samples), np.nan)
    for query in tracked(range(queries), name):
        along, across = problem.scores_projected(query, samples, rng)
        for group in range(len(problem.groups)):
            best, below, _ = problem.competitors(group, query)
            if len(below) >= max(ranks):
                gains, noise = along[best] - along[below], across[best] - across[below]
                found[:, group, query] = rank_thresholds(gains, noise, ranks)
    return found


def required_dimension(thresholds: np.ndarray, beta: float = 0.05, seed: int = 0) -> Interval:
    """k with mean failure β over the queries [queries, samples], and its 95% bootstrap interval over queries.

    Queries of NaN are left out; NaN where all are. Failure is monotone in k, so each draw's k lies where its
    mean failure on a grid of k crosses β.
    """
    thresholds = thresholds[~np.isnan(thresholds[:, 0])]
    if not len(thresholds):
        return Interval(np.nan, np.nan, np.nan)
    exact, _ = required_dimension_recall_exact(thresholds, beta)
    t, largest = np.log(1 / beta), float(np.max(thresholds))
    # At the last k the largest threshold alone fails with β at most (Laurent and Massart 2000, Lemma 1).
    last = max(2.0, (np.sqrt(t) + np.sqrt(t + largest**2)) ** 2)
    grid = np.geomspace(max(1.0, exact / 10), last, POINTS)
    curves = np.array([recall_failure(grid, row)[0] for row in thresholds])
    queries = len(curves)
    drawn = np.random.default_rng(seed).multinomial(queries, np.full(queries, 1 / queries), RESAMPLES)
    means = drawn @ curves / queries
    after = np.clip((means > beta).sum(1), 1, POINTS - 1)
    rows = np.arange(RESAMPLES)
    before, behind = means[rows, after - 1], means[rows, after]
    share = np.clip((before - beta) / np.maximum(before - behind, 1e-300), 0, 1)
    ks = grid[after - 1] * (grid[after] / grid[after - 1]) ** share
    return Interval(exact, *np.quantile(ks, [0.025, 0.975]).tolist())


def shown_dimension(k: Interval) -> str:
    """As pages print it: k [low, high]."""
    return f"{k.mean:,.0f} [{k.low:,.0f}, {k.high:,.0f}]"


def mean_required_dimension(margins: np.ndarray, beta: float) -> float:
    """The k at which pairs of these margins are misordered with probability β on average: exact, Gaussian."""
    low, high = 1.0, 8 * np.log(1 / beta) / margins.min() ** 2

    def excess(k: np.ndarray) -> np.ndarray:
        return np.asarray(np.mean(pairwise_error(k, margins))) - beta

    return float(decreasing_root(excess, low, high))


# --- explicit matrices ------------------------------------------------------------------------------


def misordered(
    problem: Problem,
    ensemble: Ensemble,
    grid: np.ndarray,
    matrices: int,
    pair_bins: np.ndarray,
    seed: int,
    name: str = "",
) -> np.ndarray:
    """Pairs (best document, other) of each margin bin in the wrong order at each k of the grid: [K, bins].

    Of all matrices together. pair_bins [n, m]: the bin of (document, query), -1 for pairs that are not to be
    counted. The k × v matrices of the grid are the first k rows of one matrix, drawn and used in blocks of
    rows: far cheaper than a fresh matrix for every k.
    """
    documents, queries = problem.single, problem.queries.astype(np.float32)
    columns = np.arange(queries.shape[0])
    best = [problem.competitors(-1, query)[0] for query in columns]
    wrong = np.zeros((len(grid), int(pair_bins.max()) + 1), np.int64)
    for matrix in tracked(range(matrices), name):
        rng, done = np.random.default_rng([seed, matrix]), 0
        totals = np.zeros(problem.scores.shape, np.float32)
        for position, k in enumerate(grid):
            while done < k:
                rows = random_rows(ensemble, queries.shape[1], int(min(256, k - done)), rng)
                totals += (documents @ rows) @ (queries @ rows).T
                done += rows.shape[1]
            found = pair_bins[totals >= totals[best, columns]]
            wrong[position] += np.bincount(found[found >= 0], minlength=wrong.shape[1])
    return wrong


def random_rows(ensemble: Ensemble, v: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k rows of a matrix, without its factor 1/√k: [v, k]."""
    if ensemble == "rademacher":
        return 2 * rng.integers(0, 2, (v, k), dtype=np.int8).astype(np.float32) - 1
    return rng.standard_normal((v, k), dtype=np.float32)


def stable_crossing(grid: np.ndarray, failure: np.ndarray, beta: float) -> float | None:
    """The k after which a measured curve stays at β or below, log-linear; none outside the grid.

    Failure under Rademacher matrices, or measured from few, is not monotone in k.
    """
    above = np.flatnonzero(failure > beta)
    if above.size == 0 or above[-1] + 1 == len(grid):
        return None
    last = int(above[-1])
    share = (failure[last] - beta) / (failure[last] - failure[last + 1])
    return float(grid[last] * (grid[last + 1] / grid[last]) ** share)
