"""Search one index for each of BGE-M3's three parts, and rank by the sum of the parts' scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.bge_m3 import PARTS, Part, part_of
from paradigms.core import Tokens
from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.encoder.precision import AUTO
from paradigms.explanation import Explanation
from paradigms.find import Index, kinds, open_index
from paradigms.identity import differing, identity
from paradigms.io.checks import check_texts
from paradigms.io.files import remove_folder
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.retrieve.indexed import encoded_queries, text_of
from paradigms.store import Kind, Store
from paradigms.store.build import store_files
from paradigms.store.store import BLOCK

KINDS: dict[Part, Kind] = {
    "dense": kinds.exact(),
    "sparse": kinds.inverted(),
    "tokens": kinds.compressed(bits=4),
}
WHOLE = "whole"  # folder of all tokens while `build` runs


@dataclass(frozen=True, eq=False)
class Readouts:
    """Rank by the sum of the parts' scores, which equals the model's rel up to the indexes' rounding.

    Each part retrieves `depth` documents (at least k), and every part scores all documents that any part
    retrieves. Each text is encoded once. Other fields: see `Indexed`.
    """

    indexes: Mapping[Part, Index]
    model: Paradigm
    corpus: Corpus | None = None
    depth: int = 100
    precision: str = AUTO

    @classmethod
    def build(
        cls,
        model: Paradigm,
        texts: Corpus | Mapping[str, str],
        folder: str | Path | None = None,
        *,
        of: Mapping[Part, Kind] = KINDS,
        depth: int = 100,
        precision: str = AUTO,
        **settings: Any,
    ) -> Readouts:
        """Encode texts once, and store each part as its kind of index.

        of: part → kind; parts that are left out are not stored, and not in the sum. folder: folder in which
        to create one folder per part; None keeps the parts in memory. settings: arguments of `Store.build`.
        """
        corpus, place = Corpus.of(texts), None if folder is None else Path(folder)
        whole = place and place / WHOLE
        settings["precision"] = precision
        store = Store.build(kinds.exact(), model, corpus.ids, corpus, whole, **settings)
        made = {}
        for part, kind in of.items():
            blocks = store.blocks(BLOCK, np.flatnonzero(store.living))
            made[part] = Store.build_from(
                kind,
                ((store.names(rows), part_of(store.tokens(rows), part)) for rows in blocks),
                place and place / part,
                paradigm=PARTS[part].name,
                dim=1 if part == "sparse" else store.dim,
                fields=("vectors", "ids") if part == "sparse" else ("vectors",),
                count=len(store),
                identity=identity(model.encoder),
            )
        if whole is not None:
            remove_folder(whole, store_files)
        indexes = {part: Index(store) for part, store in made.items()}
        return cls(indexes, model, corpus, depth, precision)

    @classmethod
    def open(cls, folder: str | Path, model: Paradigm, corpus: Corpus | None = None) -> Readouts:
        """Open indexes written by `build`.

        Raises ValueError if another model made them or `build` was interrupted.
        """
        there = [part for part in PARTS if (Path(folder) / part).is_dir()]
        if not there:
            raise FileNotFoundError(f"{folder} has none of the folders {', '.join(PARTS)}")
        if (Path(folder) / WHOLE).exists():  # removed when all parts are written
            raise ValueError(f"{folder} was not finished: build it again")
        made = cls({part: open_index(Path(folder) / part) for part in there}, model, corpus)
        made.check()
        return made

    def check(self) -> None:
        """Raise ValueError if the indexes were built by another model."""
        now = identity(self.model.encoder)
        for index in self.indexes.values():
            if other := differing(index.store.manifest.get("identity", {}), now):
                raise ValueError(f"{index.store} was not made by this {self.model.name} ({other})")

    def size_in_bytes(self) -> int:
        return round(sum(index.store.bytes_per_document * len(index) for index in self.indexes.values()))

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        check_texts(queries, "query")
        depth, run = max(k, self.depth) if k > 0 else k, Run()
        for names, encoded in self._encoded(queries, progress):
            candidates: list[dict[str, float]] = [{} for _ in names]
            for part, index in self.indexes.items():
                for documents, ranked in zip(
                    candidates, index.search_tokens(PARTS[part], part_of(encoded, part), depth), strict=True
                ):
                    documents |= ranked
            summed = self._summed(encoded, [list(documents) for documents in candidates])
            run |= {name: best_first(row, k) for name, row in zip(names, summed, strict=True)}
        return {name: run[name] for name in queries}

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        check_queries(run, queries)
        new: Run = {query: {} for query in run}
        asked = {query: queries[query] for query in run if run[query]}
        for names, encoded in self._encoded(asked, progress):
            rows = self._summed(encoded, [list(run[name]) for name in names])
            new |= {name: best_first(row) for name, row in zip(names, rows, strict=True)}
        return new

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        return [self.model.explain(query, text_of(self.corpus, document))]

    def _encoded(self, queries: Mapping[str, str], progress: bool) -> Iterator[tuple[list[str], Tokens]]:
        self.check()
        with progress_bar(progress) as bar:
            task = bar.add_task(f"search {self.model.name}", total=len(queries))
            for some, encoded in encoded_queries(self.model, queries, self.precision):
                yield some, encoded
                bar.advance(task, len(some))

    def _summed(self, encoded: Tokens, candidates: list[list[str]]) -> list[dict[str, float]]:
        """The sum of all parts' scores; a part without tokens adds 0, a document without any has −∞."""
        summed: list[dict[str, float]] = [dict.fromkeys(ids, -np.inf) for ids in candidates]
        for part, index in self.indexes.items():
            (rows,) = index.rerank_tokens([PARTS[part]], part_of(encoded, part), candidates)
            for total, scores in zip(summed, rows, strict=True):
                for id, score in scores.items():
                    if score > -np.inf:
                        total[id] = score if total[id] == -np.inf else total[id] + score
        return summed
