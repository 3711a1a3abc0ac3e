"""The tokens of a corpus under one paradigm, as columns in a folder or in memory.

`paradigms.find` searches stores. A store shows one commit and never changes: `add`, `delete`, `compact` and
`certify` commit a new state and return a new store that shows it.

    store = Store.build(exact(), model, ids, texts)            # in memory
    store = Store.build(exact(), model, ids, texts, "folder")
    store = store.add(model, ["dog"], ["A dog is an animal."])
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.encoder.precision import AUTO, resolved
from paradigms.io.checks import check_several, naming, parse_json
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.store.build import Advance, build_folder, build_memory, encoded, lines
from paradigms.store.building import Launch, grown
from paradigms.store.checksum import weights_checksum
from paradigms.store.columns import CHUNK, ColumnFolder, Files, Writer
from paradigms.store.kind import DELETED, DOCUMENTS, ERRORS, LENGTHS, Kind, Kinds, kind_of
from paradigms.store.pruning import TokenReduction, directed_distances
from paradigms.store.shards import Shard, check_ids, different, text_shards, token_shards

LIKE = 4096  # documents that are sorted by length together, so that blocks hold little padding
ROUNDING = 1e-5  # of a similarity, at most, relative to the longer vector's norm
BLOCK = 1 << 16  # padded tokens that are copied at once
Made = TypeVar("Made")
Pooling = Literal["ward", "sequential"]


class Store:
    """Documents by row, with the tokens of each. Only `compact` changes rows; ids never change.

    ids and offsets cover all rows, including deleted documents until `compact`; `living` marks the others,
    and len() counts them. columns: the stored fields of all tokens. errors: one row per document (`certify`).
    """

    def __init__(self, files: Files | Writer, kind: Kind, manifest: Mapping[str, Any]) -> None:
        """Wrap files without checking them; use `open_store` to open a folder."""
        self.files = cast(Files, files)  # of a writer while derived files are written
        self.kind, self.manifest = kind, manifest
        self.codec = kind.quantiser.open(files, self.dim) if kind.quantiser else kind.codec
        dtypes = self.codec.columns(self.dim, manifest["fields"])
        self.columns = {name: files.array(f"{name}.bin", dtype) for name, dtype in dtypes.items()}
        lengths, deleted = files.array(LENGTHS, "int32"), files.array(DELETED, "int64")
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.living = np.ones(len(lengths), bool)
        self.living[deleted[(deleted >= 0) & (deleted < len(lengths))]] = False
        self.errors = files.array(ERRORS, ("float32", (2,)))
        self._whole: Store | None = None  # the store that this is a part of
        self._made: dict[Callable[[Any], Any], Any] = {}

    def __str__(self) -> str:
        return str(self.files)

    def __len__(self) -> int:
        return len(self.rows_by_id)

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

        A folder appears complete or not at all. texts may be a stream: memory holds only ids, lengths and one
        shard. The same call resumes an interrupted build from the last stored shard.

        kind: such as `find.kinds.exact()`. ids: the documents' ids, which get the rows 0, 1, … in this order.
        folder: None keeps everything in memory.
        keep, pool, pooling: which tokens of a document are stored (`pruning.TokenReduction`).
        precision: as in `encoder.precision`; vectors are stored as float16 anyway.
        launch: the processes that share the work (`building`), all of which call this with the same
        arguments, such as accelerate's `Accelerator` or `PartialState`. Each returns the store; its bytes
        equal those of one process with the same number of threads. None: this process builds alone.

        Raises ValueError if ids repeat, a vector does not fit float16, a build with other weights, settings
        or documents was interrupted there, or several processes build without a folder. Raises
        BlockingIOError while a process outside the launch builds or writes there.
        """
        count, reduction = check_ids(ids, texts), TokenReduction(keep, pool, pooling)
        precision = resolved(paradigm.encoder.device, precision)
        shards = text_shards(
            paradigm, ids, texts, reduction=reduction, batch_size=batch_size, precision=precision
        )
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=count)
            return cls._build(
                kind,
                shards,
                folder,
                reduction,
                source={"batch": batch_size, "precision": precision} | paradigm.description(),
                launch=launch,
                advance=lambda n: bar.advance(task, n),
                paradigm=paradigm.recipe.name,
                weights=weights_checksum(paradigm),
                dim=paradigm.encoder.dim,
                fields=fields_of(paradigm),
            )

    @classmethod
    def build_from(
        cls,
        kind: Kind,
        parts: Iterable[tuple[list[str], Tokens]],
        folder: str | Path | None = None,
        *,
        paradigm: str,
        dim: int,
        fields: Sequence[str] = ("vectors",),
        keep: float = 1.0,
        pool: int = 1,
        pooling: Pooling = "ward",
    ) -> "Store":
        """Build from encoded documents.

        parts: ids and Tokens [1, n, i, h] of some documents at a time. paradigm: its name. fields: the fields
        of Tokens to store: vectors, ids, salience. Other arguments and errors: see `build`.
        """
        reduction, names = TokenReduction(keep, pool, pooling), list(fields)
        return cls._build(
            kind, token_shards(parts, reduction), folder, reduction, paradigm=paradigm, dim=dim, fields=names
        )

    def copy(
        self,
        kind: Kind,
        folder: str | Path | None = None,
        *,
        keep: float = 1.0,
        pool: int = 1,
        pooling: Pooling = "ward",
    ) -> "Store":
        """Store the same tokens, or fewer of them, as another kind, without encoding again.

        keep, pool, pooling: as in `build`, applied to the tokens of this store.
        """
        reduction, before = TokenReduction(keep, pool, pooling), TokenReduction.kept_by(self.manifest)
        parts = ((self.names(rows), self.tokens(rows)) for rows in self._living_blocks())
        entries = ("paradigm", "weights", "dim", "fields")
        same = {name: self.manifest[name] for name in entries if name in self.manifest}
        both = TokenReduction(before.keep * keep, before.pool * pool, pooling if pool > 1 else before.pooling)
        return self._build(kind, token_shards(parts, reduction), folder, both, **same)

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
        """Open the store in some files. Raises ValueError, naming the file, if its content is invalid."""
        store = cls(files, kind, files.manifest)
        count, total = files.manifest["documents"], files.manifest["tokens"]
        lengths, deleted = np.diff(store.offsets), files.array(DELETED, "int64")
        if len(lengths) != count or store.offsets[-1] != total or (lengths < 0).any():
            raise files.damaged(LENGTHS, f"not {count!r:.40} lengths of {total!r:.40} tokens")
        if ((deleted < 0) | (deleted >= count)).any():
            raise files.damaged(DELETED, f"not rows of {count} documents")
        if len(store.ids) != count:
            raise files.damaged(DOCUMENTS, f"{len(store.ids)} ids of {count} documents")
        if len(store) != store.living.sum():
            raise files.damaged(DOCUMENTS, f"{len(set(store.ids))} different ids")
        if len(store.errors) not in (0, count) or not (store.errors >= 0).all():
            raise files.damaged(ERRORS, f"not two distances of each of {count} documents")
        for name, values in store.columns.items():
            if len(values) != total:
                raise files.damaged(f"{name}.bin", f"{len(values)} rows where {total} belong")
        salience = store.columns.get("salience")
        if salience is not None and not (np.isfinite(salience).all() and (salience >= 0).all()):
            raise files.damaged("salience.bin", "it has values that are not finite, or below 0")
        store.derived = kind.derived.open(store)
        return store

    derived: Any = None
    """contents of the kind's derived files, for its finder"""

    # --- reading ----------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """The folder; None for a store in memory."""
        return getattr(self.files, "folder", None)

    @property
    def dim(self) -> int:
        """Dimensions of a token vector."""
        return int(self.manifest["dim"])

    @property
    def bytes_per_document(self) -> float:
        """Bytes per document that is not deleted, without the manifest and the ids."""
        files = self.files.entries.items()
        return sum(entry["bytes"] for name, entry in files if name != DOCUMENTS) / max(1, len(self))

    @property
    def ids(self) -> list[str]:
        """The documents' ids by row, deleted ones included."""
        return self.whole.once(_read_ids)

    @property
    def rows_by_id(self) -> dict[str, int]:
        """Id → row of each document that is not deleted."""
        return self.once(_rows_by_id)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest document."""
        return int(np.diff(self.offsets).max(initial=0))

    @property
    def living_tokens(self) -> int:
        """Number of tokens of documents that are not deleted."""
        return int(np.diff(self.offsets)[self.living].sum())

    @property
    def dead(self) -> np.ndarray | None:
        """Which tokens belong to deleted documents, [tokens]; None if no document is deleted."""
        return self.once(_dead)

    @property
    def whole(self) -> "Store":
        """The store that this one restricts (`only`), or itself."""
        return self if self._whole is None else self._whole

    def once(self, make: Callable[["Store"], Made]) -> Made:
        """Return make(self), computed once for this store."""
        if make not in self._made:
            self._made[make] = make(self)
        made: Made = self._made[make]
        return made

    def with_tokens(self) -> np.ndarray:
        """Rows of the documents that a search may return: not deleted, and with a token."""
        return np.flatnonzero(self.living & (np.diff(self.offsets) > 0))

    def tokens(self, rows: Sequence[int] | range | np.ndarray, device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by row: axes [1, n, i, h], float32."""
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
            if len(flat) == mask.size:  # nothing to pad
                padded[name] = flat.view(1, *mask.shape, *flat.shape[1:])
                continue
            full = flat.new_zeros((*mask.shape, *flat.shape[1:]))
            full[there] = flat
            padded[name] = full[None]
        return Tokens(padded["vectors"], there[None], padded.get("ids"), padded.get("salience"))

    def tokens_of(self, ids: Sequence[str], device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by id, in the order of `ids`."""
        return self.tokens(self.positions(ids), device)

    def decoded(self, tokens: slice | np.ndarray) -> dict[str, np.ndarray]:
        """The fields of some tokens: vectors [t, h], ids [t], salience [t]."""
        return self.codec.decode({name: np.array(column[tokens]) for name, column in self.columns.items()})

    def position(self, id: str) -> int:
        """The row of a document. Raises KeyError, naming it, if it is unknown or deleted."""
        if id not in self.rows_by_id:
            raise KeyError(f"document {id!r} is not in the index {self} of {len(self)} documents")
        return self.rows_by_id[id]

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """The rows of documents, int64. Raises KeyError, naming it, if a document is unknown or deleted."""
        check_several(ids, "document ids")
        return np.array([self.position(id) for id in ids], dtype=np.int64)

    def names(self, rows: np.ndarray) -> list[str]:
        """The ids of documents, by row."""
        ids = self.ids
        return [ids[n] for n in rows.tolist()]

    def owners(self, tokens: np.ndarray) -> np.ndarray:
        """The row of the document that contains each token; −1 for token −1."""
        return np.searchsorted(self.offsets, tokens, side="right") - 1

    def blocks(self, tokens: int, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield rows in blocks of at most `tokens` padded tokens.

        rows: kept in their order. None: all documents with tokens, sorted by length among LIKE neighbours.
        """
        if rows is None:
            living = self.with_tokens()
            longest_first = self.offsets[living] - self.offsets[living + 1]
            rows = living[np.lexsort((longest_first, np.arange(len(living)) // LIKE))]
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        if (lengths <= 1).all():  # as below, without a loop over documents
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
        """Restrict the store to these documents, which keep their rows; nothing is written.

        Raises KeyError, naming the document, if one is unknown.
        """
        living = np.zeros(len(self.living), dtype=bool)
        living[self.positions(ids)] = True
        part = copy.copy(self)
        part.living, part._made, part._whole = living, {}, self.whole
        return part

    def check(self, paradigm: Paradigm) -> None:
        """Raise ValueError if the paradigm cannot score these tokens, or other weights made them."""
        name, maker = paradigm.recipe.name, self.manifest["paradigm"]
        missing = [field for field in fields_of(paradigm) if field not in self.manifest["fields"]]
        if missing:
            raise ValueError(
                f"{self}, made by {maker}, holds no {' and no '.join(missing)} of tokens, which {name} reads"
            )
        if paradigm.encoder.dim != self.dim:
            raise ValueError(
                f"{self} holds vectors of {self.dim} dimensions of {maker}, not of {paradigm.encoder.dim} of "
                f"{name}"
            )
        recorded = self.manifest.get("weights")  # absent if documents were added as tokens
        if recorded is not None and recorded != weights_checksum(paradigm):
            raise ValueError(
                f"{self} was made by {maker} with other weights than this {name} has: use the model that "
                "made it, or build the index again"
            )

    # --- changing: each commits, and returns the store that shows the commit ------------------------------

    def add(
        self,
        paradigm: Paradigm,
        ids: Iterable[str],
        texts: Iterable[str],
        *,
        batch_size: int = 64,
        precision: str = AUTO,
        progress: bool = False,
    ) -> "Store":
        """Encode and store more documents, all or none of them, pruned as in the build.

        Raises ValueError if an id is already stored and not deleted.
        """
        self.check(paradigm)
        count, reduction = check_ids(ids, texts), TokenReduction.kept_by(self.manifest)
        shards = text_shards(
            paradigm, ids, texts, reduction=reduction, batch_size=batch_size, precision=precision
        )
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=count)
            return self._add(shards, lambda n: bar.advance(task, n))

    def add_from(self, parts: Iterable[tuple[list[str], Tokens]]) -> "Store":
        """Store more documents, as `add` does, from their ids and tokens."""
        return self._add(token_shards(parts, TokenReduction.kept_by(self.manifest)))

    def _add(self, shards: Iterator[Shard], advance: Advance = lambda n: None) -> "Store":
        with self._writing() as (now, writer):
            state = dict(now.manifest)
            for shard in different(shards, now.rows_by_id):
                columns = encoded(now.codec, shard, now.manifest, str(now), advance)
                for name, rows in columns.items():
                    writer.append(name, rows)
                state |= grown(state, columns)
            writer.remove(ERRORS)
            now._derive(writer, anew=not now.manifest["tokens"])
            writer.commit(documents=state["documents"], tokens=state["tokens"])
            return self.opened(writer.files, self.kind)

    def delete(self, ids: Iterable[str]) -> "Store":
        """Remove documents from all searches, all or none of them; `compact` frees their bytes.

        Raises KeyError, naming the document, if one is unknown.
        """
        with self._writing() as (now, writer):
            writer.append(DELETED, np.unique(now.positions(ids)))
            writer.commit()
            return self.opened(writer.files, self.kind)

    def compact(self) -> "Store":
        """Rewrite the columns without deleted documents. Rows change; search results do not."""
        with self._writing() as (now, writer):
            if now.living.all():
                return now
            kept = np.repeat(now.living, np.diff(now.offsets))
            for name, column in now.columns.items():
                writer.remove(f"{name}.bin")
                step = max(1, CHUNK // max(1, column[:1].nbytes))
                for part in (slice(first, first + step) for first in range(0, len(kept), step)):
                    writer.append(f"{name}.bin", column[part][kept[part]])
            rows = np.flatnonzero(now.living)
            writer.remove(LENGTHS)
            writer.append(LENGTHS, np.diff(now.offsets)[rows].astype(np.int32))
            writer.remove(DOCUMENTS)
            writer.append(DOCUMENTS, lines(now.names(rows)))
            writer.remove(DELETED)
            writer.remove(ERRORS)
            now._derive(writer, anew=True)
            writer.commit(documents=len(rows), tokens=int(kept.sum()))
            return self.opened(writer.files, self.kind)

    def certify(self, whole: "Store") -> "Store":
        """Store how far each document's tokens are from its tokens in `whole`, as `errors` [documents, 2].

        The columns are `pruning.directed_distances` plus the rounding of sums; they bound the error of a sum
        of maxima. `add` and `compact` drop them. Raises KeyError if `whole` lacks a document.
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
        """The store at the newest commit, which may be another process's, and its only writer."""
        with self.files.writing() as writer:
            yield self.opened(writer.files, self.kind), writer

    def _derive(self, writer: Writer, anew: bool) -> None:
        self.kind.derived.write(writer, Store(writer, self.kind, self.manifest), anew)

    def _living_blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows of the documents that are not deleted, in order, in blocks of tokens."""
        return self.blocks(BLOCK, np.flatnonzero(self.living))


def open_store(folder: str | Path, kinds: Kinds, *, verify: bool = True) -> Store:
    """Open the store in a folder.

    kinds: functions that make kinds, by their names in manifests (`find.INDEXES`). verify: whether to compare
    checksums, about 1 s per GB; otherwise only sizes and numbers of rows are checked.

    Raises FileNotFoundError if there is no store, and ValueError, naming the file, if one is damaged.
    """
    store = _open(folder, lambda files: kind_of(files.manifest, kinds, files), verify)
    if "building" in store.manifest:
        raise ValueError(f"{folder} is an unfinished build: repeat the build to resume it")
    return store


def _open(folder: str | Path, kind: Callable[[ColumnFolder], Kind], verify: bool) -> Store:
    files = ColumnFolder(Path(folder))
    failure: tuple[object, ...] = ()
    while True:
        before = files.identity()
        try:
            files.read()
            with naming(folder):
                store = Store.opened(files, kind(files))
            if verify:
                files.verify()
            if before[:1] == files.identity()[:1]:  # else manifest and columns may be of two builds
                return store
        except (FileNotFoundError, ValueError) as error:
            # A writer moves the folder away for a moment, or removes what it replaced. A defect stays.
            previous, failure = failure, (before, files.identity(), str(error))
            if before == failure[1] and failure == previous:
                raise


def fields_of(paradigm: Paradigm) -> list[str]:
    """The fields of tokens that must be stored for the paradigm."""
    salience = ["salience"] if paradigm.encoder.settings.weighs("document") else []
    return ["vectors", *sorted(paradigm.reads & {"ids"}), *salience]


def _read_ids(store: Store) -> list[str]:
    data = store.files.array(DOCUMENTS, "uint8").tobytes()
    try:
        ids = parse_json(b"[" + data.rstrip(b"\n").replace(b"\n", b",") + b"]", DOCUMENTS)
    except ValueError as error:
        raise store.files.damaged(DOCUMENTS, error) from error
    if not all(isinstance(id, str) for id in ids):
        raise store.files.damaged(DOCUMENTS, "an id is not a string")
    return list(ids)


def _rows_by_id(store: Store) -> dict[str, int]:
    ids = store.ids
    return {ids[n]: n for n in np.flatnonzero(store.living).tolist()}


def _dead(store: Store) -> np.ndarray | None:
    return None if store.living.all() else np.repeat(~store.living, np.diff(store.offsets))
