"""Wrappers that adapt retrievers to passages, queries that are also documents, and several processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import distributed

from paradigms.data import Corpus, Run, best_first
from paradigms.data.identical import without_own
from paradigms.data.pieces import Pieces
from paradigms.data.results import any_queries
from paradigms.explanation import Explanation
from paradigms.io.checks import check_texts
from paradigms.retrieve.indexed import Indexed
from paradigms.retrieve.merged import Merged, joined
from paradigms.retrieve.retriever import Retriever
from paradigms.store.building import Launch

BLOCK = 256  # queries whose results processes send at once
WIDER = 4  # factor by which to increase the number of passages if a query gets too few documents


@dataclass(frozen=True, eq=False)
class Wrapper:
    """A retriever that modifies the searches of another retriever."""

    retriever: Retriever

    @property
    def corpus(self) -> Corpus | None:
        return getattr(self.retriever, "corpus", None)

    def size_in_bytes(self) -> int:
        return self.retriever.size_in_bytes()

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        return self.retriever.explain(query, document, others)


@dataclass(frozen=True, eq=False)
class Passages(Wrapper):
    """Rank documents by their passages: score(d) = sum of the `best` largest scores of d's passages.

    retriever: a retriever over `pieces.corpus`. best: number of passages to sum; 1 gives MaxP (Dai and
    Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019).
    """

    pieces: Pieces
    best: int = 1

    def __post_init__(self) -> None:
        if self.best < 1:
            raise ValueError(f"best must be at least 1 passage, got {self.best}")

    @property
    def corpus(self) -> Corpus:
        return self.pieces.source

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Return the k best documents for each query.

        If best > 1, only the 2k documents with the best single passages are scored by multiple passages.
        """
        check_texts(queries, "query")
        size = len(self.pieces.corpus)
        mean = self.pieces.mean
        summed = self.best > 1 and mean > 1
        count = 2 * k if summed else k
        run: Run = {query: {} for query in queries}
        left = dict(queries)
        depth = min(count * mean, size)
        while left:
            for query, scores in self.retriever.search(left, depth, progress=progress).items():
                documents = self.pieces.documents(scores)
                if len(documents) >= count or len(scores) < depth or depth == size:
                    del left[query]
                    run[query] = best_first(documents, count)
            depth = min(WIDER * depth, size)
        if summed:
            run = self.rerank(queries, run, progress=progress)
        return {query: best_first(scores, k) for query, scores in run.items()}

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        passages = {query: self._of(documents) for query, documents in run.items()}
        scored = self.retriever.rerank(queries, passages, progress=progress)
        return {query: best_first(self.pieces.documents(row, self.best)) for query, row in scored.items()}

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Explain the score of the document's best passage."""
        passages = self._of([document])
        if len(passages) > 1:
            passages = self.retriever.rerank({"": query}, {"": passages})[""]
        return self.retriever.explain(query, next(iter(passages)), list(self._of(others)))

    def _of(self, documents: Iterable[str]) -> dict[str, float]:
        """Map all passages of these documents to score 0."""
        return dict.fromkeys((passage for id in documents for passage in self.pieces.of(id)), 0.0)


@dataclass(frozen=True, eq=False)
class WithoutOwn(Wrapper):
    """Exclude each query's own document, which has the same id as the query.

    ids: ids of the queries that are also documents (`data.identical.own_documents`).
    """

    ids: Set[str]

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        depth = k + 1 if self.ids and k > 0 else k
        return without_own(self.retriever.search(queries, depth, progress=progress), self.ids, k)

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        return self.retriever.rerank(queries, without_own(run, self.ids), progress=progress)


@dataclass(frozen=True, eq=False)
class AllProcesses(Wrapper):
    """Divide each search among the processes of a launch, without changing the results.

    Every process calls the methods with the same arguments. If the index can be divided (`Indexed.part`),
    each process searches one part of the documents, and the results are merged. Otherwise, and for reranking,
    the queries are divided. Results are sent for BLOCK queries at a time, and process 0 merges them.

    launch: object that describes the processes, such as accelerate's `Accelerator` or `PartialState`.
    to_all: whether every process receives the results; if not, those after process 0 receive no documents.
    """

    launch: Launch
    to_all: bool = True

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        check_texts(queries, "query")
        rank = self.launch.process_index
        count = self.launch.num_processes
        searched = self.retriever
        if count > 1 and isinstance(searched, Indexed | Merged) and (part := searched.part(rank, count)):
            return self._merged(queries, part.search(queries, k, progress=progress), k)
        mine = {query: queries[query] for query in list(queries)[rank::count]}
        return self._merged(queries, searched.search(mine, k, progress=progress))

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        rank = self.launch.process_index
        count = self.launch.num_processes
        mine = {query: run[query] for query in list(run)[rank::count]}
        return self._merged(run, self.retriever.rerank(queries, mine, progress=progress))

    def _merged(self, queries: Iterable[str], run: Run, k: int | None = None) -> Run:
        """Merge the runs of all processes. k: number of documents to keep per query; None keeps all."""
        count = self.launch.num_processes
        if count == 1:
            return {query: best_first(run.get(query, {}), k) for query in queries}
        names = list(queries)
        merged: Run = {}
        for start in range(0, len(names), BLOCK):
            block = names[start : start + BLOCK]
            parts: list[Any] | None = [None] * count if self.launch.process_index == 0 else None
            distributed.gather_object({query: run.get(query, {}) for query in block}, parts)
            results: list[Run] = [{query: best_first(joined(parts or [], query), k) for query in block}]
            if self.to_all:
                distributed.broadcast_object_list(results)
            merged |= results[0]
        return merged
