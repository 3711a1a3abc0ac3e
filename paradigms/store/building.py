"""Encode the shards of a store, using one process or all processes of a launch, and resume.

Process r of w encodes the shards r, r + w, … and stores each as a file in a hidden folder beside the store.
A file's name is a hash of the shard's documents and of everything else that its content depends on. Whatever
changed since an interruption, every file that still fits is used, and no other. Only when all shards are
stored does process 0 write the columns, in shard order. The resulting bytes do not depend on the number of
processes or on interruptions. If a process fails, its launch ends.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradigms.io.files import check_replaceable, contents, remove_folder, replace_file
from paradigms.store.columns import DEFECTS, FILES, FORMAT, SHARDS, ColumnFolder, FolderWriter
from paradigms.store.kind import LENGTHS, Codec, Kind, Rows

VECTORS = "vectors.bin"  # vectors that are not quantised, or not yet
TRAINED = "trained"  # manifest entry: the expected number of tokens when the quantiser was trained
TRAINED_ON = "trained_on"  # the shards that the quantiser was trained on
STORED = ".safetensors"
BUILT = contents(*FILES, f"{SHARDS}/", "*.partial")  # the files of a build's hidden folder


@runtime_checkable
class Launch(Protocol):
    """The processes that share a build, such as accelerate's `Accelerator` or `PartialState`."""

    @property
    def process_index(self) -> int: ...
    @property
    def num_processes(self) -> int: ...
    def wait_for_everyone(self) -> None: ...


class OneProcess:
    """A launch of one process."""

    process_index, num_processes = 0, 1

    def wait_for_everyone(self) -> None: ...


class ShardFiles:
    """Encoded shards as files in a hidden folder.

    described: everything that determines a shard's rows, except its documents.
    """

    def __init__(self, folder: Path, kind: Kind, described: Mapping[str, Any]) -> None:
        self.folder = folder
        codec: Any = kind.codec
        described = {"format": FORMAT, "codec": type(codec).__name__, **asdict(codec), **described}
        self._described = json.dumps(described, sort_keys=True, default=dict)

    def holds(self, source: bytes, codec: str = "") -> bool:
        """Return whether a shard is stored. source: hash of its documents. codec: hash of a trained codec."""
        return self._file(source, codec).is_file()

    def load(self, source: bytes, codec: str = "") -> Rows:
        """Read the columns of a shard that is stored."""
        return load_file(self._file(source, codec))

    def column(self, source: bytes, name: str) -> np.ndarray:
        """Read one column of a shard that is stored."""
        with safe_open(self._file(source, ""), "np") as tensors:
            return tensors.get_tensor(name)

    def put(self, source: bytes, columns: Rows, codec: str = "") -> None:
        """Store a shard atomically. columns: file name → the rows to append."""
        file = self._file(source, codec)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".partial")
        save_file(dict(columns), temporary)
        replace_file(temporary, file)

    def clear(self) -> None:
        """Remove the hidden folder."""
        remove_folder(self.folder, BUILT)

    def _file(self, source: bytes, codec: str) -> Path:
        name = hashlib.sha256(f"{self._described}{codec}".encode() + source).hexdigest()
        return self.folder / SHARDS / f"{name}{STORED}"


class ShardMemory:
    """Encoded shards in memory, each until it is loaded. Methods: see `ShardFiles`."""

    def __init__(self) -> None:
        self._shards: dict[tuple[bytes, str], Rows] = {}

    def holds(self, source: bytes, codec: str = "") -> bool:
        return (source, codec) in self._shards

    def load(self, source: bytes, codec: str = "") -> Rows:
        return self._shards.pop((source, codec))

    def column(self, source: bytes, name: str) -> np.ndarray:
        return self._shards[source, ""][name]

    def put(self, source: bytes, columns: Rows, codec: str = "") -> None:
        self._shards[source, codec] = columns


@contextmanager
def begun(table: ColumnFolder, entries: Mapping[str, Any]) -> Iterator[FolderWriter]:
    """Start or resume a build in a hidden folder; yield the folder's only writer.

    entries: manifest entries that the trained codec depends on; if they differ, a new codec is trained.
    Raises BlockingIOError if another process is building there. After an error, the folder is removed if it
    contains no shards.
    """

    def begin() -> None:
        check_replaceable(table.folder, BUILT)
        with suppress(*DEFECTS):  # if the codec is damaged, train it again
            if dict(entries).items() <= table.read().items():
                table.verify()
                return
        table.begin(entries)

    with table.writing(begin) as writer:
        try:
            yield writer
        except BaseException:
            if not any((table.folder / SHARDS).glob(f"*{STORED}")):
                remove_folder(table.folder, BUILT)
            raise


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
