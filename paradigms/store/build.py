"""Convert shards of documents to the columns of a new store, in a folder or in memory.

Every change is an atomic commit, so a killed process leaves the previous state. Encoded shards are kept in a
hidden folder (`building`), from which the same or a changed build resumes.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paradigms.core import Tokens
from paradigms.identity import Identity
from paradigms.io.checks import parse_json
from paradigms.io.files import atomic_folder, check_replaceable, locked
from paradigms.store.building import (
    TRAINED,
    TRAINED_ON,
    VECTORS,
    Launch,
    OneProcess,
    ShardFiles,
    ShardMemory,
    begun,
    grown,
    in_codes,
)
from paradigms.store.columns import FILES, MANIFEST, ColumnFolder, ColumnMemory, Files, Writer
from paradigms.store.kind import (
    DELETED,
    DOCUMENTS,
    DTYPES,
    ERRORS,
    KEY,
    KEYS,
    LENGTHS,
    TEXTS,
    Codec,
    Kind,
    Rows,
)
from paradigms.store.pruning import TokenReduction
from paradigms.store.shards import SHARD, Shard, different

HELD = 16  # maximum number of shards kept as float16 to train a quantiser
UNKNOWN = 1 << 26  # expected number of tokens if the number of documents is not known
Advance = Callable[[float], object]  # callback: the number of documents or queries just completed


def store_files(folder: Path) -> Collection[str] | None:
    """Return a store's `io.files.Contents`: the files in its manifest, and leftovers of interrupted changes.

    A folder with a damaged manifest counts as a store only if it contains the file of document lengths.
    """
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"), MANIFEST)
    except (OSError, ValueError):
        return FILES if any(folder.glob(f"{Path(LENGTHS).stem}*.bin")) else None
    if not isinstance(manifest, dict) or not {"kind", "format", "generation"} <= manifest.keys():
        return None
    files = manifest.get("files")
    names = [Path(escape(name)) for name in (*(files if isinstance(files, dict) else ()), DELETED, ERRORS)]
    return MANIFEST, *map(str, names), *(f"{name.stem}.[0-9]*{name.suffix}" for name in names)


@dataclass(frozen=True, kw_only=True)
class Build:
    """A store to build from shards of documents.

    paradigm, dim, fields, identity: manifest entries (`Store.build_from`). count: number of documents, if
    known. sample: documents drawn at random, which train the quantiser of a large store. source: anything
    else that determines the tokens, besides the manifest's entries and the shards' sources. launch: processes
    that share the build. advance: callback that receives the number of documents just completed.
    """

    kind: Kind
    shards: Iterator[Shard]
    reduction: TokenReduction
    paradigm: str
    dim: int
    fields: Sequence[str]
    identity: Identity | None = None
    count: int | None = None
    sample: Iterable[Shard] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    launch: Launch = field(default_factory=OneProcess)
    advance: Advance = lambda n: None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the empty store. Raises ValueError if `kind` rejects an entry."""
        made_by = {} if self.identity is None else {"identity": self.identity}
        manifest = {"kind": self.kind.name, "settings": self.kind.settings, **asdict(self.reduction)}
        manifest |= {"paradigm": self.paradigm, "dim": self.dim, "fields": list(self.fields), **made_by}
        self.kind.check(manifest)
        return manifest

    def in_memory(self, derive: Callable[[Writer], None]) -> ColumnMemory:
        """Build the columns in memory. derive: function that writes the kind's derived files."""
        if self.launch.num_processes > 1:
            raise ValueError("several processes build in a folder that all of them see, not in memory")
        files = ColumnMemory(self.manifest)
        table = ColumnMemory({})
        work = Building(self, table, ShardMemory(), table, str(files))
        files.commit(**work.append(files, work.store_shards()))
        derive(files)
        return files

    def in_folder(self, folder: str | Path, derive: Callable[[Writer], None]) -> None:
        """Encode all shards into files of a hidden folder, using all processes, and make the store.

        If more than HELD * SHARD documents are expected, process 0 encodes `sample` and trains the
        quantiser on it. Otherwise it is trained on the first shards with as many documents, or on all, which
        are stored as float16. All other shards are quantised as they are encoded. A quantiser that was
        trained before an interruption is kept unless one of the documents that trained it has changed.
        """
        manifest = self.manifest
        launch = self.launch
        target = Path(os.path.realpath(folder))
        check_replaceable(target, store_files)
        hidden = ColumnFolder(target.with_name(f".{target.name}.building"))
        described = {name: value for name, value in manifest.items() if name not in ("kind", "settings")}
        described |= self.source
        files = ShardFiles(hidden.folder, self.kind, described)
        with ExitStack() as stack:
            writer = None
            if launch.process_index == 0:
                checksum = hashlib.sha256(json.dumps(described, sort_keys=True, default=dict).encode())
                entries = {"building": checksum.hexdigest(), **manifest}
                writer = stack.enter_context(begun(hidden, entries))
            launch.wait_for_everyone()
            work = Building(self, hidden, files, writer, str(folder))
            sources = work.store_shards()
            launch.wait_for_everyone()
            if writer is not None:
                busy = locked(target) if target.exists() else nullcontext()
                with busy, atomic_folder(target, store_files) as fresh:
                    table = ColumnFolder(fresh)
                    with table.writing(lambda: table.begin(manifest)) as table_writer:
                        counts = work.append(table_writer, sources)
                        derive(table_writer)
                        table_writer.commit(**counts)
                files.clear()
        launch.wait_for_everyone()


