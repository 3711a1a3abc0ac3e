"""Times and results of exact and approximate search for the same vectors: Luan et al. 2021, Figure 7.

A query has one vector, a document one or m. An approximate index divides the vectors into as many lists as
the square root of their number, and looks into a few of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paradigms import Paradigm
from paradigms.core import Tokens
from paradigms.data import Run
from paradigms.index import INDEXES, ExactIndex, TokenIndex
from paradigms.recipe import Recipe

BLOCK = 1 << 16  # padded tokens that go from one index to another at once


@dataclass
class Timed:
    """One way to search: its name, what it searches, and what came of it."""

    system: str
    kind: str
    probes: int  # lists that a query looks into; 0 = all vectors
    index: TokenIndex
    recipe: Recipe
    queries: Tokens
    milliseconds: np.ndarray = field(default_factory=lambda: np.array(np.inf))  # of each encoded query
    found: Run = field(default_factory=dict)


def time_searches(
    systems: Mapping[str, tuple[Paradigm, ExactIndex]],
    queries: Mapping[str, str],
    folder: Path,
    *,
    probes: Sequence[int],
    k: int,
    repeats: int,
) -> list[Timed]:
    """Every system searched exactly, and in each kind of index with each number of probes, query by query.

    All ways take turns in every repeat, so that they share what else the machine does; of each query the
    fastest repeat counts, and the first one warms up. Indexes go to `folder`, and searches run on the CPU.
    """
    ways = [
        way
        for system, (model, exact) in systems.items()
        for way in _ways(system, model, exact, queries, folder, probes, k)
    ]
    for _ in range(repeats):
        for way in ways:
            if way.probes:
                way.index.probes = way.probes  # type: ignore[attr-defined]
            seconds = []
            for n, name in enumerate(queries):
                began = time.perf_counter()
                (way.found[name],) = way.index.search_tokens(way.recipe, way.queries[n : n + 1], k)
                seconds.append(time.perf_counter() - began)
            way.milliseconds = np.minimum(way.milliseconds, 1000 * np.array(seconds))
    return ways


def _ways(
    system: str,
    model: Paradigm,
    exact: ExactIndex,
    queries: Mapping[str, str],
    folder: Path,
    probes: Sequence[int],
    k: int,
) -> Iterator[Timed]:
    """Nothing is encoded again: approximate indexes take the vectors of the exact one."""
    # The best m·k vectors are of at least k documents, the k best: no more is to be retrieved.
    m = 1 if model.encoder.settings.document_vectors == "pooled" else model.encoder.settings.first
    recipe = replace(model.recipe, search_tokens=m * k)
    encoded = model.encode_queries(list(queries.values())).to("cpu")
    yield Timed(system, "exact", 0, exact, recipe, encoded)
    lists = max(1, round(int(exact.offsets[-1]) ** 0.5))
    options: dict[str, dict[str, Any]] = {
        "faiss": {"factory": f"IVF{lists},SQfp16"},
        "compressed": {"lists": lists},
    }
    for kind, of in options.items():
        parts = ((exact.names(rows), exact.tokens(rows)) for rows in exact.blocks(BLOCK))
        common = {"paradigm": model.name, "dim": model.encoder.dim}
        index = INDEXES[kind].build_from(parts, folder / f"{system}-{kind}", **common, **of)
        for number in sorted({min(number, lists) for number in probes}):
            yield Timed(system, kind, number, index, recipe, encoded)
