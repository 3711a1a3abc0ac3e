"""Files that are plain or gzipped by their name, and outputs that appear whole or not at all."""

import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)


def open_binary(path: str | Path) -> io.BufferedIOBase:
    """Open for reading, through gzip when the name ends in .gz. FileNotFoundError names the path."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return gzip.GzipFile(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb")


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file with their numbers from 1, blank ones left out.

    ValueError names the file and the line that is not UTF-8, or the line after which a .gz breaks off.
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


@contextmanager
def atomic_text(path: str | Path) -> Iterator[IO[str]]:
    """Write a text file (gzipped when named .gz) that takes its name only once it is complete.

    The same text always gives the same bytes: gzip's time stamp and file name are left out.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp would force mode 600 on a file that others are meant to read.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(temporary, "wb") as raw:
            if target.suffix == ".gz":
                with (
                    gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
                    io.TextIOWrapper(cast(BinaryIO, packed), encoding="utf-8", newline="\n") as stream,
                ):
                    yield stream
            else:
                with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as stream:
                    yield stream
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Fill a temporary folder that then takes the place of `path`, whatever stood there before."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh = work / "fresh"
    try:
        fresh.mkdir()
        yield fresh
        old = work / "old"
        if target.exists():  # a folder that holds files cannot be replaced in one step
            os.replace(target, old)
        try:
            os.replace(fresh, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
