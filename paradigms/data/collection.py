"""Retrieval collections, which consist of documents and of splits of queries with graded judgements."""

import hashlib
from bisect import bisect_right
from collections.abc import Collection as Names
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from math import isnan
from typing import Any, overload

import numpy as np

from paradigms.io.checks import as_sequence, check_id, check_texts

Judgements = dict[str, dict[str, int]]
"""Query id -> document id -> grade; a grade above 0 is relevant."""
Run = dict[str, dict[str, float]]
"""Query id -> document id -> score; higher is better."""

EXAMPLES = 3


Document = tuple[str, str, str]
"""(id, title, text); the text begins with the title."""


class Joined(Sequence[Any]):
    """Concatenated sequences, without copying."""

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self.parts = parts
        self.ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.parts)

    def __getitem__(self, index: Any) -> Any:
        at = range(len(self))[index]
        part = bisect_right(self.ends, at)
        return self.parts[part][at - self.ends[part] + len(self.parts[part])]


class Corpus(Sequence[str]):
    """Documents, accessed by position, corpus[i], or by id, corpus[corpus.position(id)].

    titles[i] is the title of document i, or "". If the source keeps titles and texts apart, the text begins
    with the title (`joined`). `texts` and `titles` may be lists or sequences that read on demand.
    """

    def __init__(self, ids: list[str], texts: Sequence[str], titles: Sequence[str] | None = None):
        ids = ids if isinstance(ids, list) else list(as_sequence(ids, "ids"))
        texts = as_sequence(texts, "texts")
        for id in ids:
            check_id(id, "document")
        self.ids = ids
        self.titles: Sequence[str] = [""] * len(ids) if titles is None else titles
        if not len(ids) == len(texts) == len(self.titles):
            counts = f"{len(ids)} ids, {len(texts)} texts, {len(self.titles)} titles"
            raise ValueError(f"{counts}: numbers must be equal")
        self._texts = texts
        self._positions = {id: i for i, id in enumerate(ids)}
        if len(self._positions) != len(ids):
            raise ValueError("the ids of a corpus must be unique")

    @classmethod
    def of(cls, texts: "Texts") -> "Corpus":
        if isinstance(texts, Corpus):
            return texts
        if not isinstance(texts, Mapping):
            texts = {str(n): text for n, text in enumerate(as_sequence(texts, "documents"))}
        check_texts(texts, "document")
        return cls(list(texts), list(texts.values()))

    @classmethod
    def joined(cls, corpora: "Sequence[Corpus]") -> "Corpus":
        """Concatenate several corpora; texts are still read on demand."""
        ids = [id for corpus in corpora for id in corpus.ids]
        return cls(ids, Joined(corpora), Joined([corpus.titles for corpus in corpora]))

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._texts[i] for i in range(*index.indices(len(self)))]
        return self._texts[int(index)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def has(self, id: str) -> bool:
        return id in self._positions

    def position(self, id: str) -> int:
        """Return the i with ids[i] == id. Raises KeyError if the id is unknown."""
        try:
            return self._positions[id]
        except KeyError:
            raise KeyError(f"no document {id!r} among the {len(self)} of this corpus") from None

    def document(self, id: str) -> Document:
        """Return (id, title, text). Raises KeyError if the id is unknown."""
        position = self.position(id)
        return id, self.titles[position], self[position]

    @cached_property
    def copies(self) -> dict[str, str]:
        """Map each document whose text an earlier document has to the first document with this text."""
        hashes = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in self)
        digests = np.fromiter(hashes, "S32", len(self))
        _, firsts, numbers = np.unique(digests, return_index=True, return_inverse=True)
        first = firsts[numbers]
        return {self.ids[n]: self.ids[first[n]] for n in np.flatnonzero(first < np.arange(len(self)))}

    def first(self, id: str) -> int:
        """Return the position of the first document with the text of document `id`.

        Training compares documents by this position: a copy of a relevant document is relevant.
        """
        return self.position(self.copies.get(id, id))

    def only(self, ids: Iterable[str]) -> "Corpus":
        """Restrict the corpus to the given documents, in corpus order. Raises KeyError for an unknown id."""
        rows = sorted({self.position(id) for id in ids})
        titles = [self.titles[row] for row in rows]
        return Corpus([self.ids[row] for row in rows], [self[row] for row in rows], titles)


Texts = Corpus | Mapping[str, str] | Iterable[str]
"""Documents: a corpus, document id → text, or texts whose ids are "0", "1" and so on."""


