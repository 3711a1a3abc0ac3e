"""Lexical vectors of a collection by name, and the dimension at which their pairs keep their order."""

import numpy as np
from rich.console import Console
from studies.settings import LexicalStudy

from paradigms.baselines.lexical_vectors import Counts, Placement, Weighting, count_terms, weigh
from paradigms.data import Collection
from paradigms.io.terminal import shown
from paradigms.train.job import open_collection
from theory.collection import Problem
from theory.projections import pairwise_error
from theory.roots import decreasing_root


def open_counts(settings: LexicalStudy, console: Console, documents: int = 0) -> tuple[Collection, Counts]:
    """The collection and its counts; documents: of a fixed subset of pydocs, 0: all."""
    built_in = settings.collection == "pydocs"
    collection = open_collection(settings.collection, documents or None if built_in else None, console)
    try:
        queries = collection.split(settings.split).queries
        return collection, count_terms(collection.corpus, queries, settings.queries, settings.seed)
    except (KeyError, ValueError) as error:
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
