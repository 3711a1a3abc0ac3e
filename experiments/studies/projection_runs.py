"""Lexical vectors under random projections: explicit k × v matrices on a grid of k, and the exact law."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from studies.lexical_vectors import Counts, Placement, weigh
from studies.shared_settings import Ensemble, Weighting

from theory.projections import pairwise_error
from theory.recall import rank_thresholds
from theory.roots import decreasing_root


@dataclass(frozen=True)
class Problem:
    """Vectors, squared norms of the documents [n], scores [n, m], and groups of documents: bins, then all."""

    documents: sparse.csr_array
    queries: sparse.csr_array
    squares: np.ndarray
    scores: np.ndarray
    groups: list[np.ndarray]

    def competitors(self, group: int, query: int) -> tuple[int, np.ndarray, np.ndarray]:
        """(best document, those below it, by how much) of a group for a query; none if nothing matches.

        Documents that tie with the best have no positive margin and stand outside every statement here.
        """
        rows = self.groups[group]
        scores = self.scores[rows, query]
        best = int(np.argmax(scores))
        gains = scores[best] - scores
        below = gains > 1e-9 * scores[best]
        if scores[best] <= 0:
            below[:] = False
        return int(rows[best]), rows[below], gains[below]

    def margins(self, group: int, query: int) -> tuple[int, np.ndarray, np.ndarray]:
        """(best document, those below it, their margins) of a group for a query."""
        best, below, gains = self.competitors(group, query)
        products = self.documents @ self.documents[[best]].toarray().ravel()
        norms = np.sqrt(self.squares[best] + self.squares[below] - 2 * products[below])
        unit = np.sqrt(self.queries[[query]].power(2).sum())
        return best, below, np.minimum(gains / (unit * norms), 1.0)


def make_problem(
    counts: Counts, weighting: Weighting, placement: Placement, groups: list[np.ndarray]
) -> Problem:
    """The vectors of a weighting, scored."""
    documents, queries = weigh(counts, weighting, placement)
    squares = np.asarray(documents.power(2).sum(axis=1)).ravel()
    return Problem(documents, queries, squares, (documents @ queries.T).toarray(), groups)


def length_groups(lengths: np.ndarray, bins: int) -> list[np.ndarray]:
    """Documents in equally full bins of length, then all documents as the last group."""
    order = np.argsort(lengths, kind="stable")
    return [np.sort(part) for part in np.array_split(order, bins)] + [np.arange(len(lengths))]


def margin_rows(problem: Problem, lengths: list[float], ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Figure 3a: medians over queries of the r-th smallest margin, by length; none where r are not there."""
    rows: list[dict[str, Any]] = []
    for group, length in enumerate(lengths[:-1]):
        margins = [problem.margins(group, query)[2] for query in range(problem.queries.shape[0])]
        row: dict[str, Any] = {"mean length": length, "documents": len(problem.groups[group])}
        for rank in ranks:
            ranked = [np.partition(values, rank - 1)[rank - 1] for values in margins if len(values) >= rank]
            # Fewer than half of the queries would be another population than the other ranks.
            row[f"{rank}th"] = float(np.median(ranked)) if 2 * len(ranked) >= len(margins) else None
        rows.append(row)
    return rows


def k_grid(low: int, high: int, points: int) -> np.ndarray:
    """Whole k from low to high, geometric: the paper gives the ends and the number of its grid."""
    return np.unique(np.round(np.geomspace(low, high, points)).astype(np.int64))


def exact_thresholds(
    problem: Problem, ranks: list[int], samples: int, seed: int, step: Callable[[], object]
) -> dict[int, list[np.ndarray]]:
    """Per rank and group the thresholds [queries, samples] of the exact law.

    Every query draws its own `samples` Gaussian vectors, so that the queries' errors are independent; the
    groups of one query share them. Queries without `max(ranks)` competitors in a group are left out there.
    """
    rng = np.random.default_rng(seed)
    found: list[list[np.ndarray]] = [[] for _ in problem.groups]
    # Single precision, as for explicit matrices: six digits, where sampling leaves two or three.
    documents = problem.documents.astype(np.float32)
    for query in range(problem.queries.shape[0]):
        gaussians = rng.standard_normal((documents.shape[1], samples), dtype=np.float32)
        vector = problem.queries[[query]]
        columns, norm = vector.indices, np.sqrt(vector.power(2).sum())
        unit = (vector.data / norm).astype(np.float32)
        gaussians[columns] -= unit[:, None] * (unit @ gaussians[columns])
        products = documents @ gaussians
        for group in range(len(problem.groups)):
            best, below, gains = problem.competitors(group, query)
            if len(below) >= max(ranks):
                noise = products[best] - products[below]
                found[group].append(rank_thresholds(gains / norm, noise, ranks))
        step()
    return {r: [np.array([t[i] for t in group]) for group in found] for i, r in enumerate(ranks)}


