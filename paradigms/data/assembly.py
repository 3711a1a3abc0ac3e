"""Assemble collections from streams of documents, queries and judgements, and count their problems."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from paradigms.data.collection import (
    Collection,
    Corpus,
    Document,
    Judgements,
    Problems,
    Split,
    all_queries,
    joined,
)
from paradigms.io.checks import is_blank

LONE = "with lone surrogates (each replaced by U+FFFD)"

Stored = Callable[[np.ndarray], tuple[Sequence[str], Sequence[str]]]
"""Positions in a stream of documents -> their titles and texts, as sequences that read on demand."""


def mended(text: str) -> str:
    """Replace lone surrogates (halves of characters, which JSON can contain) with U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


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
    with suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        if number.is_integer() and abs(number) < 1 << 31:
            return int(number)
    raise ValueError(f"{where}: the grade {value!r:.60} is not an integer of 32 bits")


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
    answers; a query with answers needs no judgement. groups: query id -> group. stored: reads documents on
    demand; without it, titles and texts stay in memory.

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
    ids = set(corpus.ids)
    answers = answers or {}
    shared = {} if isinstance(queries, Mapping) else _texts(queries, problems)
    splits: dict[str, Split] = {}
    for split in dict.fromkeys([*judgements, *answers]):
        texts = _texts(queries[split], problems) if isinstance(queries, Mapping) else shared
        judged: Judgements = {query: {} for query in answers.get(split, {})}
        for query, document, value in judgements.get(split, ()):
            if query not in texts:
                problems.add("judgement for an absent query (left out)", f"{split}: {query}")
            elif document not in ids:
                problems.add("judgement for an absent document (left out)", f"{split}: {query} -> {document}")
            elif document in judged.get(query, {}):
                problems.add("repeated judgement (first one kept)", f"{split}: {query} -> {document}")
            else:
                judged.setdefault(query, {})[document] = value
        # In the order of the queries, not of the judgements.
        loaded = Split(texts, judged, answers.get(split, {}), groups or {})
        splits[split] = loaded.only(query for query in texts if query in judged)
        _digest_split(digest, split, splits[split])
    if not any(split.queries for split in splits.values()):
        raise ValueError(f"{name}: no split holds a judged query" + (f"\n{problems}" if problems else ""))
    return Collection(name, corpus, splits, problems, digest.hexdigest(), measures)


def _digest_split(digest: Digest, name: str, split: Split) -> None:
    digest.add(name, str(len(split.queries)))
    for query, grades in split.judgements.items():
        digest.add(query, split.queries[query], str(len(grades)))
        for document in sorted(grades):
            digest.add(document, str(grades[document]))
        if query in split.answers:
            texts = split.answers[query]
            digest.add("answers", str(len(texts)), *texts, split.groups.get(query, ""))


def some_documents(
    collection: Collection,
    name: str,
    remaining: Set[str],
    judgements: Mapping[str, Iterable[tuple[str, str, int]]],
) -> Collection:
    """Restrict a collection to the documents `remaining` and the queries of `judgements` (see `assemble`)."""
    corpus = collection.corpus
    rows = ((id, corpus.titles[i], corpus[i]) for i, id in enumerate(corpus.ids) if id in remaining)
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
    """Make a corpus from rows (position, id, title, text), at least one. stored: see `assemble`."""
    ids = []
    titles = []
    texts = []
    places = []
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
