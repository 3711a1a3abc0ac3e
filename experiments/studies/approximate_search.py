"""Times and results of exact and approximate search for the same vectors: Luan et al. 2021, Figure 7.

A query has one vector, a document one or m. An approximate index divides the vectors into as many lists as
the square root of their number, and looks into a few of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paradigms import Paradigm
from paradigms.core import Tokens
from paradigms.data import Run
from paradigms.index import INDEXES, ExactIndex, TokenIndex
from paradigms.recipe import Recipe


@dataclass(frozen=True)
class Timed:
    """One way to search, and what came of it."""

    system: str
    kind: str
    probes: int  # lists that a query looks into; 0 = all vectors
    bytes_per_document: float
    milliseconds: np.ndarray  # of each encoded query
    found: Run


def timed(
    find: Callable[[int], dict[str, float]], queries: int, rounds: int
) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Milliseconds of `find` for every query by number, the fastest of `rounds` after one that warms up; and
    what it finds."""
    answers = [find(n) for n in range(queries)]
    seconds = np.full(queries, np.inf)
    for _ in range(rounds):
        for n in range(queries):
            began = time.perf_counter()
            find(n)
            seconds[n] = min(seconds[n], time.perf_counter() - began)
    return 1000 * seconds, answers


def search_one(index: TokenIndex, recipe: Recipe, queries: Tokens, k: int, n: int) -> dict[str, float]:
    """Of query number n."""
    return index.search_tokens(recipe, queries[n : n + 1], k)[0]


def time_searches(
    systems: Mapping[str, tuple[Paradigm, ExactIndex]],
    queries: Mapping[str, str],
    folder: Path,
    *,
    probes: Sequence[int],
    k: int,
    rounds: int,
) -> list[Timed]:
    """Every system searched exactly, and in each kind of index with each number of probes, query by query.

    Indexes go to `folder`, and searches run on the CPU.
    """
    found = []
    for system, (model, exact) in systems.items():
        # The best m·k vectors are of at least k documents, the k best: no more is to be retrieved.
        m = 1 if model.encoder.settings.document_vectors == "pooled" else model.encoder.settings.first
        recipe = replace(model.recipe, search_tokens=m * k)
        encoded = model.encode_queries(list(queries.values())).to("cpu")
        lists = max(1, round(int(exact.offsets[-1]) ** 0.5))
        options = {"faiss": {"factory": f"IVF{lists},SQfp16"}, "compressed": {"lists": lists}}
        ways: list[tuple[str, Any, list[int]]] = [("exact", exact, [0])]
        for kind, of in options.items():
            index = INDEXES[kind].of(exact, folder / f"{system}-{kind}", **of)
            ways.append((kind, index, sorted({min(number, lists) for number in probes})))
        for kind, index, numbers in ways:
            for number in numbers:
                if number:
                    index.probes = number
                ms, answers = timed(partial(search_one, index, recipe, encoded, k), len(queries), rounds)
                run = dict(zip(queries, answers, strict=True))
                found.append(Timed(system, kind, number, index.bytes_per_document, ms, run))
    return found
