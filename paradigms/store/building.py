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
from paradigms.store.columns import DEFECTS, FILES, FORMAT, SHARDS, ColumnFolder, FolderWriter, Writer
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

    made: everything that determines a shard's rows, except its documents.
    """

    def __init__(self, folder: Path, kind: Kind, made: Mapping[str, Any]) -> None:
        self.folder = folder
        codec: Any = kind.codec
        described = {"format": FORMAT, "codec": type(codec).__name__, **asdict(codec), **made}
        self._made = json.dumps(described, sort_keys=True, default=dict)

    def file(self, source: bytes, codec: str = "") -> Path:
        """Return the place of a shard. source: hash of its documents. codec: hash of a trained codec."""
        name = hashlib.sha256(f"{self._made}{codec}".encode() + source).hexdigest()
        return self.folder / SHARDS / f"{name}{STORED}"

    def clear(self) -> None:
        """Remove the hidden folder."""
        remove_folder(self.folder, BUILT)


class Building:
    """The shards and the codec in a build's hidden folder.

    writer: writes the codec; None in every process except process 0. quantiser: encodes the shards once it is
    trained; until then, shards are stored as float16.
    """

    def __init__(
        self,
        table: ColumnFolder,
        files: ShardFiles,
        writer: FolderWriter | None,
        quantiser: Quantiser | None,
        dim: int,
    ) -> None:
        self.table = table
        self._files = files
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
                sources, parts, tokens = sampled(self._quantiser, chain(again, shards), encode, count)
                self._train(parts, sum(map(len, parts)), tokens, sources, count)
        launch.wait_for_everyone()
        self._open_codec()

    def train_on_stored(
        self, launch: Launch, sources: Sequence[bytes], documents: int, count: int | None
    ) -> None:
        """Train the quantiser on stored shards, or open the codec that was trained on these shards.

        sources: the shards. documents: number of documents in them. count: total number, if known.
        """
        launch.wait_for_everyone()
        if self._writer is not None and not self._trained_on(sources, count):
            files = [self._files.file(source) for source in sources]
            total = 0
            for file in files:
                with safe_open(file, "np") as tensors:
                    total += int(tensors.get_tensor(LENGTHS).sum(dtype=np.int64))
            parts = (load_file(file)[VECTORS] for file in files)
            self._train(parts, total, estimated(total, documents, count), sources, count)
        launch.wait_for_everyone()
        self._open_codec()

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

    def _open_codec(self) -> None:
        """Open the codec that process 0 has committed."""
        assert self._quantiser is not None
        self.table.read()
        self._codec = self._quantiser.open(self.table, self._dim)
        # Codes depend on the quantiser's bits, too, which its files do not have.
        self._checksum = str([self._quantiser, *(entry["crc32"] for entry in self.table.entries.values())])

    def holds(self, source: bytes) -> bool:
        """Return whether a shard is stored, in codes or not."""
        return any(file.is_file() for file in self._places(source))

    def put(self, source: bytes, columns: Rows) -> None:
        """Store a shard. columns: file name → the rows to append."""
        put(self._places(source)[0], in_codes(self._codec, columns))

    def append(self, writer: Writer, sources: Iterable[bytes]) -> dict[str, int]:
        """Append the codec and all shards to a new store's columns; return what to commit."""
        manifest = {"documents": 0, "tokens": 0}
        if self._codec is not None:
            manifest[TRAINED] = self.table.manifest[TRAINED]
            for name in self.table.entries:
                writer.append(name, self.table.array(name, "uint8"))
        for source in sources:
            file = next(file for file in self._places(source) if file.is_file())
            columns = in_codes(self._codec, load_file(file))
            for name, rows in columns.items():
                writer.append(name, rows)
            manifest |= grown(manifest, columns)
        return manifest

    def _places(self, source: bytes) -> tuple[Path, Path]:
        """Return where a shard is stored from now on, and where it may be stored without codes."""
        return self._files.file(source, self._checksum), self._files.file(source)


def _training(sources: Sequence[bytes], count: int | None) -> dict[str, Any]:
    """Describe the shards that train a quantiser. count: number of documents of the build, if known."""
    checksum = hashlib.sha256(b"".join(sources) + str(count).encode()).hexdigest()
    return {"shards": len(sources), "sha256": checksum}


def sampled(
    quantiser: Quantiser, sample: Iterable[Shard], encode: Encode, count: int
) -> tuple[list[bytes], list[np.ndarray], int]:
    """Encode documents until they have enough tokens to train the quantiser.

    Returns the shards' sources, their vectors, and the estimated number of tokens in all `count` documents.
    """
    sources: list[bytes] = []
    parts: list[np.ndarray] = []
    documents = tokens = 0
    for shard in sample:
        sources.append(shard.source)
        parts.append(encode(shard)[VECTORS])
        documents += len(shard.ids)
        tokens = estimated(sum(map(len, parts)), documents, count)
        if sum(map(len, parts)) >= quantiser.wanted(tokens):
            break
    return sources, parts, tokens


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


def put(file: Path, columns: Rows) -> None:
    """Store a shard atomically. columns: file name → the rows to append."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".partial")
    save_file(dict(columns), temporary)
    replace_file(temporary, file)


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
