"""`Merged`: several indexes of different documents, searched as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.data.results import any_queries
from paradigms.encoder.towers import described
from paradigms.explanation import Explanation
from paradigms.identity import differing
from paradigms.model import Paradigm
from paradigms.retrieve.indexed import Indexed


@dataclass(frozen=True, eq=False)
class Merged:
    """Search and rerank several indexes of different documents, made by one model, and merge their runs.

    A document's score is that of its own index. It equals the score in one index of all documents, except if
    the paradigm reads the whole pool (XTR): each index then retrieves k' tokens for each query token, and
    imputes from these alone. Raises ValueError if there is no index, if two contain the same document, or if
    they differ in what made their vectors, in the dimensions that they keep, or in the recipe.
    """

    parts: Sequence[Indexed]
    _owners: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # id → its index

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("there is no index to search")
        first = self.parts[0]
        for part in self.parts[1:]:
            if other := differing(_origin(part), _origin(first)):
                stores = f"{part.index.store} and {first.index.store}"
                raise ValueError(f"{stores} are not of one model ({other}): search each alone")
        for n, part in enumerate(self.parts):
            store = part.index.store
            for id in compress(store.ids, store.living):
                if self._owners.setdefault(id, n) != n:
                    raise ValueError(f"document {id!r} of {store} is also in another index: delete it")

    @classmethod
    def open(cls, folders: Sequence[str | Path], model: Paradigm, corpus: Corpus | None = None) -> Merged:
        """Open the indexes in several folders; see `Indexed.open`."""
        return cls([Indexed.open(folder, model, corpus) for folder in folders])

    @property
    def model(self) -> Paradigm:
        return self.parts[0].model

    @cached_property
    def corpus(self) -> Corpus | None:
        corpora = {id(part.corpus): part.corpus for part in self.parts if part.corpus is not None}
        return Corpus.joined(list(corpora.values())) if corpora else None

    def size_in_bytes(self) -> int:
        return sum(part.size_in_bytes() for part in self.parts)

    def only(self, ids: Iterable[str]) -> Merged:
        """Return a retriever restricted to these documents. Raises KeyError if an id is unknown."""
        pairs = zip(self.parts, self._divided(ids), strict=True)
        return replace(self, parts=[part.only(names) for part, names in pairs])

    def part(self, n: int, count: int) -> Merged | None:
        """Return a retriever over the n-th of `count` parts of the indexes, or None if there are fewer."""
        return Merged(self.parts[n::count]) if len(self.parts) >= count else None

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        runs = [part.search(queries, k, progress=progress) for part in self.parts]
        return {query: best_first(joined(runs, query), k) for query in queries}

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        check_queries(run, queries)
        divided: list[Run] = [{} for _ in self.parts]
        for query, documents in run.items():
            for part_run, ids in zip(divided, self._divided(documents), strict=True):
                part_run[query] = dict.fromkeys(ids, 0.0)
        runs = [
            part.rerank(queries, part_run, progress=progress)
            for part, part_run in zip(self.parts, divided, strict=True)
        ]
        return {query: best_first(joined(runs, query)) for query in run}

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        [owner] = [n for n, ids in enumerate(self._divided([document])) if ids]
        return self.parts[owner].explain(query, document, self._divided(others)[owner])

    def _divided(self, ids: Iterable[str]) -> list[list[str]]:
        """Group documents by index, keeping their order. Raises KeyError if a document is unknown."""
        parts: list[list[str]] = [[] for _ in self.parts]
        for id in ids:
            if id not in self._owners:
                raise KeyError(f"document {id!r} is in none of the {len(self.parts)} indexes")
            parts[self._owners[id]].append(id)
        return parts


def _origin(part: Indexed) -> dict[str, Any]:
    """Return what the parts have to agree in: what made their vectors, what is stored of them, the recipe."""
    manifest = part.index.store.manifest
    stored = {name: manifest[name] for name in ("dim", "fields")} | (manifest.get("identity") or {})
    return stored | {"settings": described(part.model.encoder)} | part.model.recipe.described()


def joined(runs: Sequence[Run], query: str) -> dict[str, float]:
    """Return the documents of all runs for a query."""
    return {id: score for run in runs for id, score in run[query].items()}
