"""A retrieval collection: documents, and for each split its queries with graded judgements.

Every source is a stream of documents, one of queries, and the judgements of each split; `assemble` makes the
collection from these and counts what is wrong with them.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from collections.abc import Collection as Names
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any, overload

import numpy as np

Judgements = dict[str, dict[str, int]]
"""Query id -> document id -> grade; a grade above 0 is relevant."""
Run = dict[str, dict[str, float]]
"""Query id -> document id -> score; higher is better."""

EXAMPLES = 3
LONE = "with lone surrogates (each replaced by U+FFFD)"


Document = tuple[str, str, str]
"""(id, title, text), the title joined to the text."""
Stored = Callable[[np.ndarray], tuple[Sequence[str], Sequence[str]]]
"""Positions in a stream of documents -> sequences of their titles and texts that read on demand."""


class Corpus(Sequence[str]):
    """Documents by position, corpus[i], and by id, corpus[corpus.position(id)].

    titles[i] is the title of document i, "" where it has none; where the source keeps titles and texts apart,
    the text begins with it (`joined`). `texts` and `titles` may be lists or sequences that read on demand.
    """

    def __init__(self, ids: list[str], texts: Sequence[str], titles: Sequence[str] | None = None):
        self.ids = ids
        self.titles: Sequence[str] = [""] * len(ids) if titles is None else titles
        if not len(ids) == len(texts) == len(self.titles):
            raise ValueError(
                f"{len(ids)} ids, {len(texts)} texts and {len(self.titles)} titles must be as many"
            )
        self._texts = texts
        self._positions = {id: i for i, id in enumerate(ids)}
        if len(self._positions) != len(ids):
            raise ValueError("the ids of a corpus must differ from each other")

    @classmethod
    def of(cls, texts: "Corpus | Mapping[str, str]") -> "Corpus":
        """The corpus itself, or one of document id → text."""
        return texts if isinstance(texts, Corpus) else cls(list(texts), list(texts.values()))

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

    def position(self, id: str) -> int:
        """The i with ids[i] == id. KeyError names an unknown id."""
        try:
            return self._positions[id]
        except KeyError:
            raise KeyError(f"no document {id!r} among the {len(self)} of this corpus") from None

    def only(self, ids: Iterable[str]) -> "Corpus":
        """The corpus of these documents alone, in its order. KeyError names an unknown id."""
        rows = sorted({self.position(id) for id in ids})
        titles = [self.titles[row] for row in rows]
        return Corpus([self.ids[row] for row in rows], [self[row] for row in rows], titles)


@dataclass(frozen=True)
class Split:
    """The queries of one split and their judgements: both have the same query ids.

    answers: query id -> the answers that make a document relevant that contains one; judgements may then be
    empty. groups: query id -> its group, where means are macro-averages over groups; of all queries or none.
    """

    queries: dict[str, str]
    judgements: Judgements
    answers: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def only(self, ids: Iterable[str]) -> "Split":
        """The split of these queries alone, in their order."""
        ids = list(ids)
        return Split(
            {q: self.queries[q] for q in ids},
            {q: self.judgements[q] for q in ids},
            {q: self.answers[q] for q in ids if q in self.answers},
            {q: self.groups[q] for q in ids if q in self.groups},
        )


@dataclass
class Problems:
    """What was wrong with the data without stopping the load: per kind a count and the first few cases."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES:
            shown.append(example)

    def lines(self) -> list[str]:
        """One line per kind: "judgement for an absent document (left out): 12, e.g. …"."""
        return [f"{kind}: {n:,}, e.g. {'; '.join(self.examples[kind])}" for kind, n in self.counts.items()]

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class Collection:
    """A named corpus with its splits.

    `measures` are those that its paper reports, the first the one to test systems on. `fingerprint` (sha256)
    changes with any document, query, judgement or answer and the documents' order, but not with where a title
    ends: what was computed by document position under one fingerprint stays valid.
    """

    name: str
    corpus: Corpus
    splits: dict[str, Split]
    problems: Problems
    fingerprint: str
    measures: tuple[str, ...] = ()
    built_in: bool = False  # pydocs, or a subset of it

    def split(self, name: str) -> Split:
        """The split of this name. ValueError names a wrong one and lists those that exist."""
        if name not in self.splits:
            raise ValueError(f"{self.name} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]


def all_queries(collection: Collection) -> tuple[dict[str, str], Judgements]:
    """Queries and judgements of all splits. ValueError where two splits have different queries of one id."""
    queries: dict[str, str] = {}
    judged: Judgements = {}
    for split in collection.splits.values():
        for query, text in split.queries.items():
            if queries.setdefault(query, text) != text:
                raise ValueError(f"{collection.name}: the id {query!r} is of different queries in two splits")
            judged[query] = {**judged.get(query, {}), **split.judgements[query]}
    return queries, judged


def best_first(scores: Mapping[str, float], count: int | None = None) -> dict[str, float]:
    """Documents by falling score, equal scores by document id: the first `count`, or all.

    >>> best_first({"b": 1.0, "a": 1.0, "c": 2.0}, 2)
    {'c': 2.0, 'a': 1.0}
    """
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count])


