"""Lexical vectors of a collection by name, and the dimension at which their pairs keep their order."""

import numpy as np

from paradigms.baselines.lexical_vectors import Counts, Placement, Weighting, count_terms, weigh
from paradigms.data import Collection, load
from paradigms.io.terminal import shown
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
        raise SystemExit(shown(error)) from error


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
