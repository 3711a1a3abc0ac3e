"""Atomic outputs: files and folders are written under a temporary name, then moved into place.

This module imports no other module of the project.
"""

import atexit
import errno
import glob
import gzip
import hashlib
import io
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias, cast

try:
    import fcntl
except ModuleNotFoundError:
    raise ImportError(
        "retrieval-paradigms runs on Linux and macOS, whose file locks it needs: on Windows, use WSL"
    ) from None

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # the disk accepts no more data
LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # the file system has no locks
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # the target is a folder with content, or a file
LITTER = (".DS_Store", "Thumbs.db")  # files that file managers leave in folders
SETTLING = 9  # attempts to open a file; more than the number of replacements to expect meanwhile
PARTIAL = ".*.????????.partial"  # a writer's hidden folder: `_workplace`

# What this program writes into one kind of folder: (folder) -> patterns for `Path.match`, or None for another
# kind of folder. Patterns for folders end in "/".
Contents: TypeAlias = Callable[[Path], Collection[str] | None]


def contents(*patterns: str, marks: Collection[str] = ()) -> Contents:
    """Return a `Contents` function that returns the same `patterns` for every folder of one kind.

    marks: file names that identify this kind of folder; without any of them, the function returns None.
    """
    return lambda folder: patterns if not marks or any((folder / mark).is_file() for mark in marks) else None


@contextmanager
def atomic_text(path: str | Path, errors: str = "strict") -> Iterator[IO[str]]:
    """Write a UTF-8 text file atomically, gzipped if its name ends in .gz.

    The same text always gives the same bytes. Parent folders are created. `errors="replace"` writes "?" for
    lone surrogates. After the `with` block, the file and its name are flushed to disk.
    """
    target = Path(os.path.realpath(path))  # a link stays a link, and its target is replaced
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
        replace_file(fresh, target)


def write_text(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write a whole text file atomically (`atomic_text`)."""
    with atomic_text(path, errors) as stream:
        stream.write(text)


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically (`atomic_text`)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def replace_file(fresh: Path, target: Path) -> None:
    """Replace `target` with the complete file `fresh`, and flush the file and its name to disk."""
    flush(fresh)
    os.replace(fresh, target)
    flush(target.parent)


@contextmanager
def atomic_folder(path: str | Path, written: Contents) -> Iterator[Path]:
    """Yield a folder to fill; if the `with` block succeeds, flush the folder to disk and replace `path`.

    written: entries that may be replaced. Raises FileExistsError if `path` contains any other entry
    (`check_replaceable`). If several processes write the same folder, the last one to finish wins. A killed
    writer leaves at most a hidden folder. The next writer removes the hidden folder, unless it contains the
    old content, which `settle` puts back.
    """
    target = Path(os.path.realpath(path))
    settle(target)
    check_replaceable(target, written)
    with _workplace(target) as work:
        fresh = work / "fresh"
        fresh.mkdir()
        try:
            yield fresh
            for entry in (fresh, *fresh.rglob("*")):
                flush(entry)
            while fresh.exists():
                try:
                    os.replace(fresh, target)
                except OSError as error:
                    if error.errno not in OCCUPIED:
                        raise
                    check_replaceable(target, written)  # again, since entries may have been added meanwhile
                    with suppress(FileNotFoundError):  # another writer has just moved it
                        os.replace(target, work / f"old.{secrets.token_hex(4)}")
            flush(target.parent)
        finally:
            settle(target)


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """Create a locked hidden folder beside `target`, after removing those that killed writers left behind.

    The lock ends with the process, so it shows `_sweep` whether the writer is alive.
    """
    check_locks(target)
    missing = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush(folder.parent)
    _sweep(target)
    work = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    work.mkdir()
    lock = os.open(work, os.O_RDONLY)
    try:
        check_locks(target)  # from now on, whoever deletes the folder also deletes `work`
        _lock(lock, fcntl.LOCK_EX)
        try:
            with naming_full(target):
                yield work
        finally:
            check_locks(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


_LOCKS: dict[Path, tuple[int, int]] = {}  # locked folder -> the process that locked it, and its descriptor


def _lock(descriptor: int, operation: int) -> bool:
    """Lock a folder; return False if its file system has no locks. Raises BlockingIOError if it is locked."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise
        return False
    return True


@contextmanager
def locked(folder: Path, make: bool = False, wait: bool = False) -> Iterator[None]:
    """Lock `folder` against other writers on this machine. The lock ends with the process.

    make: whether to create a missing folder. wait: whether to wait for other writers instead of raising
    BlockingIOError. On a file system without locks, this only warns. If another process deletes or replaces
    the folder meanwhile, `check_locks` prevents further writes below its path.
    """
    path = Path(os.path.realpath(folder))
    while True:
        check_locks(path)
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        try:
            try:
                if not _lock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)):
                    warnings.warn(
                        f"{path} is on a file system without locks: let only one process write to it",
                        stacklevel=4,
                    )
            except BlockingIOError as error:
                message = f"{folder} is being written by another process: wait until it ends, or stop it"
                raise BlockingIOError(error.errno, message) from None
            if _same(lock, path):  # not moved meanwhile
                _LOCKS[path] = os.getpid(), lock
                with naming_full(folder):
                    yield
                return
        finally:
            if _LOCKS.get(path, (0, 0))[1] == lock:
                del _LOCKS[path]
            os.close(lock)


