"""Store a corpus's tokens, as encoded by one paradigm, in columns in a folder or in memory.

`paradigms.find` searches stores. A `Store` shows one commit and never changes: `add`, `delete`, `compact` and
`certify` make a new commit and return a new `Store` that shows it.

    store = Store.build(exact(), model, ids, texts)            # in memory
    store = Store.build(exact(), model, ids, texts, "folder")
    store = store.add(model, ["dog"], ["A dog is an animal."])
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.encoder.precision import AUTO, resolved
from paradigms.identity import Identity, differing, identity
from paradigms.io.checks import check_several, naming, parse_json
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.store.build import Advance, build_folder, build_memory, encoded, key_of, lines
from paradigms.store.building import TRAINED, Launch, ShardFiles, grown, in_codes, put
from paradigms.store.columns import CHUNK, MANIFEST, ColumnFolder, Files, Writer
from paradigms.store.kind import (
    DELETED,
    DOCUMENTS,
    ERRORS,
    KEY,
    KEYS,
    LENGTHS,
    TEXTS,
    Codec,
    Kind,
    Kinds,
    kind_of,
)
from paradigms.store.pruning import TokenReduction, directed_distances
from paradigms.store.shards import (
    Batch,
    Batches,
    Shard,
    check_ids,
    different,
    text_digest,
    text_shards,
    token_shards,
)

LIKE = 4096  # documents that are sorted by length together, so that blocks have little padding
ROUNDING = 1e-5  # maximum rounding error of a similarity, relative to the longer vector's norm
BLOCK = 1 << 16  # padded tokens copied at once
GROWN = 8  # growth factor of the number of tokens after which `compact` trains new centroids
FEW = 1 << 10  # minimum number of tokens to measure that growth from
SAMPLED = 1 << 17  # maximum number of documents to train the codec of a large build
SCANS = 256  # number of ids to look up by scanning, before making a dict of all ids takes less time
VERIFIED = 1 << 26  # maximum size in bytes of the files whose checksums are verified by default
Made = TypeVar("Made")
Pooling = Literal["ward", "sequential"]


class Store:
    """Documents and their tokens, by row. Only `compact` changes a document's row; its id never changes.

    `ids` and `offsets` cover all rows, including deleted documents until `compact`. `living` marks the
    documents that are not deleted, and len() counts these. columns: the stored fields of all tokens. texts:
    a digest of each document's text (`shards.text_digest`), or 0 if the document was given as tokens. errors:
    one row per document (`certify`).
    """

    def __init__(self, files: Files | Writer, kind: Kind, manifest: Mapping[str, Any]) -> None:
        """Wrap files without checking them; use `open_store` to open a folder."""
        self.files = cast(Files, files)  # a writer while derived files are written
        self.kind, self.manifest = kind, manifest
        self.codec = kind.quantiser.open(files, self.dim) if kind.quantiser else kind.codec
        dtypes = self.codec.columns(self.dim, manifest["fields"])
        self.columns = {name: files.array(f"{name}.bin", dtype) for name, dtype in dtypes.items()}
        lengths, deleted = files.array(LENGTHS, "int32"), files.array(DELETED, "int64")
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.living = np.ones(len(lengths), bool)
        self.living[deleted[(deleted >= 0) & (deleted < len(lengths))]] = False
        self.keys, self.lines = files.array(KEYS, KEY), files.array(DOCUMENTS, "uint8")
        self.texts = files.array(TEXTS, "int64")
        self.errors = files.array(ERRORS, ("float32", (2,)))
        self._whole: Store | None = None  # the store that this one restricts
        self._made: dict[Callable[[Any], Any], Any] = {}
        self._corpus: Corpus | None = None  # the last texts of `check_texts`
        self._scans = 0  # number of scans of `keys` so far

    def __str__(self) -> str:
        return str(self.files)

    def __len__(self) -> int:
        return int(self.living.sum())

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._row(id) is not None

    # --- building -----------------------------------------------------------------------------------------

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
        count, reduction = check_ids(ids, texts), TokenReduction(keep, pool, pooling)
        precision = resolved(paradigm.encoder.device, precision)
        encode = partial(
            text_shards, paradigm, reduction=reduction, batch_size=batch_size, precision=precision
        )
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=count)
            return cls._build(
                kind,
                encode(ids, texts),
                folder,
                reduction,
                source=_how(paradigm, batch_size, precision),
                launch=launch,
                advance=lambda n: bar.advance(task, n),
                paradigm=paradigm.recipe.name,
                identity=identity(paradigm.encoder, anew=True),
                dim=paradigm.encoder.dim,
                fields=fields_of(paradigm),
                count=count,
                sample=None if count is None else _sample(ids, texts, count, encode),
            )

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
        paradigm: name of the paradigm. fields: the fields of
        Tokens to store: vectors, ids, salience. count: number of documents, if known. sample: documents drawn
        at random to train the centroids of a large compressed index; None means the first documents.
        identity: what made the vectors (`identity.identity`). See `build` for the other arguments and for
        errors.
        """
        reduction, names = TokenReduction(keep, pool, pooling), list(fields)
        drawn = None if sample is None else token_shards(sample, reduction)
        how = {"paradigm": paradigm, "dim": dim, "fields": names, "count": count, "sample": drawn}
        how |= {} if identity is None else {"identity": identity}
        return cls._build(kind, token_shards(parts, reduction), folder, reduction, **how)

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
        reduction, before = TokenReduction(keep, pool, pooling), TokenReduction.kept_by(self.manifest)
        living = np.flatnonzero(self.living)
        drawn = np.random.default_rng(0).permutation(living)
        parts, sample = (
            token_shards((self.batch(part) for part in self.blocks(BLOCK, rows)), reduction)
            for rows in (living, drawn)
        )
        entries = ("paradigm", "identity", "dim", "fields")
        same = {name: self.manifest[name] for name in entries if name in self.manifest}
        both = TokenReduction(before.keep * keep, before.pool * pool, pooling if pool > 1 else before.pooling)
        return self._build(kind, parts, folder, both, count=len(living), sample=sample, **same)

    @classmethod
    def _build(
        cls,
        kind: Kind,
        shards: Iterator[Shard],
        folder: str | Path | None,
        reduction: TokenReduction,
        **how: Any,
    ) -> "Store":
        def derive(writer: Writer) -> None:
            kind.derived.write(writer, cls(writer, kind, writer.files.manifest), True)

        if folder is None:
            return cls.opened(build_memory(kind, shards, reduction, derive, **how), kind)
        build_folder(kind, shards, folder, reduction, derive, **how)
        return _open(folder, lambda files: kind, verify=False)

    @classmethod
    def opened(cls, files: Files, kind: Kind) -> "Store":
        """Open the store in `files`. Raises ValueError, naming the file, if a file has invalid content."""
        store = cls(files, kind, files.manifest)
        count, total = files.manifest["documents"], files.manifest["tokens"]
        lengths, deleted = np.diff(store.offsets), files.array(DELETED, "int64")
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

    derived: Any = None
    """content of the derived files, which the finder reads"""

    # --- reading ----------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """The store's folder, or None if the store is in memory."""
        return getattr(self.files, "folder", None)

    @property
    def dim(self) -> int:
        """Number of dimensions of a token vector."""
        return int(self.manifest["dim"])

    @property
    def bytes_per_document(self) -> float:
        """Bytes per document that is not deleted, with 12 for looking up its id.

        Ids, digests of texts and the manifest are not counted.
        """
        files = self.files.entries.items()
        return sum(entry["bytes"] for name, entry in files if name not in (DOCUMENTS, TEXTS)) / max(
            1, len(self)
        )

    @property
    def ids(self) -> list[str]:
        """The documents' ids by row, including deleted documents."""
        return self.whole.once(_read_ids)

    @property
    def rows_by_id(self) -> dict[str, int]:
        """Id → row, for documents that are not deleted."""
        return self.once(_rows_by_id)

    @property
    def longest(self) -> int:
        """The number of tokens in the longest document."""
        return int(np.diff(self.offsets).max(initial=0))

    @property
    def living_tokens(self) -> int:
        """The number of tokens in documents that are not deleted."""
        return self.once(_living_tokens)

    @property
    def dead(self) -> np.ndarray | None:
        """Whether each token belongs to a deleted document [tokens]; None if no document is deleted."""
        return self.once(_dead)

    @property
    def whole(self) -> "Store":
        """The unrestricted store from which `only` made this one, or else this store itself."""
        return self if self._whole is None else self._whole

    def once(self, make: Callable[["Store"], Made]) -> Made:
        """Return make(self), computed only once for this store."""
        if make not in self._made:
            self._made[make] = make(self)
        made: Made = self._made[make]
        return made

    def with_tokens(self) -> np.ndarray:
        """Return the rows that a search may find: documents that have tokens and have not been deleted."""
        return np.flatnonzero(self.living & (np.diff(self.offsets) > 0))

    def tokens(self, rows: Sequence[int] | range | np.ndarray, device: torch.device | str = "cpu") -> Tokens:
        """Read the stored tokens [1, n, i, h] of the documents at `rows`, as float32."""
        at = np.asarray(rows, dtype=np.int64)
        lengths = self.offsets[at + 1] - self.offsets[at]
        longest = max(1, int(lengths.max(initial=0)))
        mask = np.arange(longest) < lengths[:, None]
        consecutive = len(at) > 0 and bool((np.diff(at) == 1).all())
        places: slice | np.ndarray = (
            slice(self.offsets[at[0]], self.offsets[at[-1] + 1])
            if consecutive
            else (self.offsets[at][:, None] + np.arange(longest))[mask]
        )
        there = torch.from_numpy(mask).to(device)
        padded: dict[str, Tensor] = {}
        for name, values in self.decoded(places).items():
            flat = torch.from_numpy(values).to(device)
            flat = flat.float() if flat.is_floating_point() else flat.long()
            if len(flat) == mask.size:  # no padding
                padded[name] = flat.view(1, *mask.shape, *flat.shape[1:])
                continue
            full = flat.new_zeros((*mask.shape, *flat.shape[1:]))
            full[there] = flat
            padded[name] = full[None]
        return Tokens(padded["vectors"], there[None], padded.get("ids"), padded.get("salience"))

    def tokens_of(self, ids: Sequence[str], device: torch.device | str = "cpu") -> Tokens:
        """Read the stored tokens [1, n, i, h] of documents, by id, in the order of `ids`."""
        return self.tokens(self.positions(ids), device)

    def batch(self, rows: np.ndarray) -> Batch:
        """Read the documents at `rows` as `build_from` and `add_from` take them."""
        return Batch(self.names(rows), self.tokens(rows), self.texts[rows])

    def decoded(self, tokens: slice | np.ndarray) -> dict[str, np.ndarray]:
        """Decode the fields of some tokens: vectors [t, h], ids [t], salience [t]."""
        rows = {name: np.array(column[tokens]) for name, column in self.columns.items()}
        self.check_salience(rows)
        return self.codec.decode(rows)

    def check_salience(self, columns: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError, naming the file, if a salience in `columns` is negative or not finite."""
        salience = columns.get("salience", np.zeros(0, np.float32))
        if not (salience.min(initial=0) >= 0 and salience.max(initial=0) < np.inf):
            raise self.files.damaged("salience.bin", "it has values that are not finite, or below 0")

    def position(self, id: str) -> int:
        """Return a document's row. Raises KeyError if the document is unknown or deleted."""
        row = self._row(id)
        if row is None:
            raise KeyError(f"document {id!r} is not in the index {self} of {len(self)} documents")
        return row

    def _row(self, id: str) -> int | None:
        """Return a document's row, or None. The first `SCANS` calls scan `keys`; later calls use a dict."""
        self._scans += 1
        if self._scans > SCANS:
            return self.rows_by_id.get(id)
        key = key_of(id)
        there = np.flatnonzero((self.keys["hash"] == key["hash"]) & self.living).tolist()
        return next((row for row in there if self.names(np.array([row])) == [id]), None)

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the documents' rows, int64. Raises KeyError if a document is unknown or deleted."""
        check_several(ids, "document ids")
        return np.array([self.position(id) for id in ids], dtype=np.int64)

    def names(self, rows: np.ndarray) -> list[str]:
        """Return the ids of the documents at `rows`."""
        stops = self.whole.once(_line_ends)[rows]
        places = ranges(stops - self.keys["bytes"][rows], stops)
        return parsed_ids(self.files, self.lines[places], len(rows))

    def owners(self, tokens: np.ndarray) -> np.ndarray:
        """Return the row of the document that contains each token, and −1 for token −1."""
        return np.searchsorted(self.offsets, tokens, side="right") - 1

    def blocks(self, tokens: int, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield rows in blocks of at most `tokens` padded tokens.

        rows: rows to yield in the given order; None means all documents with tokens, sorted by length within
        each group of LIKE consecutive documents.
        """
        if rows is None:
            living = self.with_tokens()
            longest_first = self.offsets[living] - self.offsets[living + 1]
            rows = living[np.lexsort((longest_first, np.arange(len(living)) // LIKE))]
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        if (lengths <= 1).all():  # same result as below, without a loop over documents
            yield from (rows[n : n + tokens] for n in range(0, len(rows), tokens))
            return
        start, longest = 0, 1
        for n, length in enumerate(lengths.tolist()):
            longest = max(longest, length)
            if n > start and (n + 1 - start) * longest > tokens:
                yield rows[start:n]
                start, longest = n, max(1, length)
        if start < len(lengths):
            yield rows[start:]

    def only(self, ids: Iterable[str]) -> "Store":
        """Return a store restricted to these documents, which keep their rows. Nothing is written.

        Raises KeyError, naming the document, if a document is unknown.
        """
        living = np.zeros(len(self.living), dtype=bool)
        living[self.positions(ids)] = True
        return self._restricted(living)

    def _restricted(self, living: np.ndarray) -> "Store":
        part = copy.copy(self)
        part.living, part._made, part._whole = living, {}, self.whole
        return part

    def check(self, paradigm: Paradigm) -> None:
        """Raise ValueError if the paradigm cannot score these tokens, or encodes documents differently."""
        name, maker = paradigm.recipe.name, self.manifest["paradigm"]
        missing = [field for field in fields_of(paradigm) if field not in self.manifest["fields"]]
        if missing:
            raise ValueError(
                f"{self}, made by {maker}, holds no {' and no '.join(missing)} of tokens, which {name} reads"
            )
        if paradigm.encoder.dim != self.dim:
            shorter = f": search with the model's truncated({self.dim})" if self.fits(paradigm) else ""
            raise ValueError(
                f"{self} holds vectors of {self.dim} dimensions of {maker}, not of {paradigm.encoder.dim} of "
                f"{name}{shorter}"
            )
        if other := self._differing(paradigm):
            raise ValueError(
                f"{self} was made by {maker}, but not by this {name} ({other}): use the model that made it, "
                "or build the index again"
            )

    def check_texts(self, corpus: Corpus) -> None:
        """Raise ValueError, naming documents, if the corpus has other texts than the stored documents.

        Documents that only the corpus or only the store contains are not compared. Warns if documents were
        stored without their texts (`build_from`). Takes about 3 s per million documents; a repeated call with
        the same corpus takes no time.
        """
        whole = self.whole
        if whole._corpus is corpus:
            return
        digests = whole.texts.tolist()
        unknown = 0
        other: list[str] = []
        for id, text in zip(corpus.ids, corpus, strict=True):
            row = whole.rows_by_id.get(id)
            if row is None:
                continue
            if not digests[row]:
                unknown += 1
            elif digests[row] != text_digest(text):
                other.append(id)
        if other:
            raise ValueError(other_texts(str(self), other))
        if unknown:
            warnings.warn(
                f"{self} was given {unknown:,} of its documents as vectors, without their texts: nothing "
                "tells whether the corpus has the same texts",
                stacklevel=3,
            )
        whole._corpus = corpus

    def fits(self, paradigm: Paradigm) -> bool:
        """Whether the paradigm makes these vectors, possibly truncated to fewer dimensions."""
        known = "identity" in self.manifest and self.dim <= paradigm.encoder.dim
        return known and not self._differing(paradigm)

    def _differing(self, paradigm: Paradigm) -> str:
        """Name the parts of the recorded identity that the paradigm does not share; "" without a record."""
        recorded = self.manifest.get("identity")  # absent if documents were added as tokens
        return "" if recorded is None else differing(recorded, identity(paradigm.encoder))

    # --- changing: each method makes a commit, and returns the store that shows it ------------------------

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

        Raises ValueError if an id is already stored and not deleted, and KeyError if a document to delete is
        unknown.
        """
        self.check(paradigm)
        count, reduction = check_ids(ids, texts), TokenReduction.kept_by(self.manifest)
        precision = resolved(paradigm.encoder.device, precision)
        shards = text_shards(
            paradigm, ids, texts, reduction=reduction, batch_size=batch_size, precision=precision
        )
        files = None
        if self.folder is not None:
            place = self.folder.with_name(f".{self.folder.name}.adding")
            how = {"fields": self.manifest["fields"], **asdict(reduction)}
            files = ShardFiles(place, self.kind, how | _how(paradigm, batch_size, precision))
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=count)
            return self._add(shards, instead_of, state, files, lambda n: bar.advance(task, n))

    def add_from(self, parts: Batches, *, instead_of: Iterable[str] = ()) -> "Store":
        """Store more documents, like `add`, but from batches as in `build_from`."""
        return self._add(token_shards(parts, TokenReduction.kept_by(self.manifest)), instead_of, {})

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
            gone = np.unique(now.positions(instead_of))
            left = now.living.copy()
            left[gone] = False
            counts = dict(now.manifest)
            codec = now.codec if now.kind.quantiser else None
            for shard in different(shards, now._restricted(left)):
                file = None if files is None else files.file(shard.source)
                if file is not None and file.is_file():
                    columns = load_file(file)
                    advance(len(shard.ids))
                else:
                    columns = encoded(now.kind.codec, shard, now.manifest, str(now), advance)
                    if file is not None:
                        put(file, columns)
                for name, rows in in_codes(codec, columns).items():
                    writer.append(name, rows)
                counts |= grown(counts, columns)
            if counts["documents"] > now.manifest["documents"]:
                writer.remove(ERRORS)
                now._derive(writer, anew=not now.manifest["tokens"])
            if len(gone):
                writer.append(DELETED, gone)
            writer.commit(documents=counts["documents"], tokens=counts["tokens"], **state)
            added = self.opened(writer.files, self.kind)
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
                return self.opened(writer.files, self.kind)
            kept = np.repeat(now.living, np.diff(now.offsets))
            bytes = sum(column[:1].nbytes for column in now.columns.values())
            step = max(1, CHUNK // max(1, bytes))
            parts = [slice(first, first + step) for first in range(0, len(kept), step)]
            codec, tokens = None, int(kept.sum())
            if renewed:
                vectors = (now.decoded(part)["vectors"][kept[part]] for part in parts)
                codec = now._trained(writer, vectors, tokens)
            for name in now.columns:
                writer.remove(f"{name}.bin")
            for part in parts:
                rows = {name: column[part][kept[part]] for name, column in now.columns.items()}
                for name, values in (codec.encode(now.codec.decode(rows)) if codec else rows).items():
                    writer.append(f"{name}.bin", values)
            rows_left = np.flatnonzero(now.living)
            writer.remove(LENGTHS)
            writer.append(LENGTHS, np.diff(now.offsets)[rows_left].astype(np.int32))
            writer.remove(DOCUMENTS)
            writer.append(DOCUMENTS, lines(now.names(rows_left)))
            writer.remove(KEYS)
            writer.append(KEYS, now.keys[rows_left])
            writer.remove(TEXTS)
            writer.append(TEXTS, now.texts[rows_left])
            writer.remove(DELETED)
            writer.remove(ERRORS)
            now._derive(writer, anew=True)
            state = {TRAINED: tokens} if renewed else {}
            writer.commit(documents=len(rows_left), tokens=tokens, **state)
            return self.opened(writer.files, self.kind)

    @property
    def outgrown(self) -> bool:
        """Whether the index has more than GROWN times the tokens that it was built with.

        The centroids are then too few and fit the tokens badly; `compact` trains new ones.
        """
        built = self.manifest.get(TRAINED)
        return built is not None and self.living_tokens > GROWN * max(built, FEW)

    def _trained(self, writer: Writer, vectors: Iterable[np.ndarray], tokens: int) -> Codec:
        quantiser = self.kind.quantiser
        assert quantiser is not None
        quantiser.train(writer, vectors, tokens, tokens, self.dim)
        return quantiser.open(writer, self.dim)

    def certify(self, whole: "Store") -> "Store":
        """Store the distances between each document's tokens here and in `whole`: `errors` [documents, 2].

        The two columns are `pruning.directed_distances` plus an allowance for rounding, and bound the error
        of a sum of maxima. `add` and `compact` remove the errors. Raises KeyError if `whole` lacks a
        document.
        """
        with self._writing() as (now, writer):
            errors = np.zeros((len(now.ids), 2), np.float32)
            for rows in now._living_blocks():
                parts = whole.tokens_of(now.names(rows)), now.tokens(rows)
                norms = [part.vectors.norm(dim=-1).where(part.mask, 0).amax(-1)[0] for part in parts]
                longest = torch.maximum(*norms).clamp(min=1)[:, None]
                errors[rows] = directed_distances(*parts) + ROUNDING * longest
            writer.remove(ERRORS)
            writer.append(ERRORS, errors)
            writer.commit()
            return self.opened(writer.files, self.kind)

    @contextmanager
    def _writing(self) -> Iterator[tuple["Store", Writer]]:
        """Yield the store at the newest commit, possibly made by another process, and its only writer."""
        with self.files.writing() as writer:
            yield self.opened(writer.files, self.kind), writer

    def _derive(self, writer: Writer, anew: bool) -> None:
        self.kind.derived.write(writer, Store(writer, self.kind, self.manifest), anew)

    def _living_blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows of the documents that are not deleted, in order, in blocks of `BLOCK` tokens."""
        return self.blocks(BLOCK, np.flatnonzero(self.living))


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
                store = Store.opened(files, kind(files))
            if verify is not False:
                files.verify(None if verify else VERIFIED)
            if before[:1] == files.identity()[:1]:  # otherwise manifest and columns may come from two builds
                return store
        except (FileNotFoundError, ValueError) as error:
            # A writer may have briefly moved the folder, or removed replaced files. Only damage persists.
            previous, failure = failure, (before, files.identity(), str(error))
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
    wanted = set(chosen)
    pairs = {n: pair for n, pair in enumerate(zip(ids, texts, strict=True)) if n in wanted}
    yield from encode((pairs[n][0] for n in chosen), (pairs[n][1] for n in chosen))


def _how(paradigm: Paradigm, batch_size: int, precision: str) -> dict[str, Any]:
    """Return what determines the tokens of a text, besides pruning and the fields that are stored."""
    return {
        "batch": batch_size,
        "precision": precision,
        "dim": paradigm.encoder.dim,
        **identity(paradigm.encoder),
    }


def other_texts(place: str, ids: Sequence[str]) -> str:
    """Return an error message for documents whose stored vectors were made from other texts."""
    listed = ", ".join(map(repr, ids[:3])) + (", …" if len(ids) > 3 else "")
    return (
        f"{place} holds vectors of other texts for {len(ids):,} of these documents: {listed}. Use the texts "
        "that it was built from, build it again, or replace these documents with "
        "store.add(model, ids, texts, instead_of=ids)"
    )


def fields_of(paradigm: Paradigm) -> list[str]:
    """Return the fields of tokens that a store for the paradigm needs."""
    salience = ["salience"] if paradigm.encoder.settings.weighs else []
    return ["vectors", *sorted(paradigm.reads & {"ids"}), *salience]


def ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Concatenate the ranges from each start to its stop."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def parsed_ids(files: Files, lines: np.ndarray, count: int) -> list[str]:
    """Parse the ids in `count` lines of DOCUMENTS. Raises ValueError, naming the file, if it is damaged."""
    data = lines.tobytes()
    try:
        ids = parse_json(b"[" + data.rstrip(b"\n").replace(b"\n", b",") + b"]", DOCUMENTS)
    except ValueError as error:
        raise files.damaged(DOCUMENTS, error) from error
    if len(ids) != count or not all(isinstance(id, str) for id in ids):
        raise files.damaged(DOCUMENTS, f"it does not hold the ids of {count} documents")
    return list(ids)


def _read_ids(store: Store) -> list[str]:
    return parsed_ids(store.files, store.lines, len(store.living))


def _rows_by_id(store: Store) -> dict[str, int]:
    ids = store.ids
    rows = {ids[n]: n for n in np.flatnonzero(store.living).tolist()}
    if len(rows) != len(store):
        raise store.files.damaged(DOCUMENTS, f"{len(rows)} different ids of {len(store)} documents")
    return rows


def _line_ends(store: Store) -> np.ndarray:
    return np.cumsum(store.keys["bytes"], dtype=np.int64)


def _living_tokens(store: Store) -> int:
    return int(np.diff(store.offsets)[store.living].sum())


def _dead(store: Store) -> np.ndarray | None:
    return None if store.living.all() else np.repeat(~store.living, np.diff(store.offsets))
