"""Extend a collection with synthetic documents, each composed from real documents by a fixed rule.

Real documents come first. Tokens: a composed document is the first half of one real document followed by the
second half of another document from the same collection. Each token x is shifted within its cell, using
another token y that is drawn at random from the cell. The cells are `CELLS` k-means cells of all real tokens,
with means c:

    x′ = (c + (x − c + y − c) / √2) / ‖·‖,

which preserves each cell's mean and covariance, up to normalisation to length 1. One vector per document: the
vector of one real document is shifted in the same way, within cells of document vectors. Terms: a composed
document contains each term of two documents from the same collection with probability 1/2.

Document n does not depend on the range that is requested, because each block of `BLOCK` documents has a fixed
seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 1024
CELLS = {"tokens": 4096, "pooled": 256}
Rows = tuple[np.ndarray, np.ndarray]  # values of all tokens or terms, and their number in each document


@dataclass(frozen=True)
class Composed:
    """Sequence of real documents, followed by documents composed from them; `write` prepares the folder.

    form: tokens, pooled, words or splade. real: number of real documents; None means all.
    """

    folder: str
    form: str
    real: int | None = None
    seed: int = 0

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, Rows]]:
        """Yield documents first … last − 1 in blocks: (number of the first document, (values, lengths))."""
        while first < last:
            number = first // BLOCK
            begin = first - number * BLOCK
            end = min(last - number * BLOCK, BLOCK)
            yield first, _between(self._block(number), begin, end)
            first = number * BLOCK + end

    def parts(self, first: int, last: int) -> Iterator[tuple[list[str], Any]]:
        """Yield documents first … last − 1 as ids and `Tokens`, for building a store."""
        for start, (values, lengths) in self.blocks(first, last):
            yield [str(start + n) for n in range(len(lengths))], _tokens(by_text(values, lengths), "document")

    @property
    def fields(self) -> tuple[str, ...]:
        return ("vectors", "ids") if self.form in ("words", "splade") else ("vectors",)

    @property
    def dim(self) -> int:
        return 1 if "ids" in self.fields else self._read("values").shape[1]

    @cached_property
    def query_arrays(self) -> list[np.ndarray]:
        return by_text(self._read("queries"), self._read("query_lengths"))

    @cached_property
    def queries(self) -> list[Any]:
        return [self.query_tokens([n]) for n in range(len(self.query_arrays))]

    def query_tokens(self, numbers: Sequence[int]) -> Any:
        return _tokens([self.query_arrays[n] for n in numbers], "query")

    def _block(self, number: int) -> Rows:
        real = len(self._read("lengths")) if self.real is None else self.real
        first = number * BLOCK
        originals = min(max(real - first, 0), BLOCK)
        values, lengths = self._documents(np.arange(first, first + originals))
        if originals == BLOCK:
            return values, lengths
        random = np.random.default_rng((self.seed, number))
        one = random.integers(len(self._read("lengths")), size=BLOCK - originals)
        low, high = self._ranges[self._read("sources")[one]].T
        other = random.integers(low, high)
        more_values, more_lengths = self._composed(one, self._members[other], random)
        return np.concatenate([values, more_values]), np.concatenate([lengths, more_lengths])

    def _composed(self, one: np.ndarray, other: np.ndarray, random: np.random.Generator) -> Rows:
        if "ids" in self.fields:
            both = np.stack([one, other], 1).ravel()
            values, lengths = self._documents(both)
            owners = np.repeat(np.repeat(np.arange(len(one)), 2), lengths)
            mask = random.random(len(values)) < 0.5
            values = values[mask]
            owners = owners[mask]
            _, firsts = np.unique(owners * (1 << 32) + values["id"], return_index=True)
            return values[firsts], np.bincount(owners[firsts], minlength=len(one))
        if self.form == "pooled":
            rows = one
            lengths = np.ones(len(one), np.int64)
        else:
            middle = self._offsets[one] + (self._read("lengths")[one] + 1) // 2
            begin = self._offsets[one]
            half = self._offsets[other] + self._read("lengths")[other] // 2
            end = self._offsets[other + 1]
            spans = np.stack([begin, middle, half, end], 1).reshape(-1, 2)
            rows = _ranged(*spans.T)
            lengths = (middle - begin) + (end - half)
        cells = self._read("cells")[rows]
        begins = self._read("begins")
        sizes = begins[cells + 1] - begins[cells]
        mates = self._read("order")[begins[cells] + (random.random(len(rows)) * sizes).astype(np.int64)]
        centres = self._read("centres")[cells]
        values = self._read("values")
        moved = values[rows].astype(np.float32) + values[mates].astype(np.float32) - 2 * centres
        moved *= np.float32(0.5**0.5)
        moved += centres
        return (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float16), lengths

    def _documents(self, numbers: np.ndarray) -> Rows:
        rows = _ranged(self._offsets[numbers], self._offsets[numbers + 1])
        return self._read("values")[rows], self._read("lengths")[numbers]

    def _read(self, name: str) -> np.ndarray:
        return _loaded(Path(self.folder) / f"{self.form}.{name}.npy")

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self._read("lengths"), dtype=np.int64)])

    @cached_property
    def _members(self) -> np.ndarray:
        """The numbers of the real documents, sorted by collection."""
        return np.argsort(self._read("sources"), kind="stable")

    @cached_property
    def _ranges(self) -> np.ndarray:
        """The start and end of each collection in `_members`, [collections, 2]."""
        ends = np.cumsum(np.bincount(self._read("sources")))
        return np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)


def write(folder: Path, form: str, documents: Rows, sources: np.ndarray, queries: Rows, seed: int) -> None:
    """Write real documents in the given form, the number of each document's collection, and the queries."""
    values, lengths = documents
    files = {"values": values, "lengths": lengths, "sources": sources}
    files |= {"queries": queries[0], "query_lengths": queries[1]}
    if form in CELLS:
        files |= cells_of(values, min(CELLS[form], max(1, len(values) // 8)), seed)
    for name, rows in files.items():
        np.save(folder / f"{form}.{name}.npy", rows)


def cells_of(values: np.ndarray, count: int, seed: int) -> dict[str, np.ndarray]:
    """Compute k-means cells: each vector's cell, vector indices sorted by cell, cell starts and means."""
    import faiss

    random = np.random.default_rng(seed)
    sample = np.sort(random.permutation(len(values))[: 64 * count])
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": 64}
    kmeans = faiss.Kmeans(values.shape[1], count, niter=4, seed=seed, **limits)
    kmeans.train(values[sample].astype(np.float32))
    cells = np.empty(len(values), np.int32)
    centres = np.zeros((count, values.shape[1]), np.float64)
    for start in range(0, len(values), 1 << 16):
        part = values[start : start + (1 << 16)].astype(np.float32)
        rows = kmeans.index.search(part, 1)[1][:, 0]
        cells[start : start + len(part)] = rows
        np.add.at(centres, rows, part)
    sizes = np.bincount(cells, minlength=count)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    means = (centres / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    return {"cells": cells, "order": np.argsort(cells, kind="stable"), "begins": begins, "centres": means}


@cache
def _loaded(file: Path) -> np.ndarray:
    return np.load(file, mmap_mode="r")


def by_text(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


def _tokens(texts: Sequence[np.ndarray], side: Any) -> Any:
    """Pad the vectors, or the entries of terms, of each text."""
    from paradigms.store.arrays import as_tokens

    if texts[0].dtype.names is None:
        return as_tokens(texts, side)
    return as_tokens([text["weight"] for text in texts], side, ids=[text["id"] for text in texts])


def _between(block: Rows, begin: int, end: int) -> Rows:
    values, lengths = block
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return values[offsets[begin] : offsets[end]], lengths[begin:end]


def _ranged(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Concatenate the ranges begins[0] … ends[0] − 1, begins[1] … ends[1] − 1, and so on."""
    lengths = ends - begins
    return np.repeat(begins - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) + np.arange(
        lengths.sum()
    )
