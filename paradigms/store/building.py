"""Build an index in a hidden folder beside its final place, with one process or all processes of a launch.

Process r of w encodes shards r, r + w, … Process 0 alone writes the columns, in shard order; a shard that is
not next waits as a file. The bytes do not depend on the number of processes or on interruptions. If a process
fails, its launch ends, and the next start resumes from the stored shards.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradigms.io.files import check_replaceable, contents, remove_folder, replace_file
from paradigms.store.columns import DEFECTS, FILES, SHARDS, ColumnFolder, FolderWriter
from paradigms.store.kind import DOCUMENTS, DTYPES, LENGTHS

STORED = ".safetensors"
BUILT = contents(
    *FILES, f"{SHARDS}/", "*.partial"
)  # the files of a build's hidden folder, which its name marks
SOURCES = "sources.bin"  # for every shard in the columns, the checksum of what it was made from
SOURCE = ("uint8", (32,))
ENCODED = {SOURCES, LENGTHS, DOCUMENTS, *(f"{name}.bin" for name in DTYPES)}  # files that no setting changes


@runtime_checkable
class Launch(Protocol):
    """The processes that share a build, such as accelerate's `Accelerator` or `PartialState`."""

    @property
    def process_index(self) -> int: ...
    @property
    def num_processes(self) -> int: ...
    def wait_for_everyone(self) -> None: ...


class Alone:
    """A launch of one process."""

    process_index, num_processes = 0, 1

    def wait_for_everyone(self) -> None: ...


class Building:
    """The shards in a build's folder. writer: writes its columns; None in every process but the first."""

    def __init__(self, table: ColumnFolder, writer: FolderWriter | None) -> None:
        self.table, self._writer = table, writer
        self._folder = table.folder / SHARDS
        table.read()
        sources = [row.tobytes() for row in table.array(SOURCES, SOURCE)]
        self._sources = dict(enumerate(sources))
        for file in self._folder.glob(f"*{STORED}"):
            with safe_open(file, "np") as tensors:
                self._sources[int(file.stem)] = tensors.get_tensor(SOURCES).tobytes()
        self._appended = len(sources)

    def holds(self, n: int, source: bytes) -> bool:
        """Whether shard n is stored. Raises ValueError if it was made from something else."""
        if self._sources.get(n, source) != source:
            raise interrupted(self.table.folder, "documents")
        return n in self._sources

    def put(self, n: int, source: bytes, columns: Mapping[str, np.ndarray]) -> None:
        """Store shard n: the rows that it appends to each file of the folder."""
        whole = {**columns, SOURCES: np.frombuffer(source, np.uint8)}
        if self._writer is not None and n == self._appended:
            self._append(self._writer, whole)
            return
        file = self._file(n)
        temporary = file.with_suffix(".partial")
        save_file(whole, temporary)
        replace_file(temporary, file)

    def check_count(self, count: int) -> None:
        """Raise ValueError if an interrupted build has stored more than `count` shards."""
        if max(self._sources, default=-1) >= count:
            raise interrupted(self.table.folder, "documents")

    def append_stored(self, writer: FolderWriter) -> None:
        """Append the stored shards that are next in line."""
        while (file := self._file(self._appended)).exists():
            self._append(writer, load_file(file))
            file.unlink()

    def clear(self, writer: FolderWriter) -> None:
        """Remove everything but the columns."""
        writer.remove(SOURCES)
        remove_folder(self._folder, BUILT)

    def _append(self, writer: FolderWriter, columns: Mapping[str, np.ndarray]) -> None:
        for name, rows in columns.items():
            writer.append(name, rows)
        writer.commit(**grown(writer.files.manifest, columns))
        self._appended += 1

    def _file(self, n: int) -> Path:
        return self._folder / f"{n:08}{STORED}"


@contextmanager
def begun(table: ColumnFolder, entries: Mapping[str, Any]) -> Iterator[FolderWriter]:
    """Start or resume a build in a table's folder, as its only writer.

    entries: manifest entries that identify the build. Raises ValueError if a build with other entries was
    interrupted there, and BlockingIOError while another process builds there. After an error, a folder
    without documents is removed.
    """

    def begin() -> None:
        check_replaceable(table.folder, BUILT)
        standing, files = table.standing(), table.folder / SHARDS
        wanted = dict(entries)
        if isinstance(standing.get("files"), dict) and standing["files"].keys() <= ENCODED:
            standing["settings"] = wanted["settings"]  # no file depends on the other settings yet
        if wanted.items() <= standing.items():
            with suppress(*DEFECTS):  # a damaged build begins anew
                table.write(table.read() | {"settings": wanted["settings"]})
                files.mkdir(exist_ok=True)
                return
        elif "building" in standing and _stores_documents(table):
            raise interrupted(table.folder, "settings or weights")
        remove_folder(files, BUILT)
        table.begin(entries)
        files.mkdir()

    with table.writing(begin) as writer:
        try:
            yield writer
        except BaseException:
            if not _stores_documents(table):
                remove_folder(table.folder, BUILT)
            raise


def grown(manifest: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Update the manifest's counts for documents appended to the files."""
    lengths = columns[LENGTHS]
    return {
        "documents": manifest["documents"] + len(lengths),
        "tokens": manifest["tokens"] + int(lengths.sum(dtype=np.int64)),
    }


def interrupted(folder: Path, what: str) -> ValueError:
    """Make the error for a folder in which another build was interrupted."""
    return ValueError(
        f"{folder} holds an interrupted build of other {what}: end that one, or remove the folder"
    )


def _stores_documents(table: ColumnFolder) -> bool:
    return bool(table.standing().get("documents")) or any((table.folder / SHARDS).glob(f"*{STORED}"))
