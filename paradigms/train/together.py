"""Search and reranking by all processes of a launch, with the answers of one process.

An exact search that gathers (`Recipe.search`) divides the documents: each process, with its GPU, reads its
share of the index, and the best of all are merged. Imputation needs the best tokens of the whole index, and
an approximate index finds other candidates in a part: these divide the queries, as reranking does.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object

from paradigms.data import Run, best_first
from paradigms.index import ExactIndex
from paradigms.index.base import TokenIndex
from paradigms.model import Paradigm


def together(
    index: TokenIndex, paradigm: Paradigm, launch: Accelerator | PartialState
) -> tuple[Callable[..., Run], Callable[..., Run]]:
    """(search(queries, k), rerank(queries, run)), which every process calls with the same arguments, and
    which give each of them all results."""
    count, place = launch.num_processes, launch.process_index

    def search(queries: Mapping[str, str], k: int, **options: Any) -> Run:
        if not isinstance(index, ExactIndex) or paradigm.recipe.search != "gather":
            mine = {query: queries[query] for query in list(queries)[place::count]}
            return _merged(queries, index.search(paradigm, mine, k, **options))
        rows = np.array_split(np.flatnonzero(index.living), count)[place]
        part = index.only(index.names(rows))
        return _merged(queries, part.search(paradigm, queries, k, **options), k)

    def rerank(queries: Mapping[str, str], run: Run, **options: Any) -> Run:
        mine = {query: run[query] for query in list(run)[place::count]}
        return _merged(run, index.rerank(paradigm, queries, mine, **options))

    return search, rerank


def _merged(queries: Mapping[str, Any], found: Run, k: int | None = None) -> Run:
    """The results of all processes, those for one query as one list; its first k, or all."""
    merged: Run = {query: {} for query in queries}
    for part in gather_object([found]):
        for query, scores in part.items():
            merged[query] |= scores
    return {query: best_first(scores, k) for query, scores in merged.items()}