@dataclass(frozen=True)
class Split:
    """The queries of one split, and judgements keyed by the same query ids.

    answers: query id -> answers. A document is relevant if it contains one; judgements may be empty. groups:
    query id -> group, for macro-averages; either all queries have a group or none do.
    """

    queries: dict[str, str]
    judgements: Judgements
    answers: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def only(self, ids: Iterable[str]) -> "Split":
        """Restrict the split to the given queries, in the order of `ids`."""
        ids = list(ids)
        return Split(
            {q: self.queries[q] for q in ids},
            {q: self.judgements[q] for q in ids},
            {q: self.answers[q] for q in ids if q in self.answers},
            {q: self.groups[q] for q in ids if q in self.groups},
        )


@dataclass
class Problems:
    """Problems in the data that did not prevent loading: a count and the first few cases of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def lines(self) -> list[str]:
        """Return one line per kind: "judgement for an absent document (left out): 12, e.g. …"."""
        return [f"{kind}: {n:,}, e.g. {'; '.join(self.examples[kind])}" for kind, n in self.counts.items()]

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class Collection:
    """A named corpus with its splits.

    measures: the measures reported in the collection's paper; systems are compared by the first one.
    fingerprint: sha256 of documents in order, queries, judgements and answers; a title and its text are
    hashed as one string.
    """

    name: str
    corpus: Corpus
    splits: dict[str, Split]
    problems: Problems
    fingerprint: str
    measures: tuple[str, ...] = ()
    built_in: bool = False  # pydocs, or a subset of it

    def split(self, name: str) -> Split:
        """Look up a split. Raises ValueError, with the existing names, if the name is unknown."""
        if name not in self.splits:
            raise ValueError(f"{self.name} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]


def all_queries(collection: Collection) -> tuple[dict[str, str], Judgements]:
    """Merge queries and judgements of all splits. Raises ValueError if an id has two different queries."""
    queries: dict[str, str] = {}
    judged: Judgements = {}
    for split in collection.splits.values():
        for query, text in split.queries.items():
            if queries.setdefault(query, text) != text:
                raise ValueError(
                    f"{collection.name}: two splits have different queries with the id {query!r}"
                )
            judged[query] = {**judged.get(query, {}), **split.judgements[query]}
    return queries, judged


def best_first(scores: Mapping[str, float], count: int | None = None) -> dict[str, float]:
    """Rank documents by descending score, then by id; return the first `count`, or all.

    >>> best_first({"b": 1.0, "a": 1.0, "c": 2.0}, 2)
    {'c': 2.0, 'a': 1.0}
    """
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count])


def ranked(query: str, scores: Mapping[str, float], count: int | None = None) -> dict[str, float]:
    """Rank a query's documents by `best_first`. Raises ValueError if a score is NaN."""
    unranked = next((document for document, score in scores.items() if isnan(score)), None)
    if unranked is not None:
        raise ValueError(f"the score of document {unranked!r} for query {query!r} is NaN: it has no rank")
    return best_first(scores, count)


def check_queries(run: Iterable[str], queries: Mapping[str, str]) -> None:
    """Raise KeyError if a query in the run has no text, and the errors of `check_texts`."""
    check_texts(queries, "query")
    unknown = next((query for query in run if query not in queries), None)
    if unknown is not None:
        raise KeyError(f"the run has the query {unknown!r}, which has no text")


def check_answered(run: Run, queries: Names[str], where: object) -> None:
    """Raise ValueError, beginning with `where`, if the run lacks a query, even one without documents."""
    lost = [query for query in queries if query not in run]
    if lost:
        rest = f"{len(lost):,} of {len(queries):,} queries have no answer, such as {lost[0]!r}"
        raise ValueError(f"{where}: {rest}")


def hold_out(split: Split, share: float, seed: int = 0) -> tuple[Split, Split]:
    """Hold out round(share · queries) queries, drawn by a hash of their ids. Returns (the rest, held out)."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in [0, 1], not {share}")
    order = hash_order(split.queries, seed)
    held_out = set(order[: round(share * len(order))])
    rest = split.only(q for q in split.queries if q not in held_out)
    return rest, split.only(q for q in split.queries if q in held_out)


def hash_order(ids: Names[str], seed: int = 0) -> list[str]:
    """Sort ids by their hash, a random order that depends on the ids alone: the first n are a draw of n."""
    return sorted(ids, key=lambda id: hashlib.sha256(f"{seed} {id}".encode()).digest())


def joined(title: str, text: str) -> str:
    """Join a title and a text with a space, as BEIR does."""
    return f"{title} {text}".strip()


def body(title: str, text: str) -> str:
    """Remove the title from the start of a text: the inverse of `joined`."""
    return text.removeprefix(f"{title} ") if title else text
