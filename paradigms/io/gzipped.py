"""Read files that are plain, or gzipped if their name ends in .gz."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)


def open_binary(path: str | Path) -> io.BufferedIOBase:
    """Open for reading, through gzip when the name ends in .gz. FileNotFoundError names the path."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return gzip.GzipFile(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb")


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file, numbered from 1, without blank ones.

    ValueError names the file and the line that is not UTF-8, or the line after which a .gz ends too early.
    """
    number = 0
    with open_binary(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                if text.strip():
                    yield number, text
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
        except BROKEN_GZIP as error:
            raise ValueError(f"{path}, after line {number}: not a whole gzip file ({error})") from error
