"""Find text files, plain or .gz, and read them line by line; files named .gz are gunzipped."""

import gzip
import io
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from paradigms.io.checks import naming

LONGEST = 1 << 27  # bytes of a line; gzip expands up to a thousandfold


def names_in(folder: Path) -> list[str]:
    """List a folder's entries in order, without .gz; a missing folder has none."""
    names = {entry.name.removesuffix(".gz") for entry in folder.iterdir()} if folder.is_dir() else set()
    return sorted(names)


def existing(folder: Path, name: str) -> Path:
    """Return the file `name` in a folder, or else `name`.gz. Raises FileNotFoundError without both."""
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise FileNotFoundError(f"{folder / name}: no such file, plain or .gz")


def open_binary(path: str | Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file for reading bytes. Raises FileNotFoundError if it does not exist."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return gzip.open(path) if Path(path).suffix == ".gz" else open(path, "rb")


def byte_lines(path: str | Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (line number from 1, offset of the first byte, line) for each line that is not blank.

    Raises FileNotFoundError if the file does not exist. Raises ValueError if a .gz file is truncated, or if a
    line is longer than `LONGEST`, without reading the rest of the line.
    """
    start = 0
    with open_binary(path) as stream:
        try:
            for number, line in enumerate(iter(partial(stream.readline, LONGEST + 1), b""), 1):
                if len(line) > LONGEST:
                    raise ValueError(f"{path}, line {number}: longer than {LONGEST:,} bytes: split it")
                if line.strip():
                    yield number, start, line
                start += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def decoded(line: bytes, where: str) -> str:
    """Decode a line without its line break. Raises ValueError, with `where`, if it is not UTF-8."""
    try:
        return line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text ({error.reason})") from error


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) for each line of a UTF-8 file that is not blank (`byte_lines`)."""
    for number, _, line in byte_lines(path):
        text = decoded(line, f"{path}, line {number}")
        if text.strip():
            yield number, text


def text_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file with their line breaks, blank lines too, as `csv` needs them."""
    with naming(path), io.TextIOWrapper(open_binary(path), "utf-8-sig", newline="") as stream:
        yield from stream
