"""Store a corpus's tokens, as encoded by one paradigm, in columns in a folder or in memory.

`paradigms.find` searches stores. A `Store` shows one commit and never changes: `add`, `delete`, `compact` and
`certify` make a new commit and return a new `Store` that shows it.

    store = Store.build(exact(), model, ids, texts)            # in memory
    store = Store.build(exact(), model, ids, texts, "folder")
    store = store.add(model, ["dog"], ["A dog is an animal."])
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from paradigms.encoder.precision import AUTO, resolved
from paradigms.identity import Identity, identity
from paradigms.io.checks import naming
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.store.build import Advance, Build, encoded, lines
from paradigms.store.building import TRAINED, Launch, OneProcess, ShardFiles, grown, in_codes
from paradigms.store.columns import CHUNK, MANIFEST, ColumnFolder, Files, Writer
from paradigms.store.kind import DELETED, DOCUMENTS, ERRORS, KEYS, LENGTHS, TEXTS, Codec, Kind, Kinds, kind_of
from paradigms.store.pruning import TokenReduction, directed_distances
from paradigms.store.residuals import CODEC
from paradigms.store.shards import Batches, Shard, check_ids, different, text_shards, token_shards
from paradigms.store.view import View, fields_of

ROUNDING = 1e-5  # maximum rounding error of a similarity, relative to the longer vector's norm
BLOCK = 1 << 16  # padded tokens copied at once
SAMPLED = 1 << 17  # maximum number of documents to train the codec of a large build
VERIFIED = 1 << 26  # maximum size in bytes of the files whose checksums are verified by default
Pooling = Literal["ward", "sequential"]


class Store(View):
    """Documents and their tokens, with methods that make a store or a changed one. See `View` for reading."""

    @classmethod
    def build(
        cls,
        kind: Kind,
        paradigm: Paradigm,
        ids: Iterable[str],
        texts: Iterable[str],
        folder: str | Path | None = None,
        *,
        keep: float = 1.0,
        pool: int = 1,
        pooling: Pooling = "ward",
        batch_size: int = 64,
        precision: str = AUTO,
        progress: bool = False,
        launch: Launch | None = None,
    ) -> "Store":
        """Encode documents and store their tokens.

        The folder appears atomically when the build is complete. texts may be a stream, since memory holds
        only ids, lengths and one shard. After an interruption, the next build in this folder uses all stored
        shards that have the same documents, settings and weights, and encodes the others.

        kind: kind of store, such as `find.kinds.exact()`. ids: the documents' ids, for rows 0, 1, … in this
        order. folder: None keeps everything in memory.
        keep, pool, pooling: which tokens of a document to store (`pruning.TokenReduction`).
        precision: see `encoder.precision`; vectors are always stored as float16.
        launch: processes that share the work (`building`), such as accelerate's `Accelerator` or
        `PartialState`; None means this process alone. All processes call this function with the same
        arguments and return the store. The stored bytes do not depend on the number of processes, provided
        that the number of threads is the same.

        Raises ValueError if ids repeat, if a vector does not fit float16, or if several processes build
        without a folder. Raises BlockingIOError if a process outside the launch is writing to the folder.
        """
        count = check_ids(ids, texts)
        reduction = TokenReduction(keep, pool, pooling)
        precision = resolved(paradigm.encoder.device, precision)
        encode = partial(
            text_shards, paradigm, reduction=reduction, batch_size=batch_size, precision=precision
        )
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=count)
            build = Build(
                kind=kind,
                shards=encode(ids, texts),
                reduction=reduction,
                paradigm=paradigm.recipe.name,
                dim=paradigm.encoder.dim,
                fields=fields_of(paradigm),
                identity=identity(paradigm.encoder, anew=True),
                count=count,
                sample=None if count is None else _sample(ids, texts, count, encode),
                source=_encoding(paradigm, batch_size, precision),
                launch=OneProcess() if launch is None else launch,
                advance=lambda n: bar.advance(task, n),
            )
            return cls._built(build, folder)

    @classmethod
    def build_from(
        cls,
        kind: Kind,
        parts: Batches,
        folder: str | Path | None = None,
        *,
        paradigm: str,
        dim: int,
        fields: Sequence[str] = ("vectors",),
        count: int | None = None,
        sample: Batches | None = None,
        identity: Identity | None = None,
        keep: float = 1.0,
        pool: int = 1,
        pooling: Pooling = "ward",
    ) -> "Store":
        """Build a store from documents that are already encoded.

        parts: batches of ids and Tokens [1, n, i, h], with the texts' digests if known (`shards.Batch`).
        paradigm: name of the paradigm. fields: the fields of Tokens to store: vectors, ids, salience. count:
        number of documents, if known. sample: documents drawn at random to train the centroids of a large
        compressed index; None means the first documents. identity: what made the vectors
        (`identity.identity`). See `build` for the other arguments and for errors.
        """
        reduction = TokenReduction(keep, pool, pooling)
        build = Build(
            kind=kind,
            shards=token_shards(parts, reduction),
            reduction=reduction,
            paradigm=paradigm,
            dim=dim,
            fields=fields,
            identity=identity,
            count=count,
            sample=None if sample is None else token_shards(sample, reduction),
        )
        return cls._built(build, folder)

    def copy(
        self,
        kind: Kind,
        folder: str | Path | None = None,
        *,
        keep: float = 1.0,
        pool: int = 1,
        pooling: Pooling = "ward",
    ) -> "Store":
        """Convert to a store of a different kind, optionally with fewer tokens, without encoding texts again.

        keep, pool, pooling: see `build`, but applied to this store's tokens.
        """
        reduction = TokenReduction(keep, pool, pooling)
        before = TokenReduction.from_manifest(self.manifest)
        living = np.flatnonzero(self.living)

        def shards(rows: np.ndarray) -> Iterator[Shard]:
            return token_shards((self.batch(part) for part in self.blocks(BLOCK, rows)), reduction)

        build = Build(
            kind=kind,
            shards=shards(living),
            reduction=TokenReduction(
                before.keep * keep, before.pool * pool, pooling if pool > 1 else before.pooling
            ),
            paradigm=self.manifest["paradigm"],
            dim=self.dim,
            fields=self.manifest["fields"],
            identity=self.manifest.get("identity"),
            count=len(living),
            sample=shards(np.random.default_rng(0).permutation(living)),
        )
        return self._built(build, folder)

    @classmethod
    def _built(cls, build: Build, folder: str | Path | None) -> "Store":
        def derive(writer: Writer) -> None:
            build.kind.derived.write(writer, cls(writer, build.kind, writer.files.manifest), True)

        if folder is None:
            return cls.from_files(build.in_memory(derive), build.kind)
        build.in_folder(folder, derive)
        return _open(folder, lambda files: build.kind, verify=False)

    @classmethod
    def from_files(cls, files: Files, kind: Kind, codec: Codec | None = None) -> "Store":
        """Open the store in `files`. codec: that of the files, if it is open already.

        Raises ValueError, naming the file, if a file has invalid content.
        """
        store = cls(files, kind, files.manifest, codec)
        count = files.manifest["documents"]
        total = files.manifest["tokens"]
        lengths = np.diff(store.offsets)
        deleted = files.array(DELETED, "int64")
        if len(lengths) != count or store.offsets[-1] != total or (lengths < 0).any():
            raise files.damaged(LENGTHS, f"not {count!r:.40} lengths of {total!r:.40} tokens")
        if ((deleted < 0) | (deleted >= count)).any():
            raise files.damaged(DELETED, f"it names rows beyond {count} documents")
        if len(store.keys) != count or store.keys["bytes"].sum(dtype=np.int64) != len(store.lines):
            raise files.damaged(KEYS, f"it does not fit {len(store.lines)} bytes of ids of {count} documents")
        if len(store.texts) != count:
            raise files.damaged(TEXTS, f"it has {len(store.texts)} digests of {count} documents")
        if len(store.errors) not in (0, count) or not (store.errors >= 0).all():
            raise files.damaged(ERRORS, f"it does not hold two distances for each of {count} documents")
        if kind.quantiser is not None and type(files.manifest.get(TRAINED)) is not int:
            raise files.damaged(MANIFEST, f"{TRAINED} is not a number")
        for name, values in store.columns.items():
            if len(values) != total:
                raise files.damaged(f"{name}.bin", f"it has {len(values)} rows, not {total}")
        store.derived = kind.derived.open(store)
        return store

    def add(
        self,
        paradigm: Paradigm,
        ids: Iterable[str],
        texts: Iterable[str],
        *,
        instead_of: Iterable[str] = (),
        state: Mapping[str, Any] = MappingProxyType({}),
        batch_size: int = 64,
        precision: str = AUTO,
        progress: bool = False,
    ) -> "Store":
        """Encode and store more documents atomically, with the same pruning as in the build.

        After an interruption, the next call resumes as `build` does. instead_of: ids of documents to delete
        in the same commit; the new documents may take their ids. state: manifest entries of the caller, to
        set in the same commit.

        Raises ValueError if an id is already stored, and KeyError if a document to delete is unknown.
        """
        self.check(paradigm)
        count = check_ids(ids, texts)
        reduction = TokenReduction.from_manifest(self.manifest)
        precision = resolved(paradigm.encoder.device, precision)
        shards = text_shards(
            paradigm, ids, texts, reduction=reduction, batch_size=batch_size, precision=precision
        )
        files = None
        if self.folder is not None:
            place = self.folder.with_name(f".{self.folder.name}.adding")
            described = {"fields": self.manifest["fields"], **asdict(reduction)}
            described |= _encoding(paradigm, batch_size, precision)
            files = ShardFiles(place, self.kind, described)
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=count)
            return self._add(shards, instead_of, state, files, lambda n: bar.advance(task, n))

    def add_from(self, parts: Batches, *, instead_of: Iterable[str] = ()) -> "Store":
        """Store more documents, like `add`, but from batches as in `build_from`."""
        return self._add(token_shards(parts, TokenReduction.from_manifest(self.manifest)), instead_of, {})

    def _add(
        self,
        shards: Iterator[Shard],
        instead_of: Iterable[str],
        state: Mapping[str, Any],
        files: ShardFiles | None = None,
        advance: Advance = lambda n: None,
    ) -> "Store":
        """Store shards and delete documents in one commit. files: for encoded shards until the commit."""
        with self._writing() as (now, writer):
            deleted = np.unique(now.positions(instead_of))
            left = now.living.copy()
            left[deleted] = False
            counts = dict(now.manifest)
            codec = now.codec if now.kind.quantiser else None
            for shard in different(shards, now._restricted(left)):
                if files is not None and files.holds(shard.source):
                    columns = files.load(shard.source)
                    advance(len(shard.ids))
                else:
                    columns = encoded(now.kind.codec, shard, now.manifest, str(now), advance)
                    if files is not None:
                        files.put(shard.source, columns)
                for name, rows in in_codes(codec, columns).items():
                    writer.append(name, rows)
                counts |= grown(counts, columns)
            if counts["documents"] > now.manifest["documents"]:
                writer.remove(ERRORS)
                now._derive(writer, anew=not now.manifest["tokens"], codec=now.codec)
            if len(deleted):
                writer.append(DELETED, deleted)
            writer.commit(documents=counts["documents"], tokens=counts["tokens"], **state)
            added = self.from_files(writer.files, self.kind, now.codec)
            if files is not None:
                files.clear()
        if added.outgrown:
            warnings.warn(
                f"{self} was built of {self.manifest[TRAINED]:,} tokens and has {added.living_tokens:,} now: "
                "its searches miss more than they would with new centroids, which compact() makes",
                stacklevel=3,
            )
        return added

    def delete(self, ids: Iterable[str]) -> "Store":
        """Delete documents atomically, so that searches no longer return them; `compact` frees their bytes.

        Raises KeyError, naming the document, if a document is unknown.
        """
        return self.add_from((), instead_of=ids)

    def compact(self) -> "Store":
        """Rewrite the columns without deleted documents. Rows change; search results do not.

        If the index is `outgrown`, new centroids are trained and all tokens are decoded and encoded again.
        Scores then change by about the error of the codes.
        """
        with self._writing() as (now, writer):
            renewed = now.outgrown
            if now.living.all() and not renewed:
                if not now.kind.derived.behind(now):
                    return now
                now._derive(writer, anew=True)
                writer.commit()
                return self.from_files(writer.files, self.kind)
            rows = np.flatnonzero(now.living)
            tokens = now._rewrite(writer, renewed)
            documents: dict[str, bytes | np.ndarray] = {
                LENGTHS: np.diff(now.offsets)[rows].astype(np.int32),
                DOCUMENTS: lines(now.names(rows)),
                KEYS: now.keys[rows],
                TEXTS: now.texts[rows],
            }
            for name, values in documents.items():
                writer.remove(name)
                writer.append(name, values)
            writer.remove(DELETED)
            writer.remove(ERRORS)
            now._derive(writer, anew=True)
            state = {TRAINED: tokens} if renewed else {}
            writer.commit(documents=len(rows), tokens=tokens, **state)
            return self.from_files(writer.files, self.kind)

    def _rewrite(self, writer: Writer, renewed: bool) -> int:
        """Rewrite the columns with the tokens of living documents; return the number of tokens.

        renewed: whether to train the quantiser on these tokens, and encode them again.
        """
        stays = np.repeat(self.living, np.diff(self.offsets))
        tokens = int(stays.sum())
        bytes = sum(column[:1].nbytes for column in self.columns.values())
        step = max(1, CHUNK // max(1, bytes))
        parts = [slice(first, first + step) for first in range(0, len(stays), step)]
        codec = None
        if renewed:
            quantiser = self.kind.quantiser
            assert quantiser is not None
            vectors = (self.decoded(part)["vectors"][stays[part]] for part in parts)
            quantiser.train(writer, vectors, tokens, tokens, self.dim)
            codec = quantiser.open(writer, self.dim)
        for name in self.columns:
            writer.remove(f"{name}.bin")
        for part in parts:
            columns = {name: column[part][stays[part]] for name, column in self.columns.items()}
            if codec is not None:
                columns = codec.encode(self.codec.decode(columns))
            for name, values in columns.items():
                writer.append(f"{name}.bin", values)
        return tokens

    def certify(self, original: "Store") -> "Store":
        """Store the distances between each document's tokens here and in `original`: `errors` [documents, 2].

        The two columns are `pruning.directed_distances` plus an allowance for rounding, and bound the error
        of a sum of maxima. `add` and `compact` remove them. Raises KeyError if `original` lacks a document.
        """
        with self._writing() as (now, writer):
            errors = np.zeros((len(now.ids), 2), np.float32)
            for rows in now.blocks(BLOCK, np.flatnonzero(now.living)):
                parts = original.tokens_of(now.names(rows)), now.tokens(rows)
                norms = [part.vectors.norm(dim=-1).where(part.mask, 0).amax(-1)[0] for part in parts]
                longest = torch.maximum(*norms).clamp(min=1)[:, None]
                errors[rows] = directed_distances(*parts) + ROUNDING * longest
            writer.remove(ERRORS)
            writer.append(ERRORS, errors)
            writer.commit()
            return self.from_files(writer.files, self.kind)

    def describe(self, **state: Any) -> "Store":
        """Set manifest entries of the caller, or remove those that are None, in a commit of its own."""
        with self._writing() as (_, writer):
            writer.commit(**state)
            return self.from_files(writer.files, self.kind)

    @contextmanager
    def _writing(self) -> Iterator[tuple["Store", Writer]]:
        """Yield the store at the newest commit, possibly made by another process, and its only writer."""
        with self.files.writing() as writer:
            now = self.whole
            if now.files.manifest != writer.files.manifest:
                same = self._codec_entry and self._codec_entry == writer.files.entries.get(CODEC)
                now = self.from_files(writer.files, self.kind, self.codec if same else None)
            yield now, writer

    def _derive(self, writer: Writer, anew: bool, codec: Codec | None = None) -> None:
        self.kind.derived.write(writer, Store(writer, self.kind, self.manifest, codec), anew)


def open_store(folder: str | Path, kinds: Kinds, *, verify: bool | None = None) -> Store:
    """Open the store in a folder.

    kinds: name in manifests → function that makes the kind (`find.INDEXES`). verify: whether to verify the
    checksums of all files, which takes about 1 s per GB; None verifies only files up to 64 MiB. A damaged
    file that is not verified may give wrong scores, but never reads outside the files.

    Raises FileNotFoundError if there is no store, and ValueError, naming the file, if a file is damaged.
    """
    store = _open(folder, lambda files: kind_of(files.manifest, kinds, files), verify)
    if "building" in store.manifest:
        raise ValueError(f"{folder} is an unfinished build: repeat the build to resume it")
    return store


def _open(folder: str | Path, kind: Callable[[ColumnFolder], Kind], verify: bool | None) -> Store:
    files = ColumnFolder(Path(folder))
    failure: tuple[object, ...] = ()
    while True:
        before = files.identity()
        try:
            files.read()
            with naming(folder):
                store = Store.from_files(files, kind(files))
            if verify is not False:
                files.verify(None if verify else VERIFIED)
            if before[:1] == files.identity()[:1]:  # otherwise manifest and columns may come from two builds
                return store
        except (FileNotFoundError, ValueError) as error:
            # A writer may have briefly moved the folder, or removed replaced files. Only damage persists.
            previous = failure
            failure = (before, files.identity(), str(error))
            if before == failure[1] and failure == previous:
                raise


def _sample(
    ids: Iterable[str],
    texts: Iterable[str],
    count: int,
    encode: Callable[[Iterable[str], Iterable[str]], Iterator[Shard]],
) -> Iterator[Shard]:
    """Encode up to SAMPLED documents, drawn at random, from texts that can be read more than once."""
    chosen = np.random.default_rng(0).choice(count, min(count, SAMPLED), replace=False).tolist()
    positions = set(chosen)
    pairs = {n: pair for n, pair in enumerate(zip(ids, texts, strict=True)) if n in positions}
    yield from encode((pairs[n][0] for n in chosen), (pairs[n][1] for n in chosen))


def _encoding(paradigm: Paradigm, batch_size: int, precision: str) -> dict[str, Any]:
    """Return what determines the tokens of a text, besides pruning and the fields that are stored."""
    encoder = paradigm.encoder
    return {"batch": batch_size, "precision": precision, "dim": encoder.dim, **identity(encoder)}
