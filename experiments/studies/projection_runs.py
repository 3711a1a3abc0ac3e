"""Lexical vectors of a collection by name."""

import numpy as np
from rich.console import Console
from studies.settings import LexicalStudy

from paradigms.baselines.lexical_vectors import Counts, Placement, Weighting, count_terms, weigh
from paradigms.data import Collection
from paradigms.io.terminal import shown
from paradigms.train.job import open_collection
from theory.collection import Problem


def open_counts(settings: LexicalStudy, console: Console) -> tuple[Collection, Counts]:
    """The collection and its counts."""
    collection = open_collection(settings.collection, None, console)
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
