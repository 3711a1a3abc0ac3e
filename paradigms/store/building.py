"""Build a store in a hidden folder beside its final place, using one process or all processes of a launch.

Process r of w encodes the shards r, r + w, … Only process 0 writes the columns, in shard order. Until a
shard's turn comes, or until the quantiser is trained, the shard waits as a separate file. The resulting bytes
do not depend on the number of processes or on interruptions. If a process fails, its launch ends, and the
next start resumes from the stored shards.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradigms.io.files import check_replaceable, contents, remove_folder, replace_file
from paradigms.store.columns import DEFECTS, FILES, SHARDS, ColumnFolder, FolderWriter, Writer
from paradigms.store.kind import DOCUMENTS, DTYPES, KEYS, LENGTHS, Codec, Quantiser, Rows

VECTORS = "vectors.bin"  # vectors that are not quantised, or not yet
TRAINED = "trained"  # manifest entry: the expected number of tokens when the quantiser was trained
UNKNOWN = 1 << 26  # expected number of tokens if the number of documents is not known
STORED = ".safetensors"
BUILT = contents(
    *FILES, f"{SHARDS}/", "*.partial"
)  # the files of a build's hidden folder, which is recognised by its name
SOURCES = "sources.bin"  # a checksum of the input of each shard in the columns
SOURCE = ("uint8", (32,))
# Files that do not depend on the settings.
ENCODED = {SOURCES, LENGTHS, DOCUMENTS, KEYS, *(f"{name}.bin" for name in DTYPES)}


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
    """The shards in a build's folder.

    writer: the writer of the columns; None in every process except process 0. quantiser: encodes the shards
    once it is trained; until then, all shards are stored as float16 files.
    """

    def __init__(
        self, table: ColumnFolder, writer: FolderWriter | None, quantiser: Quantiser | None, dim: int
    ) -> None:
        self.table, self._writer, self._quantiser, self._dim = table, writer, quantiser, dim
        self._folder = table.folder / SHARDS
        self.open_codec()
        sources = [row.tobytes() for row in table.array(SOURCES, SOURCE)]
        self._sources = dict(enumerate(sources))
        for file in self._folder.glob(f"*{STORED}"):
            with safe_open(file, "np") as tensors:
                self._sources[int(file.stem)] = tensors.get_tensor(SOURCES).tobytes()
        self._appended = len(sources)

    @property
    def untrained(self) -> bool:
        """Whether there is a quantiser that has not been trained yet."""
        return self._quantiser is not None and self._codec is None

    def open_codec(self) -> None:
        """Open the codec if process 0 has trained and committed it."""
        ready = TRAINED in self.table.read()
        self._codec = self._quantiser.open(self.table, self._dim) if self._quantiser and ready else None

    def train(self, parts: Iterable[np.ndarray], held: int, tokens: int) -> None:
        """Train the quantiser, in process 0. Takes the arguments of `Quantiser.train`."""
        assert self._quantiser is not None
        assert self._writer is not None
        trained(self._quantiser, self._writer, parts, held, tokens, self._dim)

    def train_on_stored(self, launch: Launch, documents: int, count: int | None) -> None:
        """Train the quantiser on the stored shards.

        documents: number of documents in these shards. count: total number of documents, if known.
        """
        launch.wait_for_everyone()
        if self._writer is not None:
            files = sorted(self._folder.glob(f"*{STORED}"))
            held = 0
            for file in files:
                with safe_open(file, "np") as tensors:
                    held += int(tensors.get_tensor(LENGTHS).sum(dtype=np.int64))
            parts = (load_file(file)[VECTORS] for file in files)
            self.train(parts, held, estimated(held, documents, count))
        launch.wait_for_everyone()
        self.open_codec()

    def holds(self, n: int, source: bytes) -> bool:
        """Return whether shard n is stored. Raises ValueError if it was built from a different source."""
        if self._sources.get(n, source) != source:
            raise interrupted(self.table.folder, "documents")
        return n in self._sources

    def put(self, n: int, source: bytes, columns: Mapping[str, np.ndarray]) -> None:
        """Store shard n. columns: file name → the rows to append."""
        whole = {**columns, SOURCES: np.frombuffer(source, np.uint8)}
        if not self.untrained:
            whole = in_codes(self._codec, whole)
            if self._writer is not None:
                self.append_stored(self._writer)
                if n == self._appended:
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
        """Append stored shards to the columns, in order, up to the first shard that is missing."""
        while (file := self._file(self._appended)).exists():
            self._append(writer, in_codes(self._codec, load_file(file)))
            file.unlink()

    def clear(self, writer: FolderWriter) -> None:
        """Remove everything except the columns from the build's folder."""
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
    """Start or resume a build in a table's folder; yield the folder's only writer.

    entries: manifest entries that identify the build. Raises ValueError if the folder contains an interrupted
    build with different entries, and BlockingIOError if another process is building there. After an error,
    the folder is removed if it contains no documents.
    """

    def begin() -> None:
        check_replaceable(table.folder, BUILT)
        standing, files = table.standing(), table.folder / SHARDS
        wanted = dict(entries)
        if isinstance(standing.get("files"), dict) and standing["files"].keys() <= ENCODED:
            standing["settings"] = wanted["settings"]  # the files do not depend on the settings yet
        if wanted.items() <= standing.items():
            with suppress(*DEFECTS):  # if the build is damaged, start over
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


def trained(
    quantiser: Quantiser, writer: Writer, parts: Iterable[np.ndarray], held: int, tokens: int, dim: int
) -> Codec:
    """Train a quantiser, commit its files and open the codec. Takes the arguments of `Quantiser.train`."""
    quantiser.train(writer, parts, held, tokens, dim)
    writer.commit(**{TRAINED: tokens})
    return quantiser.open(writer, dim)


def estimated(tokens: int, documents: int, count: int | None) -> int:
    """Estimate the number of tokens in `count` documents, if `documents` of them have `tokens` tokens."""
    return UNKNOWN if count is None else tokens * count // max(1, documents)


def in_codes(codec: Codec | None, columns: Rows) -> Rows:
    """Replace a shard's vectors with codes. codec: None keeps the vectors."""
    if codec is None or VECTORS not in columns:
        return columns
    coded = codec.encode({"vectors": columns[VECTORS]})
    rest = {name: rows for name, rows in columns.items() if name != VECTORS}
    return rest | {f"{name}.bin": rows for name, rows in coded.items()}


def grown(manifest: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the numbers of documents and tokens to record in the manifest after appending `columns`."""
    lengths = columns[LENGTHS]
    return {
        "documents": manifest["documents"] + len(lengths),
        "tokens": manifest["tokens"] + int(lengths.sum(dtype=np.int64)),
    }


def interrupted(folder: Path, what: str) -> ValueError:
    """Return the error for a folder with an interrupted build that used other documents or settings."""
    return ValueError(
        f"{folder} holds an interrupted build of other {what}: end that one, or remove the folder"
    )


def _stores_documents(table: ColumnFolder) -> bool:
    return bool(table.standing().get("documents")) or any((table.folder / SHARDS).glob(f"*{STORED}"))
