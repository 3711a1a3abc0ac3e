"""Retrieval collections, which consist of documents and of splits of queries with graded judgements.

Readers of each layout pass streams of documents, queries and judgements to `assemble`, which checks them and
counts their problems.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from collections.abc import Collection as Names
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from math import isnan
from typing import Any, overload

import numpy as np

from paradigms.io.checks import as_sequence, check_id, check_texts, is_blank

Judgements = dict[str, dict[str, int]]
"""Query id -> document id -> grade; a grade above 0 is relevant."""
Run = dict[str, dict[str, float]]
"""Query id -> document id -> score; higher is better."""

EXAMPLES = 3
LONE = "with lone surrogates (each replaced by U+FFFD)"


Document = tuple[str, str, str]
"""(id, title, text); the text begins with the title."""
Stored = Callable[[np.ndarray], tuple[Sequence[str], Sequence[str]]]
"""Positions in a stream of documents -> their titles and texts, as sequences that read on demand."""


class Joined(Sequence[str]):
    """Concatenated sequences, without copying."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self.parts, self.ends = parts, list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    def __getitem__(self, index: Any) -> Any:
        at = range(len(self))[index]
        part = bisect_right(self.ends, at)
        return self.parts[part][at - self.ends[part]]  # counted from the part's end


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
            raise ValueError(
                f"{len(ids)} ids, {len(texts)} texts, {len(self.titles)} titles: numbers must be equal"
            )
        self._texts = texts
        self._positions = {id: i for i, id in enumerate(ids)}
        if len(self._positions) != len(ids):
            raise ValueError("the ids of a corpus must be unique")

    @classmethod
    def of(cls, texts: "Corpus | Mapping[str, str]") -> "Corpus":
        """Make a corpus from document id → text; a `Corpus` is returned unchanged."""
        if isinstance(texts, Corpus):
            return texts
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
        """Return whether a document has this id."""
        return id in self._positions

    def position(self, id: str) -> int:
        """Return the i with ids[i] == id. Raises KeyError if the id is unknown."""
        try:
            return self._positions[id]
        except KeyError:
            raise KeyError(f"no document {id!r} among the {len(self)} of this corpus") from None

    @cached_property
    def copies(self) -> dict[str, str]:
        """Map each document whose text an earlier document has to the first document with this text."""
        hashes = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in self)
        every = np.fromiter(hashes, "S32", len(self))
        _, firsts, numbers = np.unique(every, return_index=True, return_inverse=True)
        first = firsts[numbers]
        return {self.ids[n]: self.ids[first[n]] for n in np.flatnonzero(first < np.arange(len(self)))}

    def first(self, id: str) -> int:
        """Return the position of the first document with the text of document `id`.

        Training compares documents by this position: a copy of a relevant document is relevant. Raises
        KeyError if the id is unknown.
        """
        return self.position(self.copies.get(id, id))

    def only(self, ids: Iterable[str]) -> "Corpus":
        """Restrict the corpus to the given documents, in corpus order. Raises KeyError for an unknown id."""
        rows = sorted({self.position(id) for id in ids})
        titles = [self.titles[row] for row in rows]
        return Corpus([self.ids[row] for row in rows], [self[row] for row in rows], titles)


@dataclass(frozen=True)
class Split:
    """The queries of one split, and judgements keyed by the same query ids.

    answers: query id -> answers. A document is relevant if it contains an answer; judgements may be empty.
    groups: query id -> group, for macro-averages over groups; either all queries have a group or none do.
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
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES:
            shown.append(example)

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
    fingerprint: sha256 of documents in order, queries, judgements and answers. A title and its text are
    hashed as one string. Results that refer to documents by position stay valid as long as the fingerprint is
    the same.
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
    """Raise ValueError if the run lacks any of the queries. where: beginning of the error message.

    A query without retrieved documents must be in the run, too, with an empty ranking.
    """
    lost = [query for query in queries if query not in run]
    if lost:
        raise ValueError(
            f"{where}: {len(lost):,} of {len(queries):,} queries have no answer, such as {lost[0]!r}"
        )


def hold_out(split: Split, share: float, seed: int = 0) -> tuple[Split, Split]:
    """Hold out round(share · queries) queries, drawn by a hash of their ids. Returns (the rest, held out)."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in [0, 1], not {share}")
    order = hash_order(split.queries, seed)
    held = set(order[: round(share * len(order))])
    return split.only(q for q in split.queries if q not in held), split.only(
        q for q in split.queries if q in held
    )


def hash_order(ids: Names[str], seed: int = 0) -> list[str]:
    """Sort ids by their hash, a random order that depends on the ids alone: the first n are a draw of n."""
    return sorted(ids, key=lambda id: hashlib.sha256(f"{seed} {id}".encode()).digest())


def mended(text: str) -> str:
    """Replace lone surrogates (halves of characters, which JSON can contain) with U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def joined(title: str, text: str) -> str:
    """Join a title and a text with a space, as BEIR does."""
    return f"{title} {text}".strip()


def body(title: str, text: str) -> str:
    """Remove the title from the start of a text: the inverse of `joined`."""
    return text.removeprefix(f"{title} ") if title else text


def title_of(row: Mapping[str, Any]) -> str:
    """Return the title of a BEIR row; `text_of` does not prepend a title from `metadata.title`."""
    metadata = row.get("metadata")
    title = row.get("title") or (metadata.get("title") if isinstance(metadata, dict) else None)
    return title.strip() if isinstance(title, str) else ""


def text_of(row: Mapping[str, Any]) -> str:
    """Return the text of a BEIR row, joined with the title."""
    return joined(row.get("title") or "", row.get("text") or "")


def grade(value: Any, where: str = "a judgement") -> int:
    """Convert a grade such as 1, "1" or "1.0" to an integer. Raises ValueError if it is not an integer."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.5
    if not number.is_integer() or abs(number) >= 1 << 31:
        raise ValueError(f"{where}: the grade {value!r:.60} is not an integer of 32 bits")
    return int(number)


