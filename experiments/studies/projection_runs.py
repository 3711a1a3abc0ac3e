"""Lexical vectors of a collection under random projections: opened, and under explicit k × v matrices."""

import numpy as np
from studies.pages import tracked
from studies.shared_settings import Ensemble

from paradigms.baselines.lexical_vectors import Counts, Placement, Weighting, count_terms, weigh
from paradigms.data import Collection, load
from theory.collection import Problem
from theory.projections import pairwise_error
from theory.roots import decreasing_root


def open_counts(
    name: str, split: str, queries: int, seed: int, *, documents: int | None = None
) -> tuple[Collection, Counts]:
    """A collection by name and its counts; a wrong name or a broken file ends the program with a line."""
    try:
        collection = load(name, documents=documents)
        return collection, count_terms(collection.corpus, collection.split(split).queries, queries, seed)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(str(error)) from error


def make_problem(
    counts: Counts, weighting: Weighting, placement: Placement, groups: list[np.ndarray]
) -> Problem:
    """The vectors of a weighting, scored."""
    return Problem.of(*weigh(counts, weighting, placement), groups)


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
