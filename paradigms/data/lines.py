"""Parse lines, and read documents stored one per line: plain files on demand, .gz files at once."""

import mmap
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.data.assembly import Stored, mended, text_of, title_of
from paradigms.data.collection import Document
from paradigms.io.checks import json_object
from paradigms.io.gzipped import byte_lines

Parse = Callable[[bytes, str], Document | None]
"""(line, file and line number) -> document, or None for a line without a document, such as a header."""
TITLE, TEXT = 1, 2
IDS = ("_id", "id", "docid", "doc_id")  # JSON keys of an id
# A column's name; a line of names alone is a header, in every layout.
NAME = re.compile(
    r"[_qp]?id|(query|topic|doc|document|corpus|passage)([-_]?id)?|docno|text|title|contents|question|answers?"
    r"|iter(ation)?|q0|rank|grade|label|rel(evance)?|score|tag",
    re.IGNORECASE,
)
CELL = re.compile(r'(?:^|\t)(?:"([^"]*(?:""[^"]*)*)"(?=\t|$)|([^\t]*))')  # quoted as in CSV, or plain


class Lines(Sequence[str]):
    """One `column` (`TITLE` or `TEXT`) of the documents in plain files, read on demand.

    offsets: position of the first byte of each document's line, counted across all files in order.
    """

    def __init__(self, paths: Sequence[Path], offsets: np.ndarray, parse: Parse, column: int):
        self._paths = paths
        self._offsets = offsets
        self._parse = parse
        self._column = column
        self._maps = [_mapped(path) for path in paths]
        self._starts = [0, *accumulate(map(len, self._maps))][:-1]

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: Any) -> Any:
        offset = int(self._offsets[index])
        file = bisect_right(self._starts, offset) - 1
        data = self._maps[file]
        start = offset - self._starts[file]
        end = data.find(b"\n", start)
        document = self._parse(data[start : end if end >= 0 else len(data)], str(self._paths[file]))
        assert document is not None  # only lines with documents have offsets
        return mended(document[self._column])

    def __reduce__(self) -> tuple:
        # Memory maps cannot be sent to worker processes; paths and offsets can.
        return Lines, (self._paths, self._offsets, self._parse, self._column)


def read_documents(paths: Sequence[Path], parse: Parse) -> tuple[Iterator[Document], Stored | None]:
    """Stream the documents in files, and return a function that reads them on demand once the stream ends.

    The function is None if any file is a .gz.
    """
    offsets = array("q")

    def stream() -> Iterator[Document]:
        before = 0
        for path in paths:
            for number, start, line in byte_lines(path):
                document = parse(line, f"{path}, line {number}")
                if document is not None:
                    offsets.append(before + start)
                    yield document
            before += path.stat().st_size

    def stored(positions: np.ndarray) -> tuple[Lines, Lines]:
        places = np.frombuffer(offsets, dtype=np.int64)[positions]
        return Lines(paths, places, parse, TITLE), Lines(paths, places, parse, TEXT)

    return stream(), None if any(path.suffix == ".gz" for path in paths) else stored


def is_header(cells: Sequence[str], count: int) -> bool:
    """Return whether there are at least `count` cells, all are names of columns, and the first is not Q0.

    >>> is_header(["query-id", "corpus-id", "score"], 3)
    True
    """
    named = all(NAME.fullmatch(cell.strip()) for cell in cells)
    return named and len(cells) >= count and cells[0].strip().lower() != "q0"


def columns(line: str, where: str, count: int, quoted: bool = False) -> list[str] | None:
    """Split a line at tabs into `count` cells, or return None for a header (`is_header`).

    The last cell holds any further tabs. quoted: whether cells may be quoted as in CSV; a cell with other
    quotes is read as it is, and further tabs are an error, as are fewer cells or a first one that is empty.
    """
    cells = line.split("\t")
    if quoted and '"' in line:
        cells = [cell[2] if cell[1] is None else cell[1].replace('""', '"') for cell in CELL.finditer(line)]
    if is_header(cells, count):
        return None
    if not quoted:
        cells = line.split("\t", count - 1)
    if len(cells) != count or not cells[0].strip():
        raise ValueError(f"{where}: not {count} columns with tabs between them: {line[:60]!r}")
    return [cell.strip() for cell in cells]


def json_id(row: Mapping[str, Any], where: str, number: int | None = None) -> str:
    """Return the id of a JSON row: a string or integer under a key of `IDS`, or else `number`."""
    id = next((row[key] for key in IDS if row.get(key) is not None), number)
    if not isinstance(id, str | int) or isinstance(id, bool) or id == "":
        keys = " or ".join(IDS)
        raise ValueError(f"{where}: no usable id, a string or an integer under {keys} (found {id!r})")
    return str(id)


def json_row(line: bytes | str, where: str) -> tuple[str, dict[str, Any]]:
    """Parse a JSON line into (id, row). Raises ValueError if its title or text is not a string."""
    row = json_object(line, where)
    for key in ("title", "text"):
        if not isinstance(row.get(key), str | None):
            raise ValueError(f"{where}: {key!r} is not a string but {row[key]!r}")
    return json_id(row, where), row


def json_document(line: bytes, where: str) -> Document:
    """Parse a line of corpus.jsonl, as in BEIR and MIRACL. Raises ValueError if the line is invalid."""
    id, row = json_row(line, where)
    return id, title_of(row), text_of(row)


def _mapped(path: Path) -> mmap.mmap | bytes:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
