"""`Indexed`: an index together with the model that encodes its queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.core import Tokens
from paradigms.data import Corpus, Run, Texts, check_queries
from paradigms.data.results import any_queries
from paradigms.encoder.batches import by_length
from paradigms.encoder.precision import AUTO, autocast
from paradigms.explanation import Explanation
from paradigms.find import INDEXES, Index, open_index
from paradigms.find.recall import Approximate, query_texts
from paradigms.find.scan import Exact
from paradigms.io.checks import check_texts
from paradigms.io.guesses import Guessed
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.store import Kind, Store
from paradigms.store.building import Launch
from paradigms.store.pruning import most_salient

QUERIES = 64  # queries encoded at once


@dataclass(frozen=True, eq=False)
class Indexed(Guessed):
    """Search and rerank by rel over an index (`paradigms.find`).

    model: the model that made the index, possibly with another alignment. corpus: the documents' texts, for
    `explain`. keep: β^q, the share of each query's tokens to search with; the most salient tokens are kept.
    precision: precision for encoding queries; see `encoder.precision`. Raises ValueError, naming documents,
    if the index was built from other texts than the corpus has (`Store.check_texts`).
    """

    index: Index
    model: Paradigm
    corpus: Corpus | None = None
    keep: float = 1.0
    precision: str = AUTO

    def __post_init__(self) -> None:
        if isinstance(self.index, Paradigm):
            raise TypeError("Index.build(model, texts) makes an index; Index.open(folder, model) opens one")
        if self.corpus is not None:
            self.index.store.check_texts(self.corpus)

    @classmethod
    def build(
        cls,
        model: Paradigm,
        texts: Texts,
        folder: str | Path | None = None,
        *,
        kind: Kind | str = "exact",
        precision: str = AUTO,
        dim: int | None = None,
        **settings: Any,
    ) -> Indexed:
        """Encode texts into an index.

        texts: a corpus, document id → text, or a list, whose ids are "0", "1" and so on. folder: where to
        store the index; None keeps it in memory. kind: a kind such as `find.kinds.compressed(bits=4)`, or a
        key of `INDEXES`. precision: precision for encoding documents and queries. dim: number of leading
        coordinates of each vector to store and to search with (`Paradigm.truncated`); None means all.
        settings: arguments of `Store.build`, such as progress.
        """
        model = model if dim is None else model.truncated(dim)
        corpus = Corpus.of(texts)
        index_kind = INDEXES[kind]() if isinstance(kind, str) else kind
        settings["precision"] = precision
        store = Store.build(index_kind, model, corpus.ids, corpus, folder, **settings)
        built = cls(Index(store), model, corpus, precision=precision)
        launch: Launch | None = settings.get("launch")
        if folder is None or launch is None or launch.num_processes == 1:
            return built.tuned()
        try:
            if launch.process_index == 0:
                built.tuned()
        finally:
            launch.wait_for_everyone()  # also if it fails, or the others would wait for ever
        return replace(built, index=open_index(folder))

    @classmethod
    def open(cls, folder: str | Path, model: Paradigm, corpus: Corpus | None = None) -> Indexed:
        """Open the index in a folder; for several folders, see `Merged.open`.

        The model is truncated if the index was built with fewer dimensions. Raises ValueError if the index
        was built by another model or from other texts.
        """
        index = open_index(folder)
        if index.store.dim < model.encoder.dim and index.store.fits(model):
            model = model.truncated(index.store.dim)
        index.store.check(model)
        return cls(index, model, corpus)

    def tuned(self) -> Indexed:
        """Choose the settings of a finder that reads a part of the index by its recall (`find.recall`).

        Queries are drawn from the corpus. A finder that finds everything needs none.
        """
        if self.corpus is None or not isinstance(self.index.finder, Approximate) or not len(self.corpus):
            return self
        texts = query_texts(self.corpus, self.index.store.living_tokens)
        named = {str(n): text for n, text in enumerate(texts)}
        encoded = [part for _, part in encoded_queries(self.model, named, self.precision)]
        return replace(self, index=self.index.tuned(self.model.recipe, encoded))

    def size_in_bytes(self) -> int:
        return round(self.index.store.bytes_per_document * len(self.index))

    def only(self, ids: Iterable[str]) -> Indexed:
        """Return a retriever restricted to these documents. Raises KeyError if an id is unknown."""
        return replace(self, index=self.index.only(ids))

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        check_texts(queries, "query")
        self.index.store.check(self.model)
        with progress_bar(progress) as bar:
            task = bar.add_task(f"search {self.model.name}", total=len(queries))
            encoded = list(encoded_queries(self.model, queries, self.precision))
            parts = [most_salient(part, self.keep) for _, part in encoded]
            ranked = self.index.search_tokens(
                self.model.recipe, parts, k, advance=lambda n: bar.advance(task, n)
            )
        by_name = dict(zip((name for names, _ in encoded for name in names), ranked, strict=True))
        return {name: by_name[name] for name in queries}

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        return self.rankings(queries, run, [self.model.recipe], progress=progress)[0]

    def rankings(
        self, queries: Mapping[str, str], run: Run, recipes: Sequence[Recipe], *, progress: bool = False
    ) -> list[Run]:
        """Rerank with each recipe, encoding the queries only once; return one run per recipe."""
        self.index.store.check(self.model)
        check_queries(run, queries)
        for candidates in run.values():
            self.index.store.positions(candidates)
        texts = {query: queries[query] for query in run if run[query]}
        runs: list[Run] = [{} for _ in recipes]
        with progress_bar(progress) as bar:
            task = bar.add_task(f"rerank {self.model.name}", total=len(texts))
            for names, encoded in encoded_queries(self.model, texts, self.precision):
                scored = self.index.rerank_tokens(recipes, encoded, [list(run[query]) for query in names])
                for new, ranked in zip(runs, scored, strict=True):
                    new |= dict(zip(names, ranked, strict=True))
                bar.advance(task, len(names))
        return [{query: new.get(query, {}) for query in run} for new in runs]

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        text = text_of(self.corpus, document)
        pool = None
        if others and "pool" in self.model.reads:
            pool = self.index.store.tokens_of(others, self.model.encoder.device)
        return [self.model.explain(query, text, pool)]

    def part(self, n: int, count: int) -> Indexed | None:
        """Return a retriever over the n-th of `count` parts of the documents.

        Returns None if parts of the documents cannot be searched separately.
        """
        if self.model.recipe.search != "gather" or not isinstance(self.index.finder, Exact):
            return None
        rows = np.array_split(np.flatnonzero(self.index.store.living), count)[n]
        return self.only(self.index.store.names(rows))


def encoded_queries(
    model: Paradigm, queries: Mapping[str, str], precision: str
) -> Iterator[tuple[list[str], Tokens]]:
    """Yield batches of ids and Q, with at most QUERIES queries of similar length."""
    names = list(queries)
    for places in by_length([len(text) for text in queries.values()], rows=QUERIES):
        ids = [names[n] for n in places]
        with autocast(model.encoder.device, precision):
            encoded = model.encode_queries([queries[name] for name in ids])
        yield ids, encoded


def text_of(corpus: Corpus | None, document: str) -> str:
    """Return the text of a document, by its id. Raises ValueError if corpus is None."""
    if corpus is None:
        raise ValueError("explaining a score needs the documents' texts: give the retriever its corpus")
    return corpus[corpus.position(document)]
