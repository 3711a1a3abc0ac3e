"""A build that any number of processes share: each encodes whole shards, and the columns get them in order.

Processes that build the same index at the same time share it through its hidden folder alone: a disk that all
see, with locks that all see. Who encodes a shard holds a lock on it, which ends with the process however that
ends. An encoded shard is appended to the columns at once if it is next in line and nobody else is appending;
else it becomes a file that appears whole, for whoever appends next. Which process encodes what, and when,
changes no byte. Whoever finds everything appended ends the build; the others wait for that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradigms.index.columns import DEFECTS, Column, ColumnFolder, Writer
from paradigms.index.store import grown

FOLDER, CLAIMS, STORED = "shards", "claims", ".safetensors"
SOURCES = "sources.bin"  # of every shard in the columns, what it was made from
SOURCE = Column("uint8", 32)
# Locks of processes at work are on bytes of CLAIMS: byte n is shard n.
PRESENT = 1 << 60  # shared by all
ENDING = PRESENT + 1  # of the one that moves the folder
POLL = 0.2  # seconds between two looks at what others do


class Ended(Exception):
    """Another process has ended the build."""


class Shards:
    """The shards of a build in the folder of `table`, to one of the processes at work on it."""

    def __init__(self, table: ColumnFolder, claims: int) -> None:
        self.table, self._claims = table, claims
        self._folder = table.folder / FOLDER
        self._joined = table.folder.stat()

    @contextmanager
    def claimed(self, n: int) -> Iterator[bool]:
        """Whether no other process has shard n; it is this one's inside."""
        mine = _locks(self._claims, fcntl.LOCK_EX, n)
        try:
            yield mine
        finally:
            if mine:
                fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, n)

    def holds(self, n: int, source: bytes) -> bool:
        """Whether shard n is stored. ValueError where that was made from something else."""
        found = self._source(n)
        if found is not None and found != source:
            raise _interrupted(self.table.folder, "documents")
        return found is not None

    def put(self, n: int, source: bytes, columns: Mapping[str, np.ndarray]) -> None:
        """Store shard n, claimed by this process: what it appends to every file of the folder."""
        whole = {**columns, SOURCES: np.frombuffer(source, SOURCE.dtype)}
        with self._appending() as writer:
            if writer is not None and self._append_stored(writer) == n:
                _append(writer, whole)
                return
        file = self._file(n)
        temporary = file.with_suffix(".partial")
        save_file(whole, temporary)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, file)

    @contextmanager
    def all_appended(self, count: int) -> Iterator[Writer]:
        """The writer of the columns, once they have all of the `count` shards.

        Waits for what other processes are encoding. RuntimeError where one of them has ended before it had
        stored its shard; ValueError where an interrupted build has left more shards.
        """
        while True:
            with self._appending() as writer:
                stored = None if writer is None else self._append_stored(writer)
                if writer is not None and stored == count:
                    if self._more(count):
                        raise _interrupted(self.table.folder, "documents")
                    yield writer
                    return
            if stored is not None:
                self._wait_for(stored, count)
            time.sleep(POLL)

    def clear(self) -> None:
        """Leave nothing but the columns in their folder, which is this process's from now on."""
        fcntl.lockf(self._claims, fcntl.LOCK_EX, 1, ENDING)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _more(self, count: int) -> bool:
        return any(int(file.stem) >= count for file in self._folder.glob(f"*{STORED}"))

    def _wait_for(self, n: int, count: int) -> None:
        if n > count:
            raise _interrupted(self.table.folder, "documents")
        with self.claimed(n) as mine:
            if mine and self._source(n) is None:
                raise RuntimeError(
                    f"the process that was encoding shard {n} of {self.table.folder} has ended before it was "
                    "done: start again, and what is encoded stays"
                )

    def _source(self, n: int) -> bytes | None:
        with suppress(FileNotFoundError), safe_open(self._file(n), "np") as file:
            return file.get_tensor(SOURCES).tobytes()
        try:  # a file goes only when the columns have it
            ended = "building" not in self.table.read()
            sources = self.table.array(SOURCES, SOURCE)
        except FileNotFoundError:
            raise Ended from None
        if ended or self._moved():
            raise Ended
        return sources[n].tobytes() if n < len(sources) else None

    def _moved(self) -> bool:
        """Whether the folder that stands here now is that of another build."""
        return not os.path.samestat(self._joined, self.table.folder.stat())

    @contextmanager
    def _appending(self) -> Iterator[Writer | None]:
        """The writer of the columns; None where another process has it."""
        with ExitStack() as stack:
            writer = None
            with suppress(BlockingIOError):
                writer = stack.enter_context(self.table.writing())
            if writer is not None and self._moved():
                raise Ended
            yield writer

    def _append_stored(self, writer: Writer) -> int:
        """Append the stored shards that are next in line; how many the columns have then."""
        while (file := self._file(self._count())).exists():
            _append(writer, load_file(file))
            file.unlink()
        return self._count()

    def _count(self) -> int:
        files = self.table.manifest["files"]
        return files[SOURCES]["bytes"] // SOURCE.nbytes if SOURCES in files else 0

    def _file(self, n: int) -> Path:
        return self._folder / f"{n:08}{STORED}"


