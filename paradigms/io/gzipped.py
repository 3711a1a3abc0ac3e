"""Lines of files that are plain, or gzipped if their name ends in .gz."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path


def byte_lines(path: str | Path) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, first byte, line) of each line but blank ones.

    FileNotFoundError names a missing file, ValueError a .gz that breaks off.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    start = 0
    with gzip.open(path) if Path(path).suffix == ".gz" else open(path, "rb") as stream:
        try:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield number, start, line
                start += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def decoded(line: bytes, where: str) -> str:
    """The line's text without its end. ValueError says where it is not UTF-8."""
    try:
        return line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text ({error.reason})") from error


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file, numbered from 1, without blank ones.

    ValueError names the file, and the line that is not UTF-8; errors of `byte_lines`.
    """
    for number, _, line in byte_lines(path):
        text = decoded(line, f"{path}, line {number}")
        if text.strip():
            yield number, text
