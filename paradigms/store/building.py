"""Encode the shards of a store, using one process or all processes of a launch, and resume.

Process r of w encodes the shards r, r + w, … and stores each as a file in a hidden folder beside the store.
A file's name is a hash of the shard's documents and of everything else that its content depends on. Whatever
changed since an interruption, every file that still fits is used, and no other. Only when all shards are
stored does process 0 write the columns, in shard order. The resulting bytes do not depend on the number of
processes or on interruptions. If a process fails, its launch ends.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradigms.io.files import check_replaceable, contents, remove_folder, replace_file
from paradigms.store.columns import DEFECTS, FILES, FORMAT, SHARDS, ColumnFolder, Files, FolderWriter, Writer
from paradigms.store.kind import LENGTHS, Codec, Kind, Quantiser, Rows
from paradigms.store.shards import Shard

VECTORS = "vectors.bin"  # vectors that are not quantised, or not yet
TRAINED = "trained"  # manifest entry: the expected number of tokens when the quantiser was trained
TRAINED_ON = "trained_on"  # the shards that the quantiser was trained on
UNKNOWN = 1 << 26  # expected number of tokens if the number of documents is not known
STORED = ".safetensors"
Encode = Callable[[Shard], Rows]
BUILT = contents(
    *FILES, f"{SHARDS}/", "*.partial"
)  # the files of a build's hidden folder, which is recognised by its name


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


class Building:
    """The shards and the codec of an unfinished build.

    table: files of the codec. writer: writes the codec; None in every process except process 0. quantiser:
    encodes the shards once it is trained; until then, shards are stored as float16.
    """

    def __init__(
        self,
        table: Files,
        shards: ShardFiles | ShardMemory,
        writer: Writer | None,
        quantiser: Quantiser | None,
        dim: int,
    ) -> None:
        self.table = table
        self._shards = shards
        self._writer = writer
        self._quantiser = quantiser
        self._dim = dim
        self._codec: Codec | None = None
        self._checksum = ""

    @property
    def untrained(self) -> bool:
        """Whether there is a quantiser that has not been trained yet."""
        return self._quantiser is not None and self._codec is None

    def train_on_sample(self, launch: Launch, sample: Iterable[Shard], encode: Encode, count: int) -> None:
        """Train the quantiser on a random sample of the documents, or open the codec trained on this sample.

        encode: converts a shard to rows. count: number of documents of the build.
        """
        if self._writer is not None:
            assert self._quantiser is not None
            shards = iter(sample)
            again = list(islice(shards, self.table.manifest.get(TRAINED_ON, {}).get("shards", 0)))
            if not self._trained_on([shard.source for shard in again], count):
                sources: list[bytes] = []
                parts: list[np.ndarray] = []
                documents = held = tokens = 0
                for shard in chain(again, shards):
                    sources.append(shard.source)
                    parts.append(encode(shard)[VECTORS])
                    documents += len(shard.ids)
                    held += len(parts[-1])
                    tokens = estimated(held, documents, count)
                    if held >= self._quantiser.wanted(tokens):
                        break
                self._train(parts, held, tokens, sources, count)
        self._open_codec(launch)

    def train_on_stored(
        self, launch: Launch, sources: Sequence[bytes], documents: int, count: int | None
    ) -> None:
        """Train the quantiser on stored shards, or open the codec that was trained on these shards.

        sources: the shards. documents: number of documents in them. count: total number, if known.
        """
        launch.wait_for_everyone()
        if self._writer is not None and not self._trained_on(sources, count):
            held = sum(int(self._shards.column(source, LENGTHS).sum(dtype=np.int64)) for source in sources)
            parts = (self._shards.column(source, VECTORS) for source in sources)
            self._train(parts, held, estimated(held, documents, count), sources, count)
        self._open_codec(launch)

    def _train(
        self,
        parts: Iterable[np.ndarray],
        held: int,
        tokens: int,
        sources: Sequence[bytes],
        count: int | None,
    ) -> None:
        assert self._quantiser is not None
        assert self._writer is not None
        self._quantiser.train(self._writer, parts, held, tokens, self._dim)
        self._writer.commit(**{TRAINED: tokens, TRAINED_ON: _training(sources, count)})

    def _trained_on(self, sources: Sequence[bytes], count: int | None) -> bool:
        """Return whether an interrupted build trained the quantiser on these shards."""
        return self.table.manifest.get(TRAINED_ON) == _training(sources, count)

    def _open_codec(self, launch: Launch) -> None:
        """Open the codec that process 0 has committed."""
        assert self._quantiser is not None
        launch.wait_for_everyone()
        if isinstance(self.table, ColumnFolder):
            self.table.read()
        self._codec = self._quantiser.open(self.table, self._dim)
        # Codes depend on the quantiser's bits, too, which its files do not have.
        checksums = (entry.get("crc32") for entry in self.table.entries.values())
        self._checksum = str([self._quantiser, *checksums])

    def holds(self, source: bytes) -> bool:
        """Return whether a shard is stored, in codes or not."""
        return any(self._shards.holds(source, codec) for codec in (self._checksum, ""))

    def put(self, source: bytes, columns: Rows) -> None:
        """Store a shard. columns: file name → the rows to append."""
        self._shards.put(source, in_codes(self._codec, columns), self._checksum)

    def append(self, writer: Writer, sources: Iterable[bytes]) -> dict[str, int]:
        """Append the codec and all shards to a new store's columns; return what to commit."""
        manifest = {"documents": 0, "tokens": 0}
        if self._codec is not None:
            manifest[TRAINED] = self.table.manifest[TRAINED]
            for name in self.table.entries:
                writer.append(name, self.table.array(name, "uint8"))
        for source in sources:
            stored_as = self._checksum if self._shards.holds(source, self._checksum) else ""
            columns = in_codes(self._codec, self._shards.load(source, stored_as))
            for name, rows in columns.items():
                writer.append(name, rows)
            manifest |= grown(manifest, columns)
        return manifest


def _training(sources: Sequence[bytes], count: int | None) -> dict[str, Any]:
    """Describe the shards that train a quantiser. count: number of documents of the build, if known."""
    checksum = hashlib.sha256(b"".join(sources) + str(count).encode()).hexdigest()
    return {"shards": len(sources), "sha256": checksum}


@contextmanager
def begun(table: ColumnFolder, entries: Mapping[str, Any]) -> Iterator[FolderWriter]:
    """Start or resume a build in a hidden folder; yield the folder's only writer.

    entries: manifest entries that the trained codec depends on, besides the shards that trained it; if they
    differ, a new codec is trained.
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