@dataclass(eq=False)
class Building:
    """A build in progress.

    table: files of the trained codec. shards: the encoded shards, as float16 until the codec is trained.
    writer: writes the codec; None in every process except process 0. place: the store, in error messages.
    """

    build: Build
    table: Files
    shards: ShardFiles | ShardMemory
    writer: Writer | None
    place: str
    codec: Codec | None = None
    checksum: str = ""

    def store_shards(self) -> list[bytes]:
        """Train the quantiser, and store this process's share of the shards; return all shards' sources."""
        build = self.build
        count = build.count
        if build.sample is not None and (count or 0) > HELD * SHARD:
            self._train_on_sample(build.sample)
        sources: list[bytes] = []
        documents = 0
        for n, shard in enumerate(different(build.shards)):
            if documents >= HELD * SHARD:
                self._train_on_stored(sources, documents, count)
            mine = n % build.launch.num_processes == build.launch.process_index
            if mine and not any(self.shards.holds(shard.source, codec) for codec in (self.checksum, "")):
                columns = encoded(build.kind.codec, shard, build.manifest, self.place, build.advance)
                self.shards.put(shard.source, in_codes(self.codec, columns), self.checksum)
            else:
                build.advance(len(shard.ids))
            documents += len(shard.ids)
            sources.append(shard.source)
        self._train_on_stored(sources, documents, documents)
        return sources

    def append(self, writer: Writer, sources: Iterable[bytes]) -> dict[str, int]:
        """Append the codec and all shards to a new store's columns; return what to commit."""
        manifest = {"documents": 0, "tokens": 0}
        if self.codec is not None:
            manifest[TRAINED] = self.table.manifest[TRAINED]
            for name in self.table.entries:
                writer.append(name, self.table.array(name, "uint8"))
        for source in sources:
            stored_as = self.checksum if self.shards.holds(source, self.checksum) else ""
            columns = in_codes(self.codec, self.shards.load(source, stored_as))
            for name, rows in columns.items():
                writer.append(name, rows)
            manifest |= grown(manifest, columns)
        return manifest

    def _train_on_sample(self, sample: Iterable[Shard]) -> None:
        """Train the quantiser on a random sample of the documents, or open the codec trained on it."""
        build = self.build
        quantiser = build.kind.quantiser
        if quantiser is None:
            return
        if self.writer is not None:
            trained = self.table.manifest.get(TRAINED_ON, {})
            shards = iter(sample)
            again = list(islice(shards, trained.get("shards", 0)))
            if trained != _training([shard.source for shard in again], build.count):
                sources: list[bytes] = []
                parts: list[np.ndarray] = []
                documents = vectors = tokens = 0
                for shard in chain(again, shards):
                    columns = encoded(build.kind.codec, shard, build.manifest, self.place, lambda n: None)
                    sources.append(shard.source)
                    parts.append(columns[VECTORS])
                    documents += len(shard.ids)
                    vectors += len(parts[-1])
                    tokens = _estimated(vectors, documents, build.count)
                    if vectors >= quantiser.sample_size(tokens):
                        break
                self._train(parts, vectors, tokens, _training(sources, build.count))
        self._open_codec()

    def _train_on_stored(self, sources: Sequence[bytes], documents: int, count: int | None) -> None:
        """If there is an untrained quantiser, train it on stored shards, or open the codec trained on these.

        sources: the shards. documents: number of documents in them. count: total number, if known.
        """
        shards = self.shards
        if self.build.kind.quantiser is None or self.codec is not None:
            return
        self.build.launch.wait_for_everyone()
        training = _training(sources, count)
        if self.writer is not None and self.table.manifest.get(TRAINED_ON) != training:
            vectors = sum(int(shards.column(source, LENGTHS).sum(dtype=np.int64)) for source in sources)
            parts = (shards.column(source, VECTORS) for source in sources)
            tokens = _estimated(vectors, documents, count)
            self._train(parts, vectors, tokens, training)
        self._open_codec()

    def _train(self, parts: Iterable[np.ndarray], vectors: int, tokens: int, shards: dict[str, Any]) -> None:
        """Train the quantiser on `vectors` vectors in `parts`, for an index of `tokens` tokens."""
        quantiser: Any = self.build.kind.quantiser
        assert self.writer is not None
        quantiser.train(self.writer, parts, vectors, tokens, self.build.dim)
        self.writer.commit(**{TRAINED: tokens, TRAINED_ON: shards})

    def _open_codec(self) -> None:
        """Open the codec that process 0 has committed."""
        self.build.launch.wait_for_everyone()
        if isinstance(self.table, ColumnFolder):
            self.table.read()
        quantiser: Any = self.build.kind.quantiser
        self.codec = quantiser.open(self.table, self.build.dim)
        # Codes depend on the quantiser's bits, too, which its files do not have.
        checksums = (entry.get("crc32") for entry in self.table.entries.values())
        self.checksum = str([quantiser, *checksums])


