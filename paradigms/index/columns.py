"""A folder of files that change by whole commits: readers see the old state or the new one, never a mix.

A column is a file of rows of one numpy dtype, a subarray where a row is several numbers.

Columns are only appended to, and `manifest.json` records how many bytes of each file count and their crc32. A
commit writes beyond these lengths, flushes, then replaces the manifest at once. What lies beyond, and files
that it does not name, were left by a writer that was stopped; the next one removes them. Files that cannot
grow are written whole under a name with the new generation.
"""

import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import DTypeLike

from paradigms.io.files import locked, settle, write_json
from paradigms.io.typed import parse_json

FORMAT = 2
CHUNK = 1 << 22  # bytes read at once for a checksum
MANIFEST = "manifest.json"
GENERATION = re.compile(r"\.\d+(?=\.\w+$)")  # of "vectors.3.bin"
# Of a file that is not what it should be.
DEFECTS = (OSError, ValueError, KeyError, TypeError, AttributeError)


class Files:
    """Files of a folder by name. entries: of each its file there, and how many bytes count."""

    def __init__(self, folder: Path, entries: dict[str, dict[str, Any]]) -> None:
        self.folder, self.entries = folder, entries

    def array(self, name: str, column: DTypeLike) -> np.ndarray:
        """A column, mapped into memory for reading. ValueError where its bytes are not whole rows."""
        entry = self.entries.get(name)
        if not entry or not entry["bytes"]:
            return np.zeros(0, column)
        count, left = divmod(entry["bytes"], size := np.dtype(column).itemsize)
        if left:
            raise self.damaged(entry["file"], f"{entry['bytes']} bytes are not rows of {size}")
        return np.memmap(self.folder / entry["file"], column, "r", shape=(count,))

    def path(self, name: str) -> Path | None:
        """Where the file of this name is now; None where there is none."""
        return self.folder / self.entries[name]["file"] if name in self.entries else None

    def damaged(self, file: str, what: object) -> ValueError:
        """The error that names a damaged file."""
        return ValueError(f"{self.folder / file} is damaged ({what}): build the index again")


class ColumnFolder(Files):
    """Such a folder of one kind of index: `read` its state, map its `array`s, write in `writing`."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, {})
        self.kind = kind
        self.manifest: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The manifest as it is on the disk, with every file that it names there in its full length.

        FileNotFoundError where there is none; ValueError names a damaged file, or the index's kind or format.
        """
        settle(self.folder)
        manifest = self._manifest()
        for entry in manifest["files"].values():
            file = self.folder / entry["file"]
            size = file.stat().st_size if file.is_file() else 0
            if size < entry["bytes"] or not file.is_file():
                raise self.damaged(file.name, f"{size or 'no'} bytes where {entry['bytes']} belong")
        self._take(manifest)
        return manifest

    def verify(self) -> None:
        """Compare the checksum of every file, in small pieces. ValueError names the one that is damaged."""
        for entry in self.entries.values():
            if _checksum(self.folder / entry["file"], entry["bytes"]) != entry["crc32"]:
                raise self.damaged(entry["file"], "its checksum differs")

    def standing(self) -> dict[str, Any]:
        """The manifest, unchecked; empty if none can be read."""
        try:
            found = parse_json((self.folder / MANIFEST).read_text(encoding="utf-8"), MANIFEST)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def begin(self, entries: Mapping[str, Any]) -> None:
        """Remove all files of the folder and start it with these entries in the manifest."""
        for file in self.folder.iterdir():
            if not file.is_dir():
                file.unlink()
        start = {"kind": self.kind, "format": FORMAT, "documents": 0, "tokens": 0}
        self.write(start | {"generation": 0, "files": {}} | dict(entries))

    @contextmanager
    def writing(self, begin: Callable[[], None] | None = None) -> "Iterator[Writer]":
        """The only writer of the folder, on the state that the folder has now.

        begin: prepares the folder, which is made if it is missing. BlockingIOError while another one writes
        there.
        """
        with locked(self.folder, make=begin is not None):
            if begin is not None:
                begin()
            self.read()
            self.sweep()
            writer = Writer(self)
            try:
                yield writer
            except BaseException:
                writer.close()
                self.sweep(writer.names)
                raise
            writer.close()

    def sweep(self, also: Collection[str] = ()) -> None:
        """Remove what no commit has recorded, of files of the manifest's names and `also`."""
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
        write_json(self.folder / MANIFEST, manifest, durable=True)
        self._take(manifest)

    def _take(self, manifest: dict[str, Any]) -> None:
        self.manifest, self.entries = manifest, manifest["files"]

    def _manifest(self) -> dict[str, Any]:
        file = self.folder / MANIFEST
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: {self.folder} is not an index")
        try:
            manifest = parse_json(file.read_text(encoding="utf-8"), MANIFEST)
            kind, format = manifest.get("kind"), manifest.get("format")
            if format == FORMAT:
                for entry in manifest["files"].values():
                    name, counts = entry["file"], [entry["bytes"], entry["crc32"], manifest["generation"]]
                    if Path(name).name != name or any(type(n) is not int or n < 0 for n in counts):
                        raise ValueError(f"an entry that names {name!r:.200}, {counts!r:.200}")
        except DEFECTS as error:
            raise self.damaged(MANIFEST, error) from error
        if format != FORMAT:
            raise ValueError(f"{file} is of format {format}, not {FORMAT}: build the index again")
        if kind != self.kind:
            raise ValueError(f"{self.folder} is an index of the kind {kind}, not {self.kind}")
        return manifest