def ranked(query: str, scores: Mapping[str, float], count: int | None = None) -> dict[str, float]:
    """`best_first` of a query's documents. ValueError names one whose score is NaN."""
    lost = next((document for document, score in scores.items() if isnan(score)), None)
    if lost is not None:
        raise ValueError(f"the score of document {lost!r} for query {query!r} is NaN: it has no rank")
    return best_first(scores, count)


def check_queries(run: Iterable[str], queries: Mapping[str, str]) -> None:
    """KeyError names a query of the run that has no text."""
    unknown = next((query for query in run if query not in queries), None)
    if unknown is not None:
        raise KeyError(f"the run names the query {unknown!r}, which has no text")


def check_answered(run: Run, asked: Names[str], what: object) -> None:
    """ValueError, which begins with `what`, if the run lacks one of the queries that were asked.

    A query for which no document was found is in the run, without documents.
    """
    lost = [query for query in asked if query not in run]
    if lost:
        raise ValueError(
            f"{what}: {len(lost):,} of {len(asked):,} queries have no answer, such as {lost[0]!r}"
        )


def hold_out(split: Split, share: float, seed: int = 0) -> tuple[Split, Split]:
    """The split without round(share · queries) of its queries, and these, drawn by a hash of their ids."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in [0, 1], not {share}")
    order = sorted(split.queries, key=lambda q: hashlib.sha256(f"{seed} {q}".encode()).digest())
    held = set(order[: round(share * len(order))])
    kept, out = ([q for q in split.queries if (q in held) == which] for which in (False, True))
    return split.only(kept), split.only(out)


def mended(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, half a character, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def joined(title: str, text: str) -> str:
    """A document's text as BEIR has it: title and text with a space between, no space without a title."""
    return f"{title} {text}".strip()


def body(title: str, text: str) -> str:
    """A document's text without the title that it begins with: `joined` undone."""
    return text.removeprefix(f"{title} ") if title else text


def title_of(row: Mapping[str, Any]) -> str:
    """The title of a row in BEIR's form; `metadata.title` is one that is no part of the text."""
    metadata = row.get("metadata")
    title = row.get("title") or (metadata.get("title") if isinstance(metadata, dict) else None)
    return title.strip() if isinstance(title, str) else ""


def text_of(row: Mapping[str, Any]) -> str:
    """The text of a row in BEIR's form, its title included."""
    return joined(row.get("title") or "", row.get("text") or "")