class Digest:
    """sha256 of a stream of strings that keeps their boundaries: ("ab", "c") differs from ("a", "bc")."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def passing(self, rows: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents, adding each to the digest."""
        for row in rows:
            self.add(*row)
            yield row

    def add(self, *parts: str) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def digest(self) -> bytes:
        return self._hash.digest()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def assemble(
    name: str,
    documents: Iterable[tuple[str, str, str]],
    queries: Iterable[tuple[str, str]] | Mapping[str, Iterable[tuple[str, str]]],
    judgements: Mapping[str, Iterable[tuple[str, str, int]]],
    *,
    answers: dict[str, dict[str, list[str]]] | None = None,
    groups: dict[str, str] | None = None,
    measures: tuple[str, ...] = (),
    problems: Problems | None = None,
    stored: Stored | None = None,
) -> Collection:
    """Make a collection from streams of documents, queries and judgements.

    documents: (id, title, text). queries: (id, text) for all splits, or split -> stream if splits reuse ids
    for different texts. judgements: split -> (query id, document id, grade). answers: split -> query id ->
    answers; a query with answers needs no judgement. groups: query id -> group. stored: reads the kept
    documents on demand; without it, titles and texts stay in memory.

    If an id repeats, only its first row is kept. Judgements for absent documents or queries are left out,
    empty texts are kept, and lone surrogates are replaced. `problems` counts all of these cases.
    """
    problems = Problems() if problems is None else problems
    digest = Digest()

    def digested() -> Iterator[tuple[int, str, str, str]]:
        for place, (id, title, text) in checked("document", documents, problems):
            digest.add(id, text)
            yield place, id, title, text

    corpus = gathered(name, digested(), stored)
    shared = {} if isinstance(queries, Mapping) else _texts(queries, problems)
    splits: dict[str, Split] = {}
    answers, groups = answers or {}, groups or {}
    for split in dict.fromkeys([*judgements, *answers]):
        every = _texts(queries[split], problems) if isinstance(queries, Mapping) else shared
        judged: Judgements = {query: {} for query in answers.get(split, {})}
        for query, document, value in judgements.get(split, ()):
            if query not in every:
                problems.add("judgement for an absent query (left out)", f"{split}: {query}")
            elif not corpus.has(document):
                problems.add("judgement for an absent document (left out)", f"{split}: {query} -> {document}")
            elif document in judged.get(query, {}):
                problems.add("repeated judgement (first one kept)", f"{split}: {query} -> {document}")
            else:
                judged.setdefault(query, {})[document] = value
        # In the order of the queries, not of the judgements.
        part = Split(every, judged, answers.get(split, {}), groups).only(q for q in every if q in judged)
        splits[split] = part
        digest.add(split, str(len(part.queries)))
        for query, grades in part.judgements.items():
            digest.add(query, every[query], str(len(grades)))
            for document in sorted(grades):
                digest.add(document, str(grades[document]))
            if query in part.answers:
                texts = part.answers[query]
                digest.add("answers", str(len(texts)), *texts, part.groups.get(query, ""))
    if not any(split.queries for split in splits.values()):
        raise ValueError(f"{name}: no split holds a judged query" + (f"\n{problems}" if problems else ""))
    return Collection(name, corpus, splits, problems, digest.hexdigest(), measures)


def some_documents(
    collection: Collection,
    name: str,
    kept: Set[str],
    judgements: Mapping[str, Iterable[tuple[str, str, int]]],
) -> Collection:
    """Restrict a collection to the documents `kept` and the queries of `judgements` (see `assemble`)."""
    corpus = collection.corpus
    rows = ((id, corpus.titles[i], corpus[i]) for i, id in enumerate(corpus.ids) if id in kept)
    queries = all_queries(collection)[0].items()
    part = assemble(name, rows, queries, judgements, measures=collection.measures)
    return replace(part, built_in=collection.built_in)


def checked(
    kind: str, rows: Iterable[tuple[str, ...]], problems: Problems
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (position, row) for each row with a new id. rows: (id, title, text) or (id, text).

    Lone surrogates are replaced. `problems` counts them, repeated ids and empty texts.
    """
    seen: set[str] = set()
    for place, (id, *parts) in enumerate(rows):
        if id in seen:
            problems.add(f"duplicate {kind} id (first one kept)", id)
            continue
        seen.add(id)
        texts = list(map(mended, parts))
        if texts != parts:
            problems.add(f"{kind} {LONE}", id)
        if is_blank(texts[-1]):
            problems.add(f"{kind} with empty text (kept)", id)
        yield place, (id, *texts)


def gathered(name: str, rows: Iterable[tuple[int, str, str, str]], stored: Stored | None = None) -> Corpus:
    """Make a corpus from rows (position, id, title, text). stored: see `assemble`.

    Raises ValueError if there are no rows.
    """
    ids, titles, texts, places = [], [], [], []
    for place, id, title, text in rows:
        ids.append(id)
        if stored is None:
            titles.append(title)
            texts.append(text)
        else:
            places.append(place)
    if not ids:
        raise ValueError(f"{name} holds no document")
    read = (titles, texts) if stored is None else stored(np.array(places, dtype=np.int64))
    return Corpus(ids, titles=read[0], texts=read[1])


def _texts(queries: Iterable[tuple[str, str]], problems: Problems) -> dict[str, str]:
    return {id: text for _, (id, text) in checked("query", queries, problems)}