def _training(sources: Sequence[bytes], count: int | None) -> dict[str, Any]:
    """Describe the shards that train a quantiser. count: number of documents of the build, if known."""
    checksum = hashlib.sha256(b"".join(sources) + str(count).encode()).hexdigest()
    return {"shards": len(sources), "sha256": checksum}


def _estimated(tokens: int, documents: int, count: int | None) -> int:
    """Estimate the number of tokens in `count` documents, if `documents` of them have `tokens` tokens."""
    return UNKNOWN if count is None else tokens * count // max(1, documents)


def encoded(codec: Codec, shard: Shard, manifest: Mapping[str, Any], place: str, advance: Advance) -> Rows:
    """Encode a shard as the rows to append to each file, in document order.

    place: name of the store in error messages.
    """
    pieces: dict[str, list[np.ndarray]] = {}
    lengths = np.zeros(len(shard.ids), np.int32)
    for places, tokens in shard.encode():
        lengths[places] = tokens.mask[0].sum(-1).cpu().numpy()
        fields = _rows(tokens, [shard.ids[n] for n in places], manifest, place)
        ends = np.cumsum(lengths[places])
        for name, rows in fields.items():
            parts = pieces.setdefault(name, [rows[:0]] * len(lengths))
            for n, piece in zip(places, np.split(rows, ends[:-1]), strict=True):
                parts[n] = piece
        advance(len(places))
    columns = codec.encode({name: np.concatenate(parts) for name, parts in pieces.items()})
    ids = np.frombuffer(lines(shard.ids), np.uint8)
    keys = np.concatenate([key_of(id) for id in shard.ids])
    files = {f"{name}.bin": column for name, column in columns.items()}
    return files | {LENGTHS: lengths, DOCUMENTS: ids, KEYS: keys.view(np.uint8), TEXTS: shard.texts}


def lines(ids: Iterable[str]) -> bytes:
    """Format ids as JSON lines."""
    return "".join(json.dumps(id) + "\n" for id in ids).encode()


def key_of(id: str) -> np.ndarray:
    """Return the entry for an id in the file KEYS, an array [1] of dtype `KEY`."""
    line = lines([id])
    hash = hashlib.blake2b(line, digest_size=8).digest()
    return np.frombuffer(hash + len(line).to_bytes(4, "little"), KEY)


def _rows(tokens: Tokens, ids: Sequence[str], manifest: Mapping[str, Any], place: str) -> Rows:
    """Extract the manifest's fields from the documents' tokens, without padding, converted to DTYPES.

    place: the store, in error messages. Raises ValueError, naming the document, if a value does not fit.
    """
    rows = {}
    for name in manifest["fields"]:
        values = getattr(tokens, name)
        if values is None:
            raise ValueError(f"{place} stores the tokens' {name}, but the documents have none")
        used = values[0][tokens.mask[0]].to(getattr(torch, DTYPES[name]))  # on their device: less to copy
        if used.is_floating_point() and not used.sum(dtype=torch.float64).isfinite():
            wrong = (~used.isfinite()).view(len(used), -1).any(1).nonzero()[0].cpu()
            ends = tokens.mask[0].sum(-1).cumsum(0).cpu()
            owner = int(torch.searchsorted(ends, wrong, right=True))
            where = f"the {name} of document {ids[owner]!r}"
            raise ValueError(f"{where} do not fit {DTYPES[name]}: not finite, or too large")
        rows[name] = used.cpu().numpy()
    dim = rows["vectors"].shape[1]
    if dim != manifest["dim"]:
        raise ValueError(f"{place} stores vectors of {manifest['dim']} dimensions, not of {dim}")
    return rows