def signs(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """±1 with equal chance, as float32."""
    count = shape[0] * shape[1]
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-count // 8)), np.uint8), count=count)
    return bits.astype(np.float32).reshape(shape) * 2 - 1


def project(
    problem: Problem,
    ensemble: Ensemble,
    grid: np.ndarray,
    rng: np.random.Generator,
    visit: Callable[[int, np.ndarray], None],
) -> float:
    """Scores [n, m] under one explicit matrix, at every k of the grid: calls visit(position in grid, scores).

    The k × v matrices of the grid are the first k rows of one matrix, drawn and used in blocks of rows: far
    cheaper than a fresh matrix for every k. Returns processor seconds outside `visit`.
    """
    documents, queries = problem.documents.astype(np.float32), problem.queries.astype(np.float32)
    totals = np.zeros(problem.scores.shape, dtype=np.float32)
    seconds, done = 0.0, 0
    for position, k in enumerate(grid):
        start = time.process_time()
        while done < k:
            shape = (documents.shape[1], int(min(256, k - done)))
            rows = (
                signs(rng, shape)
                if ensemble == "rademacher"
                else rng.standard_normal(shape, dtype=np.float32)
            )
            totals += (documents @ rows) @ (queries @ rows).T
            done += shape[1]
        seconds += time.process_time() - start
        visit(position, totals)
    return seconds


def stable_crossing(grid: np.ndarray, failure: np.ndarray, beta: float) -> tuple[float | None, float | None]:
    """k* of a measured curve: (the grid value from which on failure ≤ β, the crossing before it, log-linear).

    Failure under Rademacher matrices, or measured from few, is not monotone in k, hence "from which on".
    """
    above = np.flatnonzero(failure > beta)
    if above.size == 0:
        return float(grid[0]), None
    last = int(above[-1])
    if last + 1 == len(grid):
        return None, None
    share = (failure[last] - beta) / (failure[last] - failure[last + 1])
    return float(grid[last + 1]), float(grid[last] * (grid[last + 1] / grid[last]) ** share)


@dataclass
class Explicit:
    """What `matrices` explicit matrices of one ensemble did, at every k of the grid.

    `wrong` [K, bins]: misordered pairs (best document, other) by margin bin. `lost` [matrices, K, groups]:
    share of queries with at least r documents of a group ahead of its best. Processor seconds of all matrices
    together: `projecting` them, and `counting` what goes into `lost`.
    """

    wrong: np.ndarray
    lost: np.ndarray
    projecting: float
    counting: float


def run_matrices(
    problem: Problem,
    ensemble: Ensemble,
    grid: np.ndarray,
    matrices: int,
    pair_bins: np.ndarray,
    rank: int,
    seed: int,
    step: Callable[[], object],
) -> Explicit:
    """Measure Figures 2 and 3b by explicit projection.

    `pair_bins` [n, m]: the margin bin of (document, query) against the query's best document, -1 for pairs
    that are not to be counted.
    """
    queries = problem.scores.shape[1]
    bins = int(pair_bins.max()) + 1
    everything = len(problem.groups) - 1
    best = np.zeros((len(problem.groups), queries), dtype=np.int64)
    below = [np.zeros((len(rows), queries), dtype=bool) for rows in problem.groups]
    for group, rows in enumerate(problem.groups):
        for query in range(queries):
            best[group, query], others, _ = problem.competitors(group, query)
            below[group][:, query] = np.isin(rows, others, assume_unique=True)
    counted = [group.sum(axis=0) >= rank for group in below]
    result = Explicit(
        np.zeros((len(grid), bins), np.int64), np.zeros((matrices, len(grid), len(below))), 0.0, 0.0
    )
    for matrix in range(matrices):

        def visit(position: int, totals: np.ndarray, matrix: int = matrix) -> None:
            columns = np.arange(queries)
            wrong = totals >= totals[best[everything], columns]
            found = pair_bins[wrong]
            result.wrong[position] += np.bincount(found[found >= 0], minlength=bins)
            start = time.process_time()
            for group, rows in enumerate(problem.groups):
                ahead = totals[rows] >= totals[best[group], columns]
                lost = np.sum(ahead & below[group], axis=0) >= rank
                result.lost[matrix, position, group] = (
                    lost[counted[group]].mean() if counted[group].any() else 0.0
                )
            result.counting += time.process_time() - start

        result.projecting += project(problem, ensemble, grid, np.random.default_rng([seed, matrix]), visit)
        step()
    return result


def mean_required_dimension(margins: np.ndarray, beta: float) -> float:
    """The k at which pairs of these margins are misordered with probability β on average: exact, Gaussian."""
    low, high = 1.0, 8 * np.log(1 / beta) / margins.min() ** 2

    def excess(k: np.ndarray) -> np.ndarray:
        return np.asarray(np.mean(pairwise_error(k, margins))) - beta

    return float(decreasing_root(excess, low, high))
