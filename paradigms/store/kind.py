"""Kinds of store, composed of small frozen objects: a codec, files derived from the rows, and a finder.

A function with typed keywords (`find.kinds`) makes each kind. The fields of all parts are the kind's
settings, which the manifest records:

    Kind("compressed", Float16(), Probing(), Lists(), Residuals(bits=4))
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike

from paradigms.io.checks import check_types
from paradigms.scoring.stored import Scanned
from paradigms.store.columns import DEFECTS, MANIFEST, Files, Writer
from paradigms.store.pruning import TokenReduction

if TYPE_CHECKING:
    from paradigms.store.store import Store

DOCUMENTS, LENGTHS = "documents.jsonl", "lengths.bin"
DELETED, ERRORS = "deleted.bin", "errors.bin"
KEYS = "keys.bin"  # one KEY per line of DOCUMENTS
KEY = np.dtype([("hash", "<u8"), ("bytes", "<u4")])
TEXTS = "texts.bin"  # int64, one per document: `shards.text_digest`, or 0 if its text is not known
DTYPES = {"vectors": "float16", "ids": "int32", "salience": "float32"}
WIDEST = 1 << 16  # maximum dimensions of a vector
Rows = dict[str, np.ndarray]
"""Fields of tokens with dtypes from DTYPES (vectors [t, h], ids [t], salience [t]), or columns, by name."""


@runtime_checkable
class Codec(Protocol):
    """A way to store tokens as columns."""

    def columns(self, dim: int, fields: Sequence[str]) -> dict[str, DTypeLike]:
        """Return column names and dtypes for tokens with these fields.

        Raises ValueError if the codec cannot store such tokens.
        """

    def encode(self, tokens: Rows) -> Rows:
        """Convert fields of tokens to columns."""

    def decode(self, columns: Rows) -> Rows:
        """Convert columns back to fields of tokens."""

    def scanned(self, columns: Mapping[str, np.ndarray], offsets: np.ndarray) -> Scanned | None:
        """Return the input of the compiled kernels, or None if they cannot read these columns."""


@runtime_checkable
class Quantiser(Protocol):
    """A codec that is trained on tokens during a build."""

    def sample_size(self, tokens: int) -> int:
        """Return the number of training tokens to use for an index of `tokens` tokens."""

    def train(self, writer: Writer, parts: Iterable[np.ndarray], vectors: int, tokens: int, dim: int) -> None:
        """Train the codec and write its files.

        parts: arrays of vectors [t, dim], `vectors` in all. tokens: number of tokens of the index.
        """

    def open(self, files: Files | Writer, dim: int) -> Codec:
        """Open the trained codec. Raises ValueError if its files are damaged."""


@dataclass(frozen=True)
class Derived:
    """Files that are derived from all rows of a store, for use by finders; none in this base class."""

    def check(self, dim: int) -> None:
        """Raise ValueError, before anything is encoded, if no build with these settings can succeed."""

    def write(self, writer: Writer, store: "Store", anew: bool) -> None:
        """Update the files before a commit.

        store: the rows after the commit. anew: False if rows were only appended.
        """

    def behind(self, store: "Store") -> bool:
        """Return whether the files lack rows that a full rewrite, as in `compact`, would include."""
        return False

    def open(self, store: "Store") -> Any:
        """Open the data that finders read, in time that does not depend on the number of tokens.

        Raises ValueError, naming the file, if a file is damaged.
        """


@dataclass(frozen=True)
class Kind:
    """A kind of store, made by an entry of `find.INDEXES`.

    name: key in `INDEXES`. codec: the codec of a new build. quantiser: the codec that replaces `codec` after
    training. finder: the `find.Finder` that searches the store.
    """

    name: str
    codec: Codec
    finder: Any
    derived: Derived = Derived()
    quantiser: Quantiser | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            check_types(part)

    @property
    def parts(self) -> list[Any]:
        """The objects whose fields are the kind's settings."""
        return [part for part in (self.codec, self.quantiser, self.derived, self.finder) if part is not None]

    @property
    def settings(self) -> dict[str, Any]:
        """All fields of all parts: the keywords that make this kind."""
        return reduce(dict.__or__, map(asdict, self.parts))

    def check(self, manifest: Mapping[str, Any]) -> None:
        """Raise ValueError if a store of this kind cannot have these manifest entries."""
        names = manifest["fields"]
        dim = manifest["dim"]
        if type(dim) is not int or not 1 <= dim <= WIDEST:
            raise ValueError(f"dim must be a number from 1 to {WIDEST}, got {dim!r:.40}")
        if not isinstance(names, list) or names[:1] != ["vectors"] or not set(names) <= DTYPES.keys():
            raise ValueError(f"fields must be vectors, and may be ids and salience, got {names!r:.200}")
        if TokenReduction.from_manifest(manifest).pool > 1 and "ids" in names:
            raise ValueError("tokens that are compared by their ids cannot be pooled: set pool=1")
        self.check_fits(dim, names)

    def check_fits(self, dim: int, fields: Sequence[str]) -> None:
        """Raise ValueError if no store of this kind can hold these fields of tokens with `dim` numbers."""
        self.codec.columns(dim, fields)
        self.derived.check(dim)


Kinds = Mapping[str, Callable[..., Kind]]


def kind_of(manifest: Mapping[str, Any], kinds: Kinds, files: Files) -> Kind:
    """Make the kind that a manifest describes. Raises ValueError, naming the manifest, if it is invalid."""
    name = manifest.get("kind")
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(
            f"{files} is an index of the kind {name!r:.40}; there are {', '.join(kinds)}: load its plug-in"
        )
    try:
        kind = kinds[name](**manifest["settings"])
        kind.check(manifest)
    except DEFECTS as error:
        raise files.damaged(MANIFEST, error) from error
    return kind
