"""Store rows in files that change in atomic commits, in a folder or in memory.

Readers never see a partial change. A column is a file of rows of one numpy dtype, or of a subarray dtype if a
row consists of several numbers.

In a folder, columns are append-only, and `manifest.json` records each file's committed length in bytes and
crc32. A commit writes beyond these lengths, flushes the files and then replaces the manifest atomically. An
interrupted writer may leave bytes beyond the recorded lengths, or files that the manifest does not name; the
next writer removes them. A rewritten file gets a new name, which contains the new generation's number.
"""

import mmap
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from paradigms.io.checks import parse_json
from paradigms.io.files import locked, read_settled, settle, write_json

FORMAT = 5
CHUNK = 1 << 22  # bytes read at once for a checksum
MANIFEST = "manifest.json"
SHARDS = "shards"  # subfolder of a build's hidden folder, for encoded shards
FILES = (MANIFEST, "*.bin", "*.jsonl", "*.faiss", "*.safetensors")  # files of a store or its build
GENERATION = re.compile(r"\.\d+(?=\.\w+$)")  # the ".3" in "vectors.3.bin"
DEFECTS = (OSError, ValueError, KeyError, TypeError, AttributeError)  # errors from reading a damaged file


class _FolderFiles:
    """The files in a folder, by column name. entries: each column's file name and number of bytes."""

    def __init__(self, folder: Path, entries: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.entries = entries

    def __str__(self) -> str:
        return str(self.folder)

    def array(self, name: str, column: DTypeLike) -> np.ndarray:
        """Map a column into memory. Raises ValueError if its length is not a whole number of rows."""
        entry = self.entries.get(name)
        if not entry or not entry["bytes"]:
            return np.zeros(0, column)
        count, left = divmod(entry["bytes"], size := np.dtype(column).itemsize)
        if left:
            raise self.damaged(name, f"{entry['bytes']} bytes are not rows of {size}")
        return np.memmap(self.folder / entry["file"], column, "r", shape=(count,))

    def damaged(self, name: str, problem: object) -> ValueError:
        """Return a ValueError that names a damaged file and the problem."""
        file = self.entries[name]["file"] if name in self.entries else name
        return ValueError(f"{self.folder / file} is damaged ({problem}): build the index again")


class ColumnFolder(_FolderFiles):
    """Columns in a folder. `read` opens the newest commit, `array` maps a column, `writing` makes changes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        self.manifest: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Read the manifest, and check that no file is shorter than the manifest records.

        Raises FileNotFoundError without a manifest, and ValueError, naming the file, if a file is damaged.
        """
        manifest = self._manifest()
        for entry in manifest["files"].values():
            file = self.folder / entry["file"]
            size = file.stat().st_size if file.is_file() else 0
            if size < entry["bytes"] or not file.is_file():
                self.entries = {}  # so that the error contains this file name unchanged
                raise self.damaged(file.name, f"{size or 'no'} bytes where {entry['bytes']} belong")
        self._take(manifest)
        return manifest

    def verify(self, most: int | None = None) -> None:
        """Verify the checksum of every file of at most `most` bytes, reading the files in small pieces.

        Raises ValueError, naming the file, if a checksum differs.
        """
        for name, entry in self.entries.items():
            if most is not None and entry["bytes"] > most:
                continue
            if _checksum(self.folder / entry["file"], entry["bytes"]) != entry["crc32"]:
                raise self.damaged(name, "its checksum differs")

    def identity(self) -> tuple[int, ...]:
        """Return the folder's inode, which a rebuild changes, and the change times of folder and manifest.

        Returns () if there is no manifest.
        """
        settle(self.folder)
        with suppress(FileNotFoundError, NotADirectoryError):
            folder = os.stat(self.folder)
            manifest = os.stat(self.folder / MANIFEST)
            return folder.st_ino, folder.st_ctime_ns, manifest.st_ino, manifest.st_ctime_ns
        return ()

    def begin(self, entries: Mapping[str, Any]) -> None:
        """Remove all files from the folder, and write an initial manifest with these entries."""
        for file in self.folder.iterdir():
            if not file.is_dir():
                file.unlink()
        start = {"format": FORMAT, "documents": 0, "tokens": 0, "generation": 0, "files": {}}
        self.write(start | dict(entries))

    @contextmanager
    def writing(self, begin: Callable[[], None] | None = None) -> "Iterator[FolderWriter]":
        """Lock the folder against other writers, and yield a writer that starts from the newest commit.

        begin: function that prepares the folder; if given, a missing folder is created. Raises
        BlockingIOError if another process is writing to the folder.
        """
        with locked(self.folder, make=begin is not None):
            if begin is not None:
                begin()
            fresh = ColumnFolder(self.folder)
            fresh.read()
            fresh.sweep()
            writer = FolderWriter(fresh)
            try:
                yield writer
            except BaseException:
                writer.close()
                with suppress(OSError, ValueError):  # the first error is raised; the next writer sweeps too
                    fresh.read()  # the new manifest may be in place even if its commit failed
                    fresh.sweep(writer.names)
                raise
            writer.close()

    def sweep(self, also: Collection[str] = ()) -> None:
        """Remove bytes and files that the last commit does not record.

        also: names, besides those in the manifest, whose unrecorded files are removed.
        """
        names = self.entries.keys() | set(also)
        lengths = {entry["file"]: entry["bytes"] for entry in self.entries.values()}
        for file in self.folder.glob("*"):
            if file.name in lengths:
                if file.stat().st_size > lengths[file.name]:
                    os.truncate(file, lengths[file.name])
            elif GENERATION.sub("", file.name) in names:
                file.unlink()

    def write(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest."""
        write_json(self.folder / MANIFEST, manifest)
        self._take(manifest)

    def _take(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest
        self.entries = manifest["files"]

    def _manifest(self) -> dict[str, Any]:
        file = self.folder / MANIFEST
        try:
            manifest = parse_json(read_settled(file), MANIFEST)
            format = manifest.get("format")
            if format == FORMAT:
                for entry in manifest["files"].values():
                    name = entry["file"]
                    counts = [entry["bytes"], entry["crc32"], manifest["generation"]]
                    if Path(name).name != name or any(type(n) is not int or n < 0 for n in counts):
                        raise ValueError(f"an entry that names {name!r:.200}, {counts!r:.200}")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{file} is missing: {self.folder} is not an index") from error
        except DEFECTS as error:
            raise self.damaged(MANIFEST, error) from error
        if format != FORMAT:
            raise ValueError(f"{file} has format {format}, not {FORMAT}: build the index again")
        return manifest


class FolderWriter(_FolderFiles):
    """A `Writer` for a `ColumnFolder`."""

    def __init__(self, files: ColumnFolder) -> None:
        super().__init__(files.folder, {name: dict(entry) for name, entry in files.entries.items()})
        self.files = files
        self._streams: dict[str, BinaryIO] = {}
        self.names = set(self.entries)  # all names that this writer has read or written
        self._generation: int = files.manifest["generation"]

    def append(self, name: str, rows: bytes | np.ndarray) -> None:
        """Append rows to a file, which is created if it does not exist."""
        data = rows if isinstance(rows, bytes) else rows.tobytes()
        entry = self.entries.get(name) or self._anew(name)
        if name not in self._streams:
            # An empty entry overwrites a leftover file of that name.
            mode: Literal["ab", "wb"] = "ab" if entry["bytes"] else "wb"
            self._streams[name] = (self.folder / entry["file"]).open(mode)
        self._streams[name].write(data)
        entry["bytes"] += len(data)
        entry["crc32"] = zlib.crc32(data, entry["crc32"])

    def remove(self, name: str) -> None:
        """Remove a file at the next commit; rows appended later start a new file."""
        if name in self._streams:
            self._streams.pop(name).close()
        self.entries.pop(name, None)

    def array(self, name: str, column: DTypeLike) -> np.ndarray:
        """Map a column into memory, including uncommitted rows."""
        if name in self._streams:
            self._streams[name].flush()
        return super().array(name, column)

    def commit(self, **state: Any) -> None:
        """Make all changes visible to readers. state: manifest entries to set, or to remove if None."""
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        manifest = self.files.manifest | state | {"generation": self._generation}
        manifest |= {"files": {name: dict(self.entries[name]) for name in sorted(self.entries)}}
        self.files.write({key: manifest[key] for key in sorted(manifest) if manifest[key] is not None})
        self.files.sweep(self.names)

    def close(self) -> None:
        """Close all open files. Errors are ignored, because only uncommitted rows can be unwritten."""
        while self._streams:
            with suppress(OSError):
                self._streams.popitem()[1].close()

    def _anew(self, name: str) -> dict[str, Any]:
        """Add an empty entry with a file name that has never been committed."""
        if name in self.names:
            self._generation = self.files.manifest["generation"] + 1
        self.names.add(name)
        path = Path(name)
        file = f"{path.stem}.{self._generation}{path.suffix}" if self._generation else name
        self.entries[name] = {"file": file, "bytes": 0, "crc32": 0}
        return self.entries[name]


def _checksum(file: Path, size: int) -> int:
    """Compute the crc32 of a file's first `size` bytes."""
    checksum = 0
    with file.open("rb") as stream:
        while size and (data := stream.read(min(size, CHUNK))):
            checksum = zlib.crc32(data, checksum)
            size -= len(data)
    return checksum


class ColumnMemory:
    """Columns in memory: `Files` and `Writer` at once. `writing` yields a copy that shares its columns."""

    def __init__(self, manifest: Mapping[str, Any], columns: Mapping[str, np.ndarray] | None = None) -> None:
        self.manifest = dict(manifest)
        self._columns = dict(columns or {})
        self._pieces: dict[str, list[np.ndarray]] = {}  # appended to a column but not joined yet

    def __str__(self) -> str:
        return "the store in memory"

    @property
    def files(self) -> "ColumnMemory":
        """This object itself, which readers open once the last commit is made."""
        return self

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Column name → {"bytes": n}."""
        return {name: {"bytes": self._joined(name).nbytes} for name in {**self._columns, **self._pieces}}

    def array(self, name: str, column: DTypeLike) -> np.ndarray:
        """Return a column, read-only. Raises ValueError if its length is not a whole number of rows."""
        data = self._joined(name)
        return np.frombuffer(data, column) if len(data) else np.zeros(0, column)

    def damaged(self, name: str, problem: object) -> ValueError:
        """Return a ValueError that names a damaged column and the problem."""
        return ValueError(f"{name} of {self} is damaged ({problem}): build the index again")

    @contextmanager
    def writing(self) -> "Iterator[ColumnMemory]":
        """Yield a copy that can be changed; this object does not change."""
        yield ColumnMemory(self.manifest, {name: self._joined(name) for name in self.entries})

    def append(self, name: str, rows: bytes | np.ndarray) -> None:
        """Append rows to a column, which is created if it does not exist."""
        data = rows if isinstance(rows, bytes) else np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        self._pieces.setdefault(name, []).append(np.frombuffer(data, np.uint8))

    def remove(self, name: str) -> None:
        """Remove a column; rows appended later start a new column."""
        self._columns.pop(name, None)
        self._pieces.pop(name, None)

    def commit(self, **state: Any) -> None:
        """Change the manifest. state: entries to set, or to remove if None."""
        manifest = self.manifest | state
        self.manifest = {key: value for key, value in manifest.items() if value is not None}

    def _joined(self, name: str) -> np.ndarray:
        """Return a column's bytes, starting on a memory page so that rows are aligned with cache lines."""
        column = self._columns.get(name, np.zeros(0, np.uint8))
        pieces = self._pieces.pop(name, [])
        if size := sum(piece.nbytes for piece in pieces):
            joined = np.frombuffer(mmap.mmap(-1, column.nbytes + size), np.uint8)
            start = column.nbytes
            joined[:start] = column
            while pieces:  # free each piece once it is copied
                piece = pieces.pop(0)
                joined[start : start + piece.nbytes] = piece
                start += piece.nbytes
            joined.setflags(write=False)
            column = self._columns[name] = joined
        return column


Files: TypeAlias = ColumnFolder | ColumnMemory
"""Columns and a manifest at one commit. entries: file name → {"bytes": n, …}, the committed bytes."""
Writer: TypeAlias = FolderWriter | ColumnMemory
"""Changes to `files`. Readers see them after the next `commit`; `array` includes uncommitted rows."""
