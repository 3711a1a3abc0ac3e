"""Convert rows of pairs, triplets or scored candidates to a corpus and training examples."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any, NamedTuple

from paradigms.data import Corpus
from paradigms.data.lines import json_object
from paradigms.io.checks import check_text, is_blank, parse_json
from paradigms.io.gzipped import LONGEST, text_lines
from paradigms.train.examples import Example

QUERY = ("query", "anchor", "question")
POSITIVE = ("positive", "document", "passage")
NEGATIVES = re.compile(r"negatives?(_?\d+)?")  # keys of texts


def examples_from_rows(rows: str | Path | Iterable[Any]) -> tuple[Corpus, list[Example]]:
    """Make a corpus of the rows' distinct documents, and one training example per row.

    rows: dicts, a Hugging Face `Dataset`, or lines of JSON or of CSV with a header, as a list, an open file
    or a file's name (plain or .gz). Each row has a query (key `query`, `anchor` or `question`) and a relevant
    document (`positive`, `document` or `passage`). The keys `negative`, `negatives`, `negative_1` and so on
    may contain hard negatives, as a text or a list of texts; a cell without a visible character is no
    negative. `scores` may contain a teacher's scores of the relevant document and then of each negative, as a
    list, an array or a tensor. Documents that are relevant to a query in any row are never its in-batch
    negatives.

    Raises ValueError, naming the row (counted from 1, without the header), if a key is missing, if another
    key begins with `negative`, if a query or relevant document is blank, if a relevant document is among the
    query's negatives, or if the row does not have one finite score per document. Raises TypeError if a text
    is not a string.
    """
    places: dict[str, int] = {}
    parsed: list[tuple[Row, list[int]]] = []
    relevant: dict[str, dict[int, None]] = {}
    for row in parsed_rows(rows):
        positions = [places.setdefault(text, len(places)) for text in row.documents]
        relevant.setdefault(row.query, {})[positions[0]] = None
        parsed.append((row, positions))
    examples = []
    for row, (positive, *negatives) in parsed:
        row.check(relevant[row.query].keys().isdisjoint(negatives))
        judged = tuple(relevant[row.query])
        examples.append(Example(row.query, positive, tuple(negatives), judged, row.scores))
    return Corpus([f"d{n}" for n in range(len(places))], list(places)), examples


class Row(NamedTuple):
    """A row's texts and scores. documents: the relevant one, then the negatives."""

    number: int  # counted from 1
    query: str
    documents: list[str]
    scores: tuple[float, ...]

    def check(self, different: bool) -> None:
        """Raise ValueError unless the negatives are `different` from the query's relevant documents."""
        if not different:
            raise ValueError(
                f"row {self.number}: a negative is relevant to the same query, {self.query[:80]!r}"
            )


def parsed_rows(rows: Any) -> Iterator[Row]:
    """Parse and check rows; see `examples_from_rows`."""
    for number, row in enumerate(_parsed(rows), 1):
        query = _text(row, QUERY, number)
        documents = [_text(row, POSITIVE, number), *_negatives(row, number)]
        yield Row(number, query, documents, _scores(row.get("scores"), len(documents), number))


def _parsed(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Yield rows as dicts; lines are JSON if the first one begins with "{" or "[", and else CSV."""
    stream = iter(text_lines(rows) if isinstance(rows, str | Path) else rows)
    first = next(stream, None)
    if first is None:
        return
    stream = chain([first], stream)
    if isinstance(first, str | bytes):
        decoded = (line if isinstance(line, str) else line.decode() for line in stream)
        texts = dropwhile(is_blank, decoded)
        header = next(texts, "").removeprefix("\ufeff")
        lines = chain([header], texts)
        if header.startswith("["):
            stream = parse_json("".join(lines), "rows")
        elif header.startswith("{"):
            stream = (json_object(line, f"row {n}") for n, line in enumerate(filter(str.strip, lines), 1))
        else:
            csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
            stream = csv.DictReader(lines, delimiter=max(",;\t", key=header.count))
            if not {*QUERY}.intersection(stream.fieldnames or ()):
                raise ValueError(f"the header has none of {', '.join(QUERY)}: {header.strip()!r:.80}")
    for number, row in enumerate(stream, 1):
        if not isinstance(row, Mapping):
            raise TypeError(f"row {number} is {row!r:.80}: a dict is needed, or a line of JSON or CSV")
        if None in row:
            raise ValueError(f"row {number} has more cells than the header")
        yield row


def _text(row: Mapping[str, Any], keys: tuple[str, ...], number: int) -> str:
    key = next((key for key in keys if key in row), None)
    if key is None:
        raise ValueError(f"row {number} has none of {', '.join(keys)}; it has {', '.join(row)}")
    text: str = row[key]
    check_text(text, f"{key} of row {number}")
    if is_blank(text):
        raise ValueError(f"{key} of row {number} is blank")
    return text


def _negatives(row: Mapping[str, Any], number: int) -> Iterator[str]:
    for key in row:
        if not key.startswith("negative"):
            continue
        if not NEGATIVES.fullmatch(key):
            raise ValueError(
                f"row {number}: {key!r} is none of negative, negatives, negative_1, …: rename it if it holds "
                "texts, or leave it out"
            )
        value = row[key]
        for text in value if isinstance(value, Iterable) and not isinstance(value, str) else [value]:
            if not _is_missing(text):
                check_text(text, f"a negative of row {number}")
                yield text


def _scores(value: Any, documents: int, number: int) -> tuple[float, ...]:
    if _is_missing(value):
        return ()
    try:
        scores = tuple(map(float, json.loads(value) if isinstance(value, str) else value))
    except (TypeError, ValueError):
        raise ValueError(f"row {number}: scores must be a list of numbers, not {value!r:.80}") from None
    if scores and len(scores) != documents:
        raise ValueError(f"row {number} has {len(scores)} scores for {documents} documents")
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"row {number} has a score that is not finite: {list(scores)}")
    return scores


def _is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, blank, or NaN, as pandas reads an empty cell."""
    if isinstance(value, str):
        return is_blank(value)
    return value is None or (isinstance(value, float) and math.isnan(value))
