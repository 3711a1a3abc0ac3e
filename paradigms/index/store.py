"""The tokens of a corpus under one paradigm, as columns of a folder that are read in place.

What every index shares: how tokens become rows of columns, and how they come back. A document's place, its
row, changes only in `compact`; its id never does.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index.checksum import weights_checksum
from paradigms.index.columns import DEFECTS, MANIFEST, ColumnFolder, Writer
from paradigms.index.pruning import Fewer
from paradigms.io.typed import check_several, check_types, naming, parse_json
from paradigms.model import Paradigm

DTYPES = {"vectors": "float16", "ids": "int32", "salience": "float32"}
DOCUMENTS, LENGTHS, DELETED = "documents.jsonl", "lengths.bin", "deleted.bin"
ERRORS = "errors.bin"  # of each document, how far its tokens are from those of another index: `certify`
LIKE = 4096  # documents that are read in the order of their lengths, so that blocks hold little padding
Rows = slice | np.ndarray
Store = TypeVar("Store", bound="TokenStore")
Made = TypeVar("Made")
WIDEST = 1 << 16  # dimensions of a vector


@dataclass(frozen=True)
class NoSettings:
    """An index with nothing to choose."""


class TokenStore:
    """The tokens of a corpus under one paradigm, on disk: what `grow` wrote.

    ids and offsets run over all rows, deleted documents included until `compact`; `living` says which count,
    and len() how many. All that is read is replaced in one assignment: a method that reads twice works on a
    copy, so that what another thread adds or compacts meanwhile is not seen. A kind of index names itself,
    its Settings, and may override `_columns`, `_encode`, `_decode`, `_derive`.
    """

    kind: ClassVar[str] = "tokens"
    Settings: ClassVar[type] = NoSettings

    manifest: Mapping[str, Any]
    _table: ColumnFolder

    def __init__(self, folder: Path, *, verify: bool = False) -> None:
        self.folder = folder
        self._load(verify)

    def __len__(self) -> int:
        return len(self._positions)

    @classmethod
    def open(cls: type[Store], folder: str | Path, *, verify: bool = True) -> Store:
        """What `build` wrote. ValueError names the file that is damaged.

        verify: compare checksums too, about a second for each gigabyte; without it only sizes and numbers of
        rows.
        """
        store = cls(Path(folder), verify=verify)
        if "building" in store.manifest:
            raise ValueError(
                f"{folder} is a build that has not ended: build it again, and it goes on from here"
            )
        return store

    @property
    def bytes_per_document(self) -> float:
        """Bytes on disk of everything but the manifest and the ids, per document that is not deleted."""
        files = self.manifest["files"].items()
        return sum(entry["bytes"] for name, entry in files if name != DOCUMENTS) / max(1, len(self))

    def tokens(
        self, positions: Sequence[int] | range | np.ndarray, device: torch.device | str = "cpu"
    ) -> Tokens:
        """The stored tokens of documents, by row: axes [1, n, i, h], float32."""
        at = np.asarray(positions, dtype=np.int64)
        lengths = self.offsets[at + 1] - self.offsets[at]
        longest = max(1, int(lengths.max(initial=0)))
        mask = np.arange(longest) < lengths[:, None]
        consecutive = len(at) > 0 and bool((np.diff(at) == 1).all())
        rows: Rows = (
            slice(self.offsets[at[0]], self.offsets[at[-1] + 1])
            if consecutive
            else (self.offsets[at][:, None] + np.arange(longest))[mask]
        )
        there = torch.from_numpy(mask).to(device)
        padded: dict[str, Tensor] = {}
        for name, values in self._decode(rows).items():
            flat = torch.from_numpy(values).to(device)
            flat = flat.float() if flat.is_floating_point() else flat.long()
            full = flat.new_zeros((*mask.shape, *flat.shape[1:]))
            full[there] = flat
            padded[name] = full[None]
        return Tokens(padded["vectors"], there[None], padded.get("ids"), padded.get("salience"))

    def tokens_of(self, ids: Sequence[str], device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by id, in the order of `ids`."""
        state = copy.copy(self)
        return state.tokens(state.positions(ids), device)

    def position(self, id: str) -> int:
        """The row of a document. KeyError names an unknown or deleted one."""
        if id not in self._positions:
            raise KeyError(f"document {id!r} is not in the index {self.folder} of {len(self)} documents")
        return self._positions[id]

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """The rows of documents, int64, as `position` has them."""
        check_several(ids, "document ids")
        return np.array([self.position(id) for id in ids], dtype=np.int64)

    def names(self, positions: np.ndarray) -> list[str]:
        """The ids of documents, by row."""
        return [self.ids[n] for n in positions.tolist()]

    def blocks(self, tokens: int, positions: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Rows of `positions`, or of all documents with tokens, in blocks of at most `tokens` padded.

        All documents come with those of like length together, among LIKE neighbours.
        """
        if positions is None:
            living = self._with_tokens()
            longest_first = self.offsets[living] - self.offsets[living + 1]
            rows = living[np.lexsort((longest_first, np.arange(len(living)) // LIKE))]
        else:
            rows = positions
        lengths = (self.offsets[rows + 1] - self.offsets[rows]).tolist()
        start, longest = 0, 1
        for n, length in enumerate(lengths):
            longest = max(longest, length)
            if n > start and (n + 1 - start) * longest > tokens:
                yield rows[start:n]
                start, longest = n, max(1, length)
        if start < len(lengths):
            yield rows[start:]

    def check(self, paradigm: Paradigm) -> None:
        """ValueError where these are not tokens that `paradigm` can score, or other weights made them."""
        missing = [name for name in fields_of(paradigm) if name not in self.manifest["fields"]]
        if missing:
            raise ValueError(
                f"{self.folder}, made by {self.manifest['paradigm']}, holds no {' and no '.join(missing)} of "
                f"tokens, which {paradigm.recipe.name} reads"
            )
        if paradigm.encoder.dim != self.manifest["dim"]:
            raise ValueError(
                f"{self.folder} holds vectors of {self.manifest['dim']} dimensions of "
                f"{self.manifest['paradigm']}, not of {paradigm.encoder.dim} of {paradigm.recipe.name}"
            )
        recorded = self.manifest.get("weights")  # none of documents that came encoded
        if recorded is not None and recorded != weights_checksum(paradigm):
            raise ValueError(
                f"{self.folder} was made by {self.manifest['paradigm']} with other weights than this "
                f"{paradigm.recipe.name} has: take the model that made it, or build the index again"
            )

    @classmethod
    def _check_settings(cls, settings: Any, dim: int) -> None:
        """ValueError, before anything is encoded, for settings that no build could be ended with."""

    def _columns(self) -> dict[str, DTypeLike]:
        """What is stored of every token: a column of `fields`, and a file, of each name."""
        wide = {"vectors": (self.manifest["dim"],)}
        return {name: (DTYPES[name], wide.get(name, ())) for name in self.manifest["fields"]}

    def _encode(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns from the fields of some tokens, in DTYPES: vectors [t, h], ids [t], salience [t]."""
        return rows

    def _decode(self, rows: Rows) -> dict[str, np.ndarray]:
        """What `_encode` was given, as far as columns hold it, of some rows of tokens."""
        return {name: np.array(column[rows]) for name, column in self.fields.items()}

    def _derive(self, writer: Writer, start: int) -> None:
        """Bring files that depend on all rows up to date: tokens from `start` on are new.

        Called before the last commit of a build, an addition or a compaction; `writer.array` has the rows.
        """

    def _rows(self, tokens: Tokens, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """The manifest's fields of real tokens alone, as DTYPES has them, of the documents `ids`.

        ValueError names a document with values that a dtype cannot hold.
        """
        rows = {}
        for name in self.manifest["fields"]:
            values = getattr(tokens, name)
            if values is None:
                raise ValueError(f"{self.folder} stores {name} of tokens, and documents came without")
            kept = values[0][tokens.mask[0]].to(getattr(torch, DTYPES[name]))  # where they lie: less to move
            if kept.is_floating_point() and not kept.sum(dtype=torch.float64).isfinite():
                wrong = (~kept.isfinite()).view(len(kept), -1).any(1).nonzero()[0].cpu()
                ends = tokens.mask[0].sum(-1).cumsum(0).cpu()
                owner = int(torch.searchsorted(ends, wrong, right=True))
                raise ValueError(
                    f"the {name} of document {ids[owner]!r} do not fit {DTYPES[name]}: not finite, or too "
                    f"large, as {self.manifest['paradigm']} makes them"
                )
            rows[name] = kept.cpu().numpy()
        dim = rows["vectors"].shape[1]
        if dim != self.manifest["dim"]:
            raise ValueError(
                f"{self.folder} stores vectors of {self.manifest['dim']} dimensions, not of {dim}"
            )
        return rows

    def _load(self, verify: bool = False) -> None:
        """Take over the state of the folder, in one assignment."""
        fresh = copy.copy(self)
        table = fresh._table = ColumnFolder(self.folder, self.kind)
        while True:
            before = table.standing()
            try:
                fresh.manifest = table.read()
                with naming(self.folder):
                    fresh._map(fresh.manifest)
                if verify:
                    table.verify()
                break
            except (FileNotFoundError, ValueError):
                if before == table.standing():  # else a writer has just removed what it replaced
                    raise
        self.__dict__ = fresh.__dict__

    def _map(self, manifest: Mapping[str, Any]) -> None:
        """Everything of a state but its manifest. ValueError names the file whose content cannot be."""
        table = self._table
        try:
            self.settings: Any = self.Settings(**manifest["settings"])
            check_types(self.settings)
            check_entries(manifest)
            self._check_settings(self.settings, manifest["dim"])
            count, total, columns = manifest["documents"], manifest["tokens"], self._columns()
        except DEFECTS as error:
            raise table.damaged(MANIFEST, error) from error
        self.ids = self._read_ids()
        lengths, deleted = table.array(LENGTHS, "int32"), table.array(DELETED, "int64")
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if len(lengths) != count or self.offsets[-1] != total or (lengths < 0).any():
            raise table.damaged(LENGTHS, f"not {count!r:.40} lengths of {total!r:.40} tokens")
        self.longest = int(lengths.max(initial=0))  # tokens of a document
        if ((deleted < 0) | (deleted >= count)).any():
            raise table.damaged(DELETED, f"not rows of {count} documents")
        if len(self.ids) != count:
            raise table.damaged(DOCUMENTS, f"{len(self.ids)} ids of {count} documents")
        self._live(np.bincount(deleted, minlength=count) == 0)
        if len(self._positions) != self.living.sum():
            raise table.damaged(DOCUMENTS, f"{len(set(self.ids))} different ids")
        self.errors = table.array(ERRORS, ("float32", (2,)))
        if len(self.errors) not in (0, count) or not (self.errors >= 0).all():
            raise table.damaged(ERRORS, f"not two distances of each of {count} documents")
        self.fields = {name: table.array(f"{name}.bin", column) for name, column in columns.items()}
        for name, values in self.fields.items():
            if len(values) != total:
                raise table.damaged(f"{name}.bin", f"{len(values)} rows where {total} belong")
        salience = self.fields.get("salience")
        if salience is not None and not (np.isfinite(salience).all() and (salience >= 0).all()):
            raise table.damaged("salience.bin", "it has values that are not finite, or below 0")

    def _live(self, living: np.ndarray) -> None:
        """Take these rows to be the documents that count, [documents]."""
        lengths, self.living = np.diff(self.offsets), living
        self._positions = {self.ids[n]: n for n in np.flatnonzero(living).tolist()}
        self.living_tokens = int(lengths[living].sum())
        # Which tokens belong to deleted documents; None where no document is deleted.
        self.dead = None if living.all() else np.repeat(~living, lengths)
        self._made: dict[str, Any] = {}  # of this state, when first needed: copies share it

    def _kept_once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for this state of the folder."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _with_tokens(self) -> np.ndarray:
        """Rows of the documents that a search may find: not deleted, and with a token."""
        return np.flatnonzero(self.living & (np.diff(self.offsets) > 0))

    def _read_ids(self) -> list[str]:
        lines = self._table.array(DOCUMENTS, "uint8").tobytes()
        try:
            ids = parse_json(b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]", DOCUMENTS)
        except ValueError as error:
            raise self._table.damaged(DOCUMENTS, error) from error
        if not all(isinstance(id, str) for id in ids):
            raise self._table.damaged(DOCUMENTS, "an id is no string")
        return ids


def check_entries(manifest: Mapping[str, Any]) -> None:
    """ValueError for entries of a manifest that no store can have."""
    names, dim = (manifest[name] for name in ("fields", "dim"))
    if type(dim) is not int or not 1 <= dim <= WIDEST:
        raise ValueError(f"dim must be a number from 1 to {WIDEST}, got {dim!r:.40}")
    if not isinstance(names, list) or names[:1] != ["vectors"] or not set(names) <= DTYPES.keys():
        raise ValueError(f"fields must be vectors, and may be ids and salience, got {names!r:.200}")
    if fewer_of(manifest).pool > 1 and "ids" in names:
        raise ValueError("tokens that are compared by their ids cannot be pooled: take pool=1")


def fewer_of(manifest: Mapping[str, Any]) -> Fewer:
    """Which tokens of its documents a store keeps."""
    return Fewer(*(manifest[field.name] for field in fields(Fewer)))


def grown(manifest: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The manifest's entries that say how much there is, once files have some more documents."""
    lengths = columns[LENGTHS]
    return {
        "documents": manifest["documents"] + len(lengths),
        "tokens": manifest["tokens"] + int(lengths.sum(dtype=np.int64)),
    }


def fields_of(paradigm: Paradigm) -> list[str]:
    """What is stored of a document's tokens: what the paradigm reads of them."""
    salience = ["salience"] if paradigm.encoder.settings.weighs("document") else []
    return ["vectors", *sorted(paradigm.reads & {"ids"}), *salience]