@contextmanager
def joined(table: ColumnFolder, begin: Mapping[str, Any]) -> Iterator[Shards]:
    """This process's part in the build in a table's folder; one that has stopped there goes on.

    begin: the manifest's entries that say what is built. ValueError where something else has been interrupted
    there, BlockingIOError where other processes are building something else. What nothing was stored of goes.
    """
    claims_file = table.folder / FOLDER / CLAIMS
    while True:
        try:
            claims_file.parent.mkdir(parents=True, exist_ok=True)
            claims = os.open(claims_file, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # moved or removed by another process at this moment
            continue
        try:
            if _locks(claims, fcntl.LOCK_EX, PRESENT):
                _begin(table, begin)
            fcntl.lockf(claims, fcntl.LOCK_SH, 1, PRESENT)  # waits for one who is beginning it
            if not table.standing() or not _stands(claims, claims_file):
                continue
            if not _begun(table, begin):
                raise BlockingIOError(
                    errno.EAGAIN, f"{table.folder} is being built of other settings or weights: let that end"
                )
            try:
                yield Shards(table, claims)
            except BaseException as error:
                if not _stands(claims, claims_file) and isinstance(error, Ended | FileNotFoundError):
                    fcntl.lockf(claims, fcntl.LOCK_SH, 1, ENDING)  # waits until the folder is in its place
                    raise Ended from None
                alone = _stands(claims, claims_file) and _locks(claims, fcntl.LOCK_EX, PRESENT)
                if alone and not _stored(table):
                    shutil.rmtree(table.folder)
                raise
            return
        finally:
            os.close(claims)


def _interrupted(folder: Path, what: str) -> ValueError:
    """The error of a build where another one has stopped."""
    return ValueError(
        f"{folder} holds an interrupted build of other {what}: end that one, or remove the folder"
    )


def _begin(table: ColumnFolder, begin: Mapping[str, Any]) -> None:
    """Begin the build where it has not begun; nobody else is at work."""
    if _begun(table, begin):
        with suppress(*DEFECTS):  # a damaged one begins anew
            table.read()
            return
    elif "building" in table.standing() and _stored(table):
        raise _interrupted(table.folder, "settings or weights")
    for file in (table.folder / FOLDER).iterdir():
        if file.name != CLAIMS:
            file.unlink()
    table.begin(begin)


def _begun(table: ColumnFolder, begin: Mapping[str, Any]) -> bool:
    """Whether what stands in a table's folder is this build."""
    return ({"kind": table.kind} | dict(begin)).items() <= table.standing().items()


def _stored(table: ColumnFolder) -> bool:
    """Whether the build in a table's folder has any documents yet."""
    return bool(table.standing().get("documents")) or any((table.folder / FOLDER).glob(f"*{STORED}"))


def _append(writer: Writer, columns: Mapping[str, np.ndarray]) -> None:
    for name, rows in columns.items():
        writer.append(name, rows)
    writer.commit(**grown(writer.table.manifest, columns))


def _stands(descriptor: int, file: Path) -> bool:
    """Whether the file that was opened is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _locks(descriptor: int, kind: int, byte: int) -> bool:
    """Lock a byte of a file without waiting; False where another process has it."""
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # systems answer either
        return False
    return True