def grade(value: Any, where: str = "a judgement") -> int:
    """A judgement's grade as an integer, from 1, "1" or "1.0". ValueError says where it is anything else."""
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
        """The documents, each added as it passes."""
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
    """Collection from streams of (id, title, text), (id, text) and per split (query id, document id, grade).

    queries: of all splits, or split -> stream where an id may stand for another text in another split.
    answers: split -> query id -> answers; a query with answers needs no judgement. groups: query id -> group.
    Of equal ids the first counts; judgements for absent documents or queries are left out; empty texts stay,
    and lone surrogates are replaced. Each of these is counted in `problems`. stored: how kept documents are
    read on demand; without it titles and texts are kept in memory.
    """
    problems = Problems() if problems is None else problems
    digest = Digest()

    def digested() -> Iterator[tuple[int, str, str, str]]:
        for place, (id, title, text) in checked("document", documents, problems):
            digest.add(id, text)
            yield place, id, title, text

    corpus = gathered(name, digested(), stored)
    own = queries if isinstance(queries, Mapping) else None
    shared = {} if isinstance(queries, Mapping) else _texts(queries, problems)
    splits: dict[str, Split] = {}
    answers, groups = answers or {}, groups or {}
    for split in dict.fromkeys([*judgements, *answers]):
        every = shared if own is None else _texts(own[split], problems)
        judged: Judgements = {query: {} for query in answers.get(split, {})}
        for query, document, value in judgements.get(split, ()):
            if query not in every:
                problems.add("judgement for an absent query (left out)", f"{split}: {query}")
            elif document not in corpus._positions:
                problems.add("judgement for an absent document (left out)", f"{split}: {query} -> {document}")
            elif document in judged.get(query, {}):
                problems.add("repeated judgement (first one kept)", f"{split}: {query} -> {document}")
            else:
                judged.setdefault(query, {})[document] = value
        # In the order of the queries, so that two ways of writing the same judgements give the same split.
        part = Split(every, judged, answers.get(split, {}), groups).only(q for q in every if q in judged)
        splits[split] = part
        digest.add(split, str(len(part.queries)))
        for query, grades in part.judgements.items():
            digest.add(query, every[query], str(len(grades)))
            for document in sorted(grades):
                digest.add(document, str(grades[document]))
            if query in part.answers:
                found = part.answers[query]
                digest.add("answers", str(len(found)), *found, part.groups.get(query, ""))
    if not any(split.queries for split in splits.values()):
        raise ValueError(f"{name}: no split holds a judged query" + (f"\n{problems}" if problems else ""))
    return Collection(name, corpus, splits, problems, digest.hexdigest(), measures)


def some_documents(
    collection: Collection,
    name: str,
    kept: Set[str],
    judgements: Mapping[str, Iterable[tuple[str, str, int]]],
) -> Collection:
    """The collection of the documents `kept` and the queries of these judgements, as in `assemble`."""
    corpus = collection.corpus
    rows = ((id, corpus.titles[i], corpus[i]) for i, id in enumerate(corpus.ids) if id in kept)
    queries = all_queries(collection)[0].items()
    found = assemble(name, rows, queries, judgements, measures=collection.measures)
    return replace(found, built_in=collection.built_in)


def checked(
    kind: str, rows: Iterable[tuple[str, ...]], problems: Problems
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(place among `rows`, row) of those with a new id; rows are (id, title, text) or (id, text).

    Lone surrogates are replaced; this, repeated ids and empty texts are counted.
    """
    seen: set[str] = set()
    for place, (id, *found) in enumerate(rows):
        if id in seen:
            problems.add(f"duplicate {kind} id (first one kept)", id)
            continue
        seen.add(id)
        texts = list(map(mended, found))
        if texts != found:
            problems.add(f"{kind} {LONE}", id)
        if not texts[-1].strip():
            problems.add(f"{kind} with empty text (kept)", id)
        yield place, (id, *texts)


def gathered(name: str, rows: Iterable[tuple[int, str, str, str]], stored: Stored | None = None) -> Corpus:
    """The corpus of (place, id, title, text); stored: as in `assemble`. ValueError for no document."""
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
