"""Retrievers that only rerank, and `retriever_of`, which makes a retriever from any kind of model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.encoder.precision import AUTO
from paradigms.explanation import Explanation
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.model import Paradigm
from paradigms.retrieve.indexed import Indexed
from paradigms.retrieve.retriever import Retriever

Model: TypeAlias = Paradigm | Generative | CrossAttention


def retriever_of(
    model: Model,
    texts: Corpus | Mapping[str, str],
    folder: str | Path | None = None,
    *,
    first: Retriever | None = None,
    precision: str = AUTO,
    progress: bool = False,
    **settings: Any,
) -> Retriever:
    """Make a retriever from any kind of model and the texts of a corpus.

    A paradigm encodes the texts with `Indexed.build`, which receives folder, progress and settings. A
    generative model ranks the corpus that it was built for, under the caller's autocast. A cross-attention
    model reranks the documents that `first` retrieves, and cannot search without `first`. precision: see
    `encoder.precision`.
    """
    if isinstance(model, Generative):
        return GenerativeRetriever(model)
    if isinstance(model, CrossAttention):
        corpus = Corpus.of(texts)
        return Reranking(model, corpus, first, precision) if first else TextPairs(model, corpus, precision)
    return Indexed.build(model, texts, folder, precision=precision, progress=progress, **settings)


@dataclass(frozen=True, eq=False)
class Reranking:
    """Rerank with any kind of model, which encodes only the candidates and stores nothing.

    first: retriever that finds k candidates per query for `search`. precision: see `retriever_of`.
    """

    model: Model
    corpus: Corpus
    first: Retriever | None = None
    precision: str = AUTO

    def size_in_bytes(self) -> int:
        return 0

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Rerank the k best documents of `first`. Raises ValueError if `first` is None."""
        if self.first is None:
            raise ValueError(f"{self.model.name} only reranks: give `first`, which retrieves its candidates")
        return self.rerank(queries, self.first.search(queries, k, progress=progress), progress=progress)

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        ids = (document for documents in run.values() for document in documents)
        return self._part(ids, progress).rerank(queries, run, progress=progress)

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        return self._part([document, *others]).explain(query, document, others)

    def _part(self, ids: Iterable[str], progress: bool = False) -> Retriever:
        return retriever_of(self.model, self.corpus.only(ids), precision=self.precision, progress=progress)


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Rerank with a model that reads query and document together and thus has no alignment to explain."""

    model: CrossAttention
    corpus: Corpus
    precision: str = AUTO

    def size_in_bytes(self) -> int:
        return 0

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Raise ValueError, because a search would have to read every document with every query."""
        raise ValueError(f"{self.model.name} cannot search, it only scores pairs: rerank a run with it")

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        check_queries(run, queries)
        names = [(query, document) for query, documents in run.items() for document in documents]
        texts = {id: self.corpus[self.corpus.position(id)] for _, id in names}
        pairs = [(queries[query], texts[id]) for query, id in names]
        values = self.model.score_texts(pairs, precision=self.precision, progress=progress)
        reranked: Run = {query: {} for query in run}
        for (query, document), value in zip(names, values, strict=True):
            reranked[query][document] = value
        return {query: best_first(scores) for query, scores in reranked.items()}

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        return []
