"""Documents that are lines of files: read once in a stream, and from then on where they lie on disk.

Of a plain file only the offsets of its lines are kept (8 bytes a document); a .gz is read into memory.
"""

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.io.gzipped import BROKEN_GZIP, numbered_lines, open_binary
from paradigms.io.typed import parse_json

Document = tuple[str, str, str]
"""(id, title, text), the title joined to the text."""
Parse = Callable[[bytes, str], Document | None]
"""(line, its place in words) -> its document, or None for a line that holds none, such as a header."""
TITLE, TEXT = 1, 2


class Lines(Sequence[str]):
    """One `column` (`TITLE` or `TEXT`) of the documents of plain files, read when asked for.

    offsets: byte where each document's line starts, counted through all files in their order.
    """

    def __init__(self, paths: Sequence[Path], offsets: np.ndarray, parse: Parse, column: int):
        self._paths, self._offsets, self._parse, self._column = paths, offsets, parse, column
        self._maps = [_mapped(path) for path in paths]
        self._starts = [0, *accumulate(map(len, self._maps))][:-1]

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: Any) -> Any:
        offset = int(self._offsets[index])
        file = bisect_right(self._starts, offset) - 1
        data, start = self._maps[file], offset - self._starts[file]
        end = data.find(b"\n", start)
        document = self._parse(data[start : end if end >= 0 else len(data)], str(self._paths[file]))
        assert document is not None  # or its offset would not have been kept
        return document[self._column]

    def __reduce__(self) -> tuple:
        # Memory maps do not travel to worker processes; the paths and the offsets do.
        return Lines, (self._paths, self._offsets, self._parse, self._column)


Stored = Callable[[np.ndarray], tuple[Lines, Lines]]


def read_documents(paths: Sequence[Path], parse: Parse) -> tuple[Iterator[Document], Stored | None]:
    """The documents of the files' lines in a stream, and, once it is read, how to read them again.

    The second maps positions in the stream to titles and texts on disk (see `assemble`); None where a file is
    a .gz. `parse` raises ValueError for a bad line; FileNotFoundError names a missing file.
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

    def stored(kept: np.ndarray) -> tuple[Lines, Lines]:
        places = np.frombuffer(offsets, dtype=np.int64)[kept]
        return Lines(paths, places, parse, TITLE), Lines(paths, places, parse, TEXT)

    return stream(), None if any(path.suffix == ".gz" for path in paths) else stored


def byte_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, first byte, line) of each line but blank ones. ValueError names a .gz that
    breaks off.
    """
    start = 0
    with open_binary(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield number, start, line
                start += len(line)
        except BROKEN_GZIP as error:
            raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def decoded(line: bytes, where: str) -> str:
    """The line's text without its end. ValueError says where it is not UTF-8."""
    try:
        return line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text ({error.reason})") from error


def id_and_text(path: Path) -> Iterator[tuple[str, str]]:
    """The two columns of a file's lines. ValueError names the line that is none."""
    for number, line in numbered_lines(path):
        yield in_two(line, f"{path}, line {number}")


def in_two(line: str, where: str) -> tuple[str, str]:
    id, tab, text = line.partition("\t")
    if not tab or not id.strip():
        raise ValueError(f"{where}: not an id and a text with a tab between them: {line[:60]!r}")
    return id.strip(), text.strip()


def json_object(line: bytes | str, where: str) -> dict[str, Any]:
    """The JSON object in a line. ValueError says where there is none."""
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise ValueError(f"{where}: bad JSON (a {type(row).__name__}, not an object)")
    return row


def usable_id(id: Any) -> str | None:
    """A JSON value as an id: a string or an integer; None for anything else."""
    return str(id) if isinstance(id, str | int) and not isinstance(id, bool) and id != "" else None


def _mapped(path: Path) -> mmap.mmap | bytes:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
