"""Convert rows of pairs, triplets or scored candidates to a corpus and training examples.

`stored_rows` keeps them in memory-mapped Arrow files: as many as a disk holds, in memory that does not grow.
"""

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from paradigms.data import Corpus
from paradigms.io.checks import check_text, is_blank, json_object, parse_json, read_json
from paradigms.io.files import atomic_folder, contents, sha256, write_json
from paradigms.io.gzipped import LONGEST, text_lines
from paradigms.store.shards import text_digest
from paradigms.train.examples import Example

QUERY = ("query", "anchor", "question")
POSITIVE = ("positive", "document", "passage")
NEGATIVES = re.compile(r"negatives?(_?\d+)?")  # keys of texts
ROWS = 1024  # rows of an Arrow batch
TEXTS = pa.schema([("text", pa.large_string())])
EXAMPLES = pa.schema(
    [
        ("query", pa.large_string()),
        ("documents", pa.list_(pa.int64())),  # positions of the relevant document and of the negatives
        ("relevant", pa.list_(pa.int64())),
        ("teacher", pa.list_(pa.float64())),
    ]
)
SUMMARY = "examples.json"
STORED = contents("texts.arrow", "examples.arrow", SUMMARY, marks=[SUMMARY])


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
    number: int  # counted from 1
    query: str
    documents: list[str]  # the relevant one, then the negatives
    scores: tuple[float, ...]

    def check(self, different: bool) -> None:
        """Raise ValueError unless the negatives are `different` from the query's relevant documents."""
        if not different:
            raise ValueError(
                f"row {self.number}: a negative is relevant to the same query, {self.query[:80]!r}"
            )


def parsed_rows(rows: Any) -> Iterator[Row]:
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


class Table(Sequence[Any]):
    """Rows of a memory-mapped Arrow file, as tuples, read on demand."""

    def __init__(self, file: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(file)))
        last = self._reader.num_record_batches - 1
        self._count = 0 if last < 0 else last * ROWS + len(self._reader.get_batch(last))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        row = range(self._count)[index]
        batch = self._reader.get_batch(row // ROWS)
        return tuple(column[row % ROWS].as_py() for column in batch.columns)


class StoredTexts(Table):
    """The distinct documents of rows, by position."""

    def __getitem__(self, index: Any) -> Any:
        (text,) = super().__getitem__(index)
        return text


class StoredExamples(Table):
    """Examples as `examples_from_rows` makes them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "examples.arrow")
        summary = read_json(folder / SUMMARY)
        self.negatives: list[int] = summary["negatives"]  # the numbers of negatives that examples have
        self.taught: bool = summary["taught"]  # whether each example has a teacher's scores
        self.digest: str = summary["sha256"]  # of the files

    def __getitem__(self, index: Any) -> Any:
        query, (positive, *negatives), relevant, teacher = super().__getitem__(index)
        return Example(query, positive, tuple(negatives), tuple(relevant), tuple(teacher))


def stored_rows(rows: str | Path | Iterable[Any], folder: str | Path) -> tuple[StoredTexts, StoredExamples]:
    """Convert rows as `examples_from_rows` does, into files in `folder`, and open them.

    rows: a file's name, a Hugging Face `Dataset` or a list: they are read twice. Files that were made of the
    same file are used again. Queries and documents are told apart by 8 bytes of a hash. Making the files
    takes about 100 bytes of memory per row; reading them takes none that grows. Raises the errors of
    `examples_from_rows`, and FileExistsError if the folder contains anything else.
    """
    if isinstance(rows, Iterator):
        raise TypeError("rows are read twice: give a file's name, a Dataset or a list")
    place = Path(folder)
    source = sha256(Path(rows)) if isinstance(rows, str | Path) else None
    summary = place / SUMMARY
    if source is None or not summary.is_file() or read_json(summary)["source"] != source:
        with atomic_folder(place, STORED) as fresh:
            write_rows(rows, fresh, source)
    return open_rows(place)


def open_rows(folder: Path) -> tuple[StoredTexts, StoredExamples]:
    """Open the files that `stored_rows` has made in a folder."""
    return StoredTexts(folder / "texts.arrow"), StoredExamples(folder)


def write_rows(rows: Any, folder: Path, source: str | None) -> None:
    """Write the files of `stored_rows`. source: SHA-256 of the file of the rows, if they have one."""
    queries = array("q")
    documents = array("q")
    counts = array("q")
    taught = True
    for row in parsed_rows(rows):
        queries.append(text_digest(row.query))
        documents.extend(map(text_digest, row.documents))
        counts.append(len(row.documents))
        taught = taught and bool(row.scores)
    ends = np.cumsum(counts, dtype=np.int64)
    _, first, places = np.unique(np.array(documents), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))  # documents in the order of their first appearance
    positions = rank[places]
    positives = positions[ends - np.array(counts, np.int64)]
    _, groups = np.unique(np.array(queries), return_inverse=True)
    pairs = groups * len(first) + positives
    _, firsts = np.unique(pairs, return_index=True)
    firsts = firsts[np.lexsort((firsts, groups[firsts]))]  # by query, in the order of the rows
    relevant = positives[firsts]
    bounds = np.searchsorted(groups[firsts], np.arange(len(queries) + 1))

    written_texts = 0
    with (
        arrow_writer(folder / "examples.arrow", EXAMPLES) as append_example,
        arrow_writer(folder / "texts.arrow", TEXTS) as append_text,
    ):
        for n, row in enumerate(parsed_rows(rows)):
            places = positions[ends[n] - counts[n] : ends[n]].tolist()
            judged = relevant[bounds[groups[n]] : bounds[groups[n] + 1]].tolist()
            row.check(set(judged).isdisjoint(places[1:]))
            append_example((row.query, places, judged, list(row.scores)))
            for document, place in zip(row.documents, places, strict=True):
                if place == written_texts:
                    append_text((document,))
                    written_texts += 1
    files = sha256(folder / "examples.arrow") + sha256(folder / "texts.arrow")
    negatives = (np.unique(np.array(counts)) - 1).tolist()
    summary = {"negatives": negatives, "taught": taught, "sha256": files, "source": source}
    write_json(folder / SUMMARY, summary)


@contextmanager
def arrow_writer(file: Path, schema: Any) -> Iterator[Callable[[tuple[Any, ...]], None]]:
    """Open an Arrow file, and yield a function that appends a row; ROWS rows are written at once."""
    rows: list[tuple[Any, ...]] = []
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:

        def write() -> None:
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            rows.clear()

        def append(row: tuple[Any, ...]) -> None:
            rows.append(row)
            if len(rows) == ROWS:
                write()

        yield append
        if rows:
            write()
