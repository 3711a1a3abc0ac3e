"""Stored tokens for the tests of the kernels: as float16, as codes, and as tensors."""

from typing import Any

import numpy as np
import torch

from paradigms.core import Tokens
from paradigms.scoring import kernels
from paradigms.scoring.stored import Codes, PackedQueries

QUERIES = (1, 16, 17, 33)
LENGTHS = (3, 0, 1, 8, 9, 0, 16, 23, 7, 0)
BITS = (1, 2, 4, 8)
LEVELS = np.linspace(0, 2, 256).astype(np.float32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def frozen(array: np.ndarray) -> np.ndarray:
    """Make an array read-only, like a file that is mapped for reading."""
    array.setflags(write=False)
    return array


def offsets_of(lengths: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def unpacked(codes: np.ndarray, bits: int) -> np.ndarray:
    """Twin of `_unpack`: the lowest bits of all bytes, then the next."""
    return np.concatenate([codes >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], axis=1)


def texts(vectors: list[np.ndarray], ids: bool = False, salience: bool = False) -> Tokens:
    """Queries of these vectors, padded, axes [b, 1, j, h], with random ids and salience if wanted."""
    random, longest = torch.Generator().manual_seed(0), max(1, *map(len, vectors))
    shape = (len(vectors), 1, longest)
    mask = torch.zeros(shape, dtype=torch.bool)
    full = torch.zeros(*shape, vectors[0].shape[1])
    for n, row in enumerate(vectors):
        mask[n, 0, : len(row)], full[n, 0, : len(row)] = True, torch.from_numpy(row)
    drawn = torch.randint(-2, 5, shape, generator=random) if ids else None
    return Tokens(full, mask, drawn, torch.rand(shape, generator=random) if salience else None)


def stored_tokens(vectors: np.ndarray, offsets: np.ndarray, fields: dict, rows: np.ndarray) -> Tokens:
    """The documents at `rows` as tensors, axes [1, n, i, h]."""
    places = [np.arange(offsets[row], offsets[row + 1]) for row in rows]
    longest = max(map(len, places))
    index = np.stack([np.pad(p, (0, longest - len(p))) for p in places])
    mask = torch.from_numpy(np.arange(longest) < np.array([len(p) for p in places])[:, None])[None]
    beside = {name: torch.from_numpy(values[index])[None] for name, values in fields.items()}
    if "ids" in beside:
        beside["ids"] = beside["ids"].long()
    return Tokens(torch.from_numpy(vectors[index])[None] * mask[..., None], mask, **beside)


class Corpus:
    """Random coded tokens of documents, a coded query, and the similarities that they stand for."""

    def __init__(self, bits: int, width: int, count: int, lengths: Any = LENGTHS, lists: int = 5) -> None:
        random = np.random.default_rng(0)
        self.offsets = offsets_of(lengths)
        total = int(self.offsets[-1])
        codes = random.integers(0, 256, (total, width * bits // 8)).astype(np.uint8)
        scales = random.integers(0, 256, total).astype(np.uint8)
        nearest = random.integers(0, lists, total).astype(np.uint16)
        centroids, spread, queries = normal(lists, width), np.abs(normal(width)), normal(count, width, seed=1)
        middle = ((1 << bits) - 1) / 2
        tokens = centroids[nearest] + LEVELS[scales][:, None] * spread * (unpacked(codes, bits) - middle)
        self.similarities = tokens.astype(np.float64) @ queries.T.astype(np.float64)
        self.queries, self.codes = queries, Codes(spread, middle, centroids)
        self.packed = PackedQueries(texts([queries]), self.codes)
        self.query, self.x, self.width = self.packed.query, tokens.astype(np.float32), width
        self.coded = kernels.Stored(frozen(codes), bits, frozen(scales), LEVELS, frozen(nearest))
        # What a similarity is added up from: products with a centroid, with codes and with their middle.
        sizes = abs(centroids)[nearest] + 2 * LEVELS[scales][:, None] * spread * 2 * middle
        self.terms, self.scale = 3 * width, float((sizes @ abs(queries).T).max())