class Writer(Files):
    """Changes of a `ColumnFolder` that count from the next `commit` on; files as they will be then."""

    def __init__(self, table: ColumnFolder) -> None:
        super().__init__(table.folder, {name: dict(entry) for name, entry in table.entries.items()})
        self.table = table
        self._streams: dict[str, BinaryIO] = {}
        self.names = set(self.entries)  # of all that was ever written here
        self._generation: int = table.manifest["generation"]

    def append(self, name: str, rows: bytes | np.ndarray) -> None:
        """Write at the end of a file, which begins here where it is not there yet."""
        data = rows if isinstance(rows, bytes) else rows.tobytes()
        entry = self.entries.get(name) or self._anew(name)
        if name not in self._streams:
            mode: Literal["ab", "wb"] = "ab" if entry["bytes"] else "wb"  # a new file holds nothing of others
            self._streams[name] = (self.folder / entry["file"]).open(mode)
        self._streams[name].write(data)
        entry["bytes"] += len(data)
        entry["crc32"] = zlib.crc32(data, entry["crc32"])

    def remove(self, name: str) -> None:
        """Drop this file at the next commit; what is appended from now on begins it anew."""
        if name in self._streams:
            self._streams.pop(name).close()
        self.entries.pop(name, None)

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Where to write a whole file that takes the place of the one of this name."""
        entry = self._anew(name)
        file = self.folder / entry["file"]
        yield file
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())
        size = file.stat().st_size
        entry |= {"bytes": size, "crc32": _checksum(file, size)}

    def array(self, name: str, column: DTypeLike) -> np.ndarray:
        """A column with the rows that are not committed yet, mapped into memory for reading."""
        if name in self._streams:
            self._streams[name].flush()
        return super().array(name, column)

    def commit(self, **state: Any) -> None:
        """Make all that was written visible to readers, with `state` in the manifest; None drops an entry."""
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        manifest = self.table.manifest | state | {"generation": self._generation}
        manifest |= {"files": {name: dict(self.entries[name]) for name in sorted(self.entries)}}
        self.table.write({key: manifest[key] for key in sorted(manifest) if manifest[key] is not None})
        self.table.sweep(self.names)

    def close(self) -> None:
        """Close the files."""
        while self._streams:
            self._streams.popitem()[1].close()

    def _anew(self, name: str) -> dict[str, Any]:
        """An empty entry, under a file name that no commit has used."""
        if name in self.names:
            self._generation = self.table.manifest["generation"] + 1
        self.names.add(name)
        path = Path(name)
        file = f"{path.stem}.{self._generation}{path.suffix}" if self._generation else name
        self.entries[name] = {"file": file, "bytes": 0, "crc32": 0}
        return self.entries[name]


def _checksum(file: Path, size: int) -> int:
    """crc32 of the first `size` bytes."""
    checksum = 0
    with file.open("rb") as stream:
        while size and (data := stream.read(min(size, CHUNK))):
            checksum, size = zlib.crc32(data, checksum), size - len(data)
    return checksum
