"""Retrievers that only rerank, and `retriever_of`, which makes a retriever from any kind of model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from paradigms.data import Corpus, Run, Texts
from paradigms.data.results import any_queries
from paradigms.encoder.precision import AUTO
from paradigms.explanation import Explanation
from paradigms.model import Paradigm
from paradigms.retrieve.indexed import Indexed
from paradigms.retrieve.retriever import Retriever
from paradigms.trainable import Trainable

Model: TypeAlias = Trainable  # of any kind


def retriever_of(
    model: Model,
    texts: Texts,
    folder: str | Path | None = None,
    *,
    first: Retriever | None = None,
    precision: str = AUTO,
    progress: bool = False,
    **settings: Any,
) -> Retriever:
    """Make a retriever from any kind of model and the texts of a corpus.

    A paradigm encodes the texts with `Indexed.build`, which receives folder, progress and settings. Other
    models bring their own `retriever`: a generative model ranks the corpus that it was built for, under the
    caller's autocast; a cross-attention model reranks the documents that `first` retrieves, and cannot search
    without `first`. precision: see `encoder.precision`.
    """
    if isinstance(model, Paradigm):
        return Indexed.build(model, texts, folder, precision=precision, progress=progress, **settings)
    corpus = Corpus.of(texts)
    if first is not None and not model.searches:
        return Reranking(model, corpus, first, precision)
    return model.retriever(corpus, precision)


@dataclass(frozen=True, eq=False)
class Reranking:
    """Rerank with any kind of model, which encodes only the candidates and stores nothing.

    first: retriever that finds k candidates per query for `search`. precision: see `retriever_of`.
    """

    model: Model
    corpus: Corpus
    first: Retriever | None = None
    precision: str = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "corpus", Corpus.of(self.corpus))  # also of a list or a dict of texts

    def size_in_bytes(self) -> int:
        return 0

    @any_queries
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