def check_locks(path: Path) -> None:
    """Raise BlockingIOError if a folder above `path` was deleted or replaced after `locked` locked it.

    Such a folder now belongs to another process. Call this before deleting files and before any write that is
    not atomic.
    """
    for above in reversed(Path(os.path.realpath(path)).parents):
        if above in _LOCKS and not _same(_LOCKS[above][1], above):
            raise BlockingIOError(
                f"{above} was deleted or replaced while this process was writing there, and its results are "
                "lost: start it again with another folder, or when no other process writes to this one"
            )


def _same(lock: int, folder: Path) -> bool:
    """Return whether a descriptor still refers to the folder at this path."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(os.fstat(lock), folder.stat())
    return False


_LOCKED: set[Path] = set()
_OPEN_LOCKS = ExitStack()  # the locks of folders in _LOCKED
atexit.register(_OPEN_LOCKS.close)


def lock_until_exit(folder: str | Path) -> Path:
    """Create a script's results folder and lock it until this process ends; SystemExit if another has it."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        path = Path(os.path.realpath(place))
        owner, lock = _LOCKS.get(path, (0, -1))
        if path not in _LOCKED or owner != os.getpid() or not _same(lock, path):
            _OPEN_LOCKS.enter_context(locked(place))
            _LOCKED.add(path)
    except OSError as error:
        raise SystemExit(str(error)) from error
    return place


@contextmanager
def naming_full(target: Path) -> Iterator[None]:
    """Convert an error about a full disk into an OSError that names `target`."""
    try:
        yield
    except Exception as error:
        full = next((n for n in FULL if os.strerror(n) in str(error)), None)
        if full is None or str(target) in str(error):
            raise
        raise OSError(full, f"{target} cannot be written: {os.strerror(full)}") from error


def check_replaceable(folder: Path, written: Contents) -> None:
    """Raise FileExistsError if `folder` is a file, or contains an entry that is not `written`."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file, which would be replaced: choose another name")
    foreign: str | None = None
    while folder.exists():
        with suppress(FileNotFoundError, NotADirectoryError):  # another writer is replacing the folder
            before = folder.stat()
            foreign = _foreign(folder, written(folder))
            after = folder.stat()
            if (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns):
                break
        foreign = None  # the folder was replaced meanwhile
    if foreign is not None:
        raise FileExistsError(
            f"{folder} would be replaced, but holds {foreign}, which this program did not write. Move it "
            "away, or choose another folder"
        )


def _foreign(folder: Path, patterns: Collection[str] | None) -> str | None:
    """Return the first entry below a folder that matches no pattern, or None if every entry matches.

    patterns: None for a folder of another kind, whose entries are all foreign.
    """
    if patterns is None:
        return min(os.listdir(folder), default=None)
    files = [*LITTER, *(pattern for pattern in patterns if not pattern.endswith("/"))]
    folders = [pattern.rstrip("/") for pattern in patterns if pattern.endswith("/")]
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder)
        if any(Path(part).match(PARTIAL) for part in name.parts):
            continue  # left by a killed writer
        if not any(name.match(form) for form in (folders if entry.is_dir() else files)):
            return str(name)
    return None


def remove_folder(folder: Path, written: Contents) -> None:
    """Delete a folder atomically. Raises FileExistsError if it contains an entry that is not `written`."""
    check_replaceable(folder, written)
    if folder.exists():
        with _workplace(Path(os.path.realpath(folder))) as work, suppress(FileNotFoundError):
            os.replace(os.path.realpath(folder), work / "removed")


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_settled(file: Path) -> str:
    """Read a text file in a folder that is briefly missing while another process replaces it."""
    for _ in range(SETTLING):
        settle(file.parent)
        with suppress(FileNotFoundError, NotADirectoryError):
            return file.read_text(encoding="utf-8")
    return file.read_text(encoding="utf-8")


def settle(path: str | Path) -> None:
    """Restore a folder that an interrupted `atomic_folder` moved away. Call this before opening it."""
    target = Path(os.path.realpath(path))
    for old in _leftovers(target, "old.*"):
        if target.exists():
            return
        try:
            os.replace(old, target)
        except OSError as error:  # another reader has just restored it, or its writer has finished
            if error.errno not in (*OCCUPIED, errno.ENOENT):
                raise


def sweep(folder: str | Path) -> None:
    """Restore every folder in `folder` with `settle`, and remove what killed writers left behind."""
    for work in Path(os.path.realpath(folder)).glob(PARTIAL):
        if work.is_dir():
            target = work.with_name(work.name[1:].rsplit(".", 2)[0])
            settle(target)
            _sweep(target)


def _leftovers(target: Path, what: str) -> list[Path]:
    """Return the entries named `what` in the hidden folders of all writers of `target`, alive or killed."""
    hidden = target.with_name(f".{target.name}.")
    return [Path(entry) for entry in glob.glob(f"{glob.escape(str(hidden))}????????.partial/{what}")]


def _sweep(target: Path) -> None:
    """Remove hidden folders that killed writers of `target` left behind: those that no process has locked."""
    for work in {entry.parent for entry in _leftovers(target, "*")}:
        with suppress(OSError):  # it has just gone, or its writer is alive
            lock = os.open(work, os.O_RDONLY)
            try:
                if _lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(work, ignore_errors=True)
            finally:
                os.close(lock)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
