"""Read the tokens of a store: one commit of its columns, which never changes."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.identity import differing, identity
from paradigms.io.checks import check_several, parse_json
from paradigms.model import Paradigm
from paradigms.store.build import key_of
from paradigms.store.building import TRAINED
from paradigms.store.columns import Files, Writer
from paradigms.store.kind import DELETED, DOCUMENTS, ERRORS, KEY, KEYS, LENGTHS, TEXTS, Codec, Kind
from paradigms.store.residuals import CODEC
from paradigms.store.shards import Batch, text_digest

LIKE = 4096  # documents that are sorted by length together, so that blocks have little padding
GROWN = 8  # growth factor of the number of tokens after which `compact` trains new centroids
FEW = 1 << 10  # minimum number of tokens to measure that growth from
MIXER = np.uint64(0x9E3779B97F4A7C15)  # an odd number, of which every bit of a product depends on many bits
SCANS = 256  # number of ids to look up by scanning, before making a dict of all ids takes less time
Value = TypeVar("Value")
AnyView = TypeVar("AnyView", bound="View")  # typing.Self, which run-time checks of single methods reject


class View:
    """Documents and their tokens, by row. Only `compact` changes a document's row; its id never changes.

    `ids` and `offsets` cover all rows, including deleted documents until `compact`. `living` marks the
    documents that are not deleted, and len() counts these. columns: the stored fields of all tokens. texts:
    a digest of each document's text (`shards.text_digest`), or 0 if the document was given as tokens. errors:
    one row per document (`certify`).
    """

    def __init__(
        self, files: Files | Writer, kind: Kind, manifest: Mapping[str, Any], codec: Codec | None = None
    ) -> None:
        """Wrap files without checking them; use `open_store` to open a folder. codec: None opens it."""
        self.files = cast(Files, files)  # a writer while derived files are written
        self.kind = kind
        self.manifest = manifest
        chosen = codec or (kind.quantiser.open(files, self.dim) if kind.quantiser else None)
        self.codec: Any = chosen or kind.codec
        self._codec_entry = dict(files.entries.get(CODEC, {}))
        dtypes = self.codec.columns(self.dim, manifest["fields"])
        self.columns = {name: files.array(f"{name}.bin", dtype) for name, dtype in dtypes.items()}
        lengths = files.array(LENGTHS, "int32")
        deleted = files.array(DELETED, "int64")
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.living = np.ones(len(lengths), bool)
        self.living[deleted[(deleted >= 0) & (deleted < len(lengths))]] = False
        self.keys = files.array(KEYS, KEY)
        self.lines = files.array(DOCUMENTS, "uint8")
        self.texts = files.array(TEXTS, "int64")
        self.errors = files.array(ERRORS, ("float32", (2,)))
        self._whole: View | None = None  # the store that this one restricts
        self._computed: dict[Callable[[Any], Any], Any] = {}
        self._corpus: Corpus | None = None  # the last texts of `check_texts`
        self._scans = 0  # number of scans of `keys` so far
        self.derived: Any = None  # content of the derived files, which the finder reads

    def __str__(self) -> str:
        return str(self.files)

    def __len__(self) -> int:
        return int(self.living.sum())

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._row(id) is not None

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
        counted = sum(entry["bytes"] for name, entry in files if name not in (DOCUMENTS, TEXTS))
        return counted / max(1, len(self))

    @cached_property
    def ids(self) -> list[str]:
        """The documents' ids by row, including deleted documents."""
        if self._whole is not None:
            return self._whole.ids
        return parsed_ids(self.files, self.lines, len(self.living))

    @cached_property
    def rows_by_id(self) -> dict[str, int]:
        """Id → row, for documents that are not deleted."""
        ids = self.ids
        rows = {ids[n]: n for n in np.flatnonzero(self.living).tolist()}
        if len(rows) != len(self):
            raise self.files.damaged(DOCUMENTS, f"{len(rows)} different ids of {len(self)} documents")
        return rows

    def checksum(self) -> int:
        """Return a checksum of the documents' ids, texts and numbers of tokens, in any order.

        The checksums of an index's parts add up, modulo 2^64, to the checksum of one index of all documents.
        """
        mixed = np.zeros(len(self.living), np.uint64)
        for values in (self.keys["hash"], self.texts, np.diff(self.offsets)):
            mixed = (mixed ^ values.astype(np.uint64)) * MIXER
            mixed ^= mixed >> np.uint64(32)
        return int(mixed[self.living].sum(dtype=np.uint64))

    @property
    def longest(self) -> int:
        """The number of tokens in the longest document."""
        return int(np.diff(self.offsets).max(initial=0))

    @cached_property
    def living_tokens(self) -> int:
        """The number of tokens in documents that are not deleted."""
        return int(np.diff(self.offsets)[self.living].sum())

    @cached_property
    def dead(self) -> np.ndarray | None:
        """Whether each token belongs to a deleted document [tokens]; None if no document is deleted."""
        return None if self.living.all() else np.repeat(~self.living, np.diff(self.offsets))

    @property
    def whole(self: AnyView) -> AnyView:
        """The unrestricted store from which `only` made this one, or else this store itself."""
        return self if self._whole is None else cast(AnyView, self._whole)

    def once(self: AnyView, make: Callable[[AnyView], Value]) -> Value:
        """Return make(self), computed only once for this store."""
        if make not in self._computed:
            self._computed[make] = make(self)
        value: Value = self._computed[make]
        return value

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
        used = torch.from_numpy(mask).to(device)
        padded: dict[str, Tensor] = {}
        for name, values in self.decoded(places).items():
            flat = torch.from_numpy(values).to(device)
            flat = flat.float() if flat.is_floating_point() else flat.long()
            if len(flat) == mask.size:  # no padding
                padded[name] = flat.view(1, *mask.shape, *flat.shape[1:])
                continue
            full = flat.new_zeros((*mask.shape, *flat.shape[1:]))
            full[used] = flat
            padded[name] = full[None]
        return Tokens(padded["vectors"], used[None], padded.get("ids"), padded.get("salience"))

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
        rows = np.flatnonzero((self.keys["hash"] == key["hash"]) & self.living).tolist()
        return next((row for row in rows if self.names(np.array([row])) == [id]), None)

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the documents' rows, int64. Raises KeyError if a document is unknown or deleted."""
        check_several(ids, "document ids")
        return np.array([self.position(id) for id in ids], dtype=np.int64)

    def names(self, rows: np.ndarray) -> list[str]:
        """Return the ids of the documents at `rows`."""
        stops = self._line_ends[rows]
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
                start = n
                longest = max(1, length)
        if start < len(lengths):
            yield rows[start:]

    def only(self: AnyView, ids: Iterable[str]) -> AnyView:
        """Return a store restricted to these documents, which keep their rows. Nothing is written.

        Raises KeyError, naming the document, if a document is unknown.
        """
        living = np.zeros(len(self.living), dtype=bool)
        living[self.positions(ids)] = True
        return self._restricted(living)

    def _restricted(self: AnyView, living: np.ndarray) -> AnyView:
        part = copy.copy(self)
        part.living = living
        part._computed = {}
        part._whole = self.whole
        for name in ("rows_by_id", "living_tokens", "dead"):  # which depend on `living`
            part.__dict__.pop(name, None)
        return part

    @cached_property
    def _line_ends(self) -> np.ndarray:
        return np.cumsum(self.keys["bytes"], dtype=np.int64)

    def check(self, paradigm: Paradigm) -> None:
        """Raise ValueError if the paradigm cannot score these tokens, or encodes documents differently."""
        name = paradigm.recipe.name
        maker = self.manifest["paradigm"]
        missing = [field for field in fields_of(paradigm) if field not in self.manifest["fields"]]
        if missing:
            raise ValueError(f"{self} holds no {' and no '.join(missing)} of tokens, which {name} reads")
        if paradigm.encoder.dim != self.dim:
            shorter = f": search with the model's truncated({self.dim})" if self.fits(paradigm) else ""
            dims = f"{self.dim} dimensions of {maker}, not of {paradigm.encoder.dim} of {name}{shorter}"
            raise ValueError(f"{self} holds vectors of {dims}")
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
        recorded = "identity" in self.manifest and self.dim <= paradigm.encoder.dim
        return recorded and not self._differing(paradigm)

    def _differing(self, paradigm: Paradigm) -> str:
        """Name the parts of the recorded identity that the paradigm does not share; "" without a record."""
        recorded = self.manifest.get("identity")  # absent if documents were added as tokens
        return "" if recorded is None else differing(recorded, identity(paradigm.encoder))

    @property
    def outgrown(self) -> bool:
        """Whether the index has more than GROWN times the tokens that it was built with.

        The centroids are then too few and fit the tokens badly; `compact` trains new ones.
        """
        built = self.manifest.get(TRAINED)
        return built is not None and self.living_tokens > GROWN * max(built, FEW)


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
