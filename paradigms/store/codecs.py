"""Codecs that need no training: float16 vectors, and 8- or 16-bit term weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from paradigms.scoring import VECTOR
from paradigms.scoring.stored import Scanned
from paradigms.store.kind import DTYPES, Rows

# Keep 8 bits of a positive float16: 16 weights for each power of two, from 2^−8 (code 1) to 248.
LOW = 7 << 4
DROPPED = 6
LARGEST = 0x7BFF  # bits of the largest finite float16
TERMS = 1 << 24  # maximum number of terms in a vocabulary


@dataclass(frozen=True)
class Float16:
    """A codec that stores tokens uncompressed: float16 vectors, ids and salience."""

    def columns(self, dim: int, fields: Sequence[str]) -> dict[str, DTypeLike]:
        return {name: (DTYPES[name], (dim,) if name == "vectors" else ()) for name in fields}

    def encode(self, tokens: Rows) -> Rows:
        return tokens

    def decode(self, columns: Rows) -> Rows:
        return columns

    def scanned(self, columns: Mapping[str, np.ndarray], offsets: np.ndarray) -> Scanned | None:
        """Return the kernels' input, without copying vectors.

        Returns None if h is not a multiple of VECTOR or if every document has a single token.
        """
        vectors = np.asarray(columns["vectors"])
        if vectors.shape[1] % VECTOR or len(vectors) == len(offsets) - 1:
            return None  # with one vector per document, a matrix product needs no kernel
        from paradigms.scoring import kernels

        return Scanned(kernels.halves(vectors), offsets, columns)


@dataclass(frozen=True)
class Weights:
    """A codec that stores an id and a weight ≥ 0 for each token: SPLADE, uniCOIL, BM25.

    bits: 16 stores weights as float16; 8 rounds them by at most 3%. Weights above 248 need 16 bits.
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (8, 16):
            raise ValueError(f"bits must be 8 or 16, got {self.bits}")

    def columns(self, dim: int, fields: Sequence[str]) -> dict[str, DTypeLike]:
        if dim != 1:
            raise ValueError(f"an inverted index holds one number for each token, not vectors of {dim}")
        if "ids" not in fields:
            raise ValueError('an inverted index needs the ids of terms: set fields=("vectors", "ids")')
        if "salience" in fields:
            raise ValueError("an inverted index cannot store salience: use an exact index")
        return {"weights": "uint8" if self.bits == 8 else "uint16", "ids": "int32"}

    def encode(self, tokens: Rows) -> Rows:
        weights = tokens["vectors"][:, 0] + np.float16(0)  # -0 becomes 0
        ids = tokens["ids"]
        if (weights < 0).any() or (ids < 0).any() or (ids >= TERMS).any():
            raise ValueError(f"an inverted index holds weights of at least 0 and ids from 0 to {TERMS - 1}")
        codes = weights.view(np.uint16)
        if self.bits == 8:
            rounded = (codes.astype(np.int32) + (1 << DROPPED >> 1) >> DROPPED) - LOW
            if (rounded > 255).any():
                raise ValueError(f"8 bits cannot hold a weight of {weights.max()}: set bits to 16")
            codes = np.where(weights > 0, rounded.clip(1), 0).astype(np.uint8)
        return {"weights": codes, "ids": ids}

    def decode(self, columns: Rows) -> Rows:
        return {"vectors": self.table[columns["weights"]][:, None], "ids": columns["ids"]}

    def scanned(self, columns: Mapping[str, np.ndarray], offsets: np.ndarray) -> None:
        return None

    @cached_property
    def table(self) -> np.ndarray:
        """The weight that each code represents, float32, in ascending order."""
        codes = np.arange(1 << self.bits, dtype=np.uint16)
        if self.bits == 8:
            codes = np.where(codes > 0, codes + LOW << DROPPED, 0).astype(np.uint16)
        return codes.view(np.float16).astype(np.float32)
