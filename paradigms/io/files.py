"""Outputs that appear complete or not at all: written under a temporary name, then moved into place.

This module imports nothing else of the project.
"""

import errno
import fcntl
import glob
import gzip
import io
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # of a disk that takes no more
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # the target is a folder with content, or a file


@contextmanager
def atomic_text(path: str | Path, errors: str = "strict", durable: bool = False) -> Iterator[IO[str]]:
    """Write a UTF-8 text file (gzipped if its name ends in .gz) that gets its name once it is complete.

    The same text always gives the same bytes. Parent folders are created. `errors="replace"` writes "?" for
    lone surrogates. `durable` waits until the file is on disk.
    """
    target = Path(os.path.realpath(path))  # a link stays a link, and what it points to is replaced
    with _workplace(target) as work:
        fresh = work / "fresh"
        with open(fresh, "wb") as raw:
            if target.suffix == ".gz":
                packed = cast(BinaryIO, gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
                with packed, io.TextIOWrapper(packed, "utf-8", errors, newline="\n") as stream:
                    yield stream
            else:
                with io.TextIOWrapper(raw, "utf-8", errors, newline="\n") as stream:
                    yield stream
        if durable:
            flush(fresh)
        os.replace(fresh, target)


def write_text(path: str | Path, text: str, errors: str = "strict", durable: bool = False) -> None:
    """Write a whole text file as `atomic_text` does."""
    with atomic_text(path, errors, durable) as stream:
        stream.write(text)


def write_json(path: str | Path, value: Any, durable: bool = False) -> None:
    """Write a JSON file as `atomic_text` does."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


@contextmanager
def atomic_folder(path: str | Path, marks: Collection[str] | None, durable: bool = False) -> Iterator[Path]:
    """A folder to fill, which replaces `path` if the body ends without error.

    FileExistsError if `path` is a folder without one of the files `marks` (`check_marked`); None replaces any
    content. Of several writers the last one to end wins. A killed writer leaves at most a hidden folder,
    which the next one removes, or which `settle` puts back where it holds the old content. `durable` waits
    until the folder is on disk.
    """
    target = Path(os.path.realpath(path))
    settle(target)
    if marks is not None:
        check_marked(target, marks)
    with _workplace(target) as work:
        fresh = work / "fresh"
        fresh.mkdir()
        try:
            yield fresh
            if durable:
                for entry in (fresh, *fresh.rglob("*")):
                    flush(entry)
            while fresh.exists():
                try:
                    os.replace(fresh, target)
                except OSError as error:
                    if error.errno not in OCCUPIED:
                        raise
                    with suppress(FileNotFoundError):  # another writer has just moved it
                        os.replace(target, work / f"old.{secrets.token_hex(4)}")
            if durable:
                flush(target.parent)
        finally:
            settle(target)


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target`, locked until it is removed; those of killed writers are removed first.

    `_leftovers` knows it by its name, and `_sweep` by the lock, which ends with the process.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    work = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    work.mkdir()
    lock = os.open(work, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        with naming_full(target):
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


@contextmanager
def locked(folder: Path, make: bool = False) -> Iterator[None]:
    """Keep other writers of this machine away from `folder`. BlockingIOError names it while one is at work.

    make: make the folder if it is missing. The system's lock ends with the process.
    """
    while True:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"{folder} is being written by another process: wait until it ends, or stop it"
                raise BlockingIOError(error.errno, message) from None
            if folder.exists() and os.path.samestat(os.fstat(lock), folder.stat()):  # not moved meanwhile
                with naming_full(folder):
                    yield
                return
        finally:
            os.close(lock)


_HELD: set[tuple[int, int, int]] = set()  # process, and device and number of a folder that it has locked
_KEPT = ExitStack()  # the locks


def held(folder: str | Path) -> Path:
    """A script's results folder, `locked` until this process ends, which may ask again; made if missing.

    SystemExit while another process writes there.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        there = place.stat()
        own = os.getpid(), there.st_dev, there.st_ino
        if own not in _HELD:
            _KEPT.enter_context(locked(place))
            _HELD.add(own)
    except OSError as error:
        raise SystemExit(str(error)) from error
    return place


@contextmanager
def naming_full(target: Path) -> Iterator[None]:
    """OSError that names `target` for whatever a library raises when a disk is full."""
    try:
        yield
    except Exception as error:
        full = next((n for n in FULL if os.strerror(n) in str(error)), None)
        if full is None or str(target) in str(error):
            raise
        raise OSError(full, f"{target} cannot be written: {os.strerror(full)}") from error


def check_marked(folder: Path, marks: Collection[str]) -> None:
    """FileExistsError if `folder` is a file, or is not empty and holds none of the files `marks`."""
    held: set[str] = set()
    with suppress(FileNotFoundError, NotADirectoryError):  # another writer is replacing it
        while True:
            before = folder.stat()
            listed = {entry.name for entry in folder.iterdir()}
            after = folder.stat()
            # Else it has been replaced meanwhile, and what was listed is being deleted.
            if (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns):
                held = listed
                break
    if held and not held & set(marks):
        raise FileExistsError(
            f"{folder} would be replaced, but was not written by this program: it holds {min(held)}, and no "
            f"{' or '.join(marks)}. Choose another folder"
        )
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file, which would be replaced: choose another name")


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def settle(path: str | Path) -> None:
    """Put back a folder that an interrupted replacement had moved away: call it before opening one."""
    target = Path(os.path.realpath(path))
    for old in _leftovers(target, "old.*"):
        if target.exists():
            return
        try:
            os.replace(old, target)
        except OSError as error:  # another reader has just put it back, or its writer has finished
            if error.errno not in (*OCCUPIED, errno.ENOENT):
                raise


def sweep(folder: str | Path) -> None:
    """`settle` every folder in `folder`, and remove what killed writers left behind."""
    for work in Path(os.path.realpath(folder)).glob(".*.????????.partial"):
        if work.is_dir():
            target = work.with_name(work.name[1:].rsplit(".", 2)[0])
            settle(target)
            _sweep(target)


def _leftovers(target: Path, what: str) -> list[Path]:
    """The entries `what` in the hidden folders of all writers of `target`, alive or killed."""
    hidden = target.with_name(f".{target.name}.")
    return [Path(found) for found in glob.glob(f"{glob.escape(str(hidden))}????????.partial/{what}")]


def _sweep(target: Path) -> None:
    """Remove what killed writers of `target` left behind: hidden folders that no process has locked."""
    for work in {entry.parent for entry in _leftovers(target, "*")}:
        with suppress(OSError), locked(work):  # gone, its writer lives, or a file system without locks
            shutil.rmtree(work, ignore_errors=True)
