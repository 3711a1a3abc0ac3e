"""x ≈ c + s · σ ⊙ (z − (2^b − 1) / 2): store a token vector x as a centroid c and b bits per dimension.

c: the nearest k-means centroid (ColBERTv2, Santhanam et al. 2022; PLAID), stored as bytes. z ∈ {0, …, 2^b −
1}^h: the residual x − c, quantised uniformly. σ ∈ R^h: the residuals' spread per dimension, shared by the
whole store. s: a scale per token, one of 256 logarithmic steps. A query scores codes without decoding them:
qᵀx ≈ qᵀc + s · ((σ ⊙ q)ᵀ z − (2^b − 1)/2 · Σ σ ⊙ q). A store may have a second, finer code of each residual.

A build trains the codec on a sample of tokens, and encodes all other tokens as they arrive. More than `FLAT`
centroids are organised in two levels, as in FAISS's inverted lists: k-means makes about √K cells, and
another k-means divides each cell into its share of the centroids. Without a GPU, a token is then compared
only with the centroids in its `CELLS` nearest cells. tests/store/test_residuals.py states how often these
contain the nearest centroid.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import DTypeLike
from safetensors.numpy import load, save
from torch import Tensor

from paradigms.io.checks import Range
from paradigms.scoring import VECTOR
from paradigms.scoring.stored import Codes, Scanned
from paradigms.store.columns import Files, Writer
from paradigms.store.kind import DTYPES, Rows

# Steps of the uniform quantisers with 2^b levels that minimise the squared error on N(0, 1).
STEPS = {1: 1.5958, 2: 0.9957, 4: 0.3352, 8: 0.0308}
MANTISSA = 16  # levels of s per factor of two: an error of at most 2.2%, while a 4-bit code errs by 10%
UNIT = 96  # level at which s equals the quantiser's step: scales cover residuals of 2^-6 to 2^10 times σ
LEVELS = np.concatenate([[0], 2.0 ** ((np.arange(1, 256) - UNIT) / MANTISSA)]).astype(np.float32)
NARROWEST = 0.25  # smallest σ of a dimension relative to the mean: nearly constant dimensions do no harm
MOST_CENTROIDS = 1 << 16
PER_CENTROID = 32  # sampled tokens per centroid for k-means
FLAT = 1 << 10  # maximum number of centroids that are all compared with each token
REFINED = 2  # rounds of Lloyd's algorithm over all cells, after the rounds within each cell
CELLS = 16  # number of nearest cells whose centroids are compared with a token
SIMILARITIES = 1 << 25  # similarities of tokens and centroids in memory at once
CODEC = "codec.safetensors"
FINE = "fine_"  # prefix of the columns of a second code
CODED = 1 << 15  # tokens encoded at once


def centroids_for(tokens: int) -> int:
    """Return the power of two nearest to 4√tokens, but at most 65,536.

    With more tokens, both the number and the length of the lists grow.
    """
    return int(min(MOST_CENTROIDS, max(1, tokens), 2 ** round(np.log2(4 * max(1, tokens) ** 0.5))))


@dataclass(frozen=True)
class Residuals:
    """Store tokens as residual codes.

    The codes take dim · (bits + fine_bits) / 8 + 7 bytes per token, including its list entry, and one more
    with fine codes; a list takes dim + 12 bytes.

    bits: bits per dimension (1, 2, 4 or 8). lists: number of centroids; 0 means the power of two nearest to
    4√tokens. rounds, seed: iterations and random seed of k-means. fine_bits: bits per dimension of a second
    code, more than `bits`, from which final scores are computed; 0 means none.
    """

    bits: int = 4
    lists: Annotated[int, Range(0, MOST_CENTROIDS)] = 0
    rounds: Annotated[int, Range(0, 1 << 31)] = 5
    seed: Annotated[int, Range(0, 1 << 31)] = 0
    fine_bits: int = 0

    def __post_init__(self) -> None:
        if self.bits not in STEPS:
            raise ValueError(f"bits must be one of {', '.join(map(str, STEPS))}, got {self.bits}")
        if self.fine_bits and not (self.fine_bits in STEPS and self.fine_bits > self.bits):
            raise ValueError(f"fine_bits must be 0, or 2, 4 or 8 and above bits, got {self.fine_bits}")

    def sample_size(self, tokens: int) -> int:
        return (self.lists or centroids_for(tokens)) * PER_CENTROID

    def train(self, writer: Writer, parts: Iterable[np.ndarray], vectors: int, tokens: int, dim: int) -> None:
        random = np.random.default_rng(self.seed)
        chosen = np.sort(random.choice(vectors, min(vectors, self.sample_size(tokens)), replace=False))
        sample = [torch.zeros(0, dim)]
        first = 0
        for part in parts:
            low, high = np.searchsorted(chosen, (first, first + len(part)))
            sample.append(torch.from_numpy(part[chosen[low:high] - first]).float())
            first += len(part)
        count = self.lists or centroids_for(tokens)
        codec = Codec.fit(torch.cat(sample), count, self.bits, seed=self.seed, rounds=self.rounds)
        tensors = {"centroids": codec.packed, "units": codec.units, "spread": codec.spread}
        writer.remove(CODEC)
        writer.append(CODEC, save(tensors | {"cells": codec.cells}))

    def open(self, files: Files | Writer, dim: int) -> "Codec":
        """Read the trained codec. Raises ValueError if its file is damaged."""
        try:
            if CODEC not in files.entries:
                raise ValueError("it is missing")
            tensors = load(files.array(CODEC, "uint8").tobytes())
            tensors["packed"] = tensors.pop("centroids")
            codec = Codec(**tensors, bits=self.bits, dim=dim, fine_bits=self.fine_bits)
            codec.check()
        except Exception as error:
            raise files.damaged(CODEC, error) from error
        return codec


class Centroids:
    """Centroids c [K, h], grouped in cells; cell n contains the centroids cells[n] to cells[n + 1] − 1."""

    def __init__(self, centroids: Float[Tensor, "K h"], cells: np.ndarray) -> None:
        self.centroids = centroids
        self.cells = cells

    def nearest(self, vectors: Float[Tensor, "t h"]) -> Int[Tensor, " t"]:
        """argmin_c ‖x − c‖² for each vector, over all centroids on a GPU, else in the nearest cells only."""
        if torch.cuda.is_available():
            centroids = self.centroids.cuda()
            return torch.cat([_nearest(p.cuda(), centroids).cpu() for p in vectors.split(CODED)])
        if len(self.cells) <= CELLS + 1:
            return torch.cat([_nearest(part, self.centroids) for part in vectors.split(CODED)])
        return torch.cat([self._in_cells(part) for part in vectors.split(CODED)])

    def _in_cells(self, vectors: Float[Tensor, "t h"]) -> Int[Tensor, " t"]:
        """argmin_c ‖x − c‖² over the `CELLS` nearest cells, with one matrix product per cell."""
        cells = self.cells.tolist()
        near_cells = (vectors @ self.coarse.T).sub_(self.coarse.square().sum(1) / 2)
        near_cells = near_cells.topk(CELLS, sorted=False).indices.flatten()
        ends = torch.bincount(near_cells, minlength=len(self.coarse)).cumsum(0).tolist()
        owners = near_cells.argsort(stable=True) // CELLS
        largest = vectors.new_full((len(vectors),), -torch.inf)
        nearest = torch.zeros(len(vectors)).long()
        for cell, (low, high) in enumerate(pairwise((0, *ends))):
            rows = owners[low:high]
            members = slice(cells[cell], cells[cell + 1])
            values, places = (vectors[rows] @ self.centroids[members].T).sub_(self.halves[members]).max(1)
            nearer = values > largest[rows]
            rows = rows[nearer]
            largest[rows] = values[nearer]
            nearest[rows] = places[nearer] + members.start
        return nearest

    @cached_property
    def halves(self) -> Float[Tensor, " K"]:
        """‖c‖² / 2 for each centroid."""
        return torch.linalg.vector_norm(self.centroids, dim=1).square() / 2

    @cached_property
    def coarse(self) -> Float[Tensor, "C h"]:
        """The mean of each cell's centroids."""
        return torch.stack([self.centroids[low:high].mean(0) for low, high in pairwise(self.cells.tolist())])


@dataclass(eq=False)
class Codec:
    """A trained codec.

    packed: int8 [K, h], centroids with h = `padded_width`; units [K]: each centroid's scale. spread: σ [h].
    cells: int64 [C + 1], see `Centroids`. bits, fine_bits: see `Residuals`.
    """

    packed: np.ndarray
    units: np.ndarray
    spread: np.ndarray
    cells: np.ndarray
    bits: int
    dim: int
    fine_bits: int = 0

    def __post_init__(self) -> None:
        fine = {FINE: self.fine_bits} if self.fine_bits else {}
        self.codes = {"": self.bits} | fine  # prefix of columns → bits
        self.centroids = torch.from_numpy(self.packed).float()
        self.centroids *= torch.from_numpy(self.units)[:, None]
        self.nearest = Centroids(self.centroids, self.cells).nearest

    def check(self) -> None:
        """Raise ValueError if the arrays do not fit vectors [dim], or have values that do not fit float16."""
        count = len(self.packed)
        width = padded_width(self.dim, self.bits)
        most = np.finfo(np.float16).max
        shapes = {"centroids": (count, width), "units": (count,), "spread": (width,)}
        kinds = {"centroids": np.int8, "units": np.float32, "spread": np.float32}
        for name, values in (("centroids", self.packed), ("units", self.units), ("spread", self.spread)):
            if values.shape != shapes[name] or values.dtype != kinds[name] or not count <= MOST_CENTROIDS:
                raise ValueError(f"{name} are {values.dtype} {values.shape}, not of {self.dim} dimensions")
        bounds = self.cells.dtype == np.int64 and self.cells.ndim == 1 and len(self.cells) > 1
        if not bounds or self.cells[0] or self.cells[-1] != count or (np.diff(self.cells) < 1).any():
            raise ValueError(f"cells do not divide {count} centroids")
        fits = (np.abs(self.units) <= most).all() and ((self.spread >= 0) & (self.spread <= most)).all()
        if not count or not fits:
            raise ValueError("it has no centroids, or units or spread that are not finite, or too large")

    @classmethod
    def fit(
        cls, sample: Float[Tensor, "s h"], count: int, bits: int, *, seed: int, rounds: int = 5
    ) -> "Codec":
        """Train `count` centroids on a sample with `rounds` of Lloyd's algorithm (FAISS), then compute σ.

        The result is deterministic for a given seed, sample and number of threads.
        """
        if not len(sample):
            sample = sample.new_zeros((1, sample.shape[1]))
        width = sample.shape[1]
        count = min(count, len(sample))
        sample = padded(sample, bits)
        if count <= FLAT:
            parts = [_kmeans(sample, count, rounds, seed)]
        else:
            coarse = _kmeans(sample, round(count**0.5), rounds, seed)
            cell_of = torch.cat([_nearest(part, coarse) for part in sample.split(CODED)])
            sizes = torch.bincount(cell_of, minlength=len(coarse)).numpy()
            # Divide the centroids among the cells in proportion to their sizes; round cumulative sums.
            ends = np.rint(np.cumsum(sizes) * (count / len(sample))).astype(np.int64)
            shares = np.maximum(np.diff(ends, prepend=0), sizes > 0)
            parts = [
                _kmeans(sample[cell_of == cell], int(shares[cell]), rounds, seed)
                for cell in np.flatnonzero(sizes).tolist()
            ]
        centres = torch.cat(parts)
        cells = np.cumsum([0, *map(len, parts)])
        for _ in range(REFINED if len(parts) > 1 else 0):  # across the edges of the cells
            assigned = Centroids(centres, cells).nearest(sample)
            count_of = torch.bincount(assigned, minlength=len(centres))[:, None]
            sums = torch.zeros_like(centres).index_add_(0, assigned, sample)
            centres = torch.where(count_of > 0, sums / count_of.clamp(min=1), centres)
        units = (centres.abs().amax(1) / 127).clamp(min=1e-12)
        packed = (centres / units[:, None]).round().to(torch.int8).numpy()
        codec = cls(packed, units.numpy(), np.zeros(sample.shape[1], np.float32), cells, bits, width)
        square = torch.zeros(sample.shape[1])
        for part in sample.split(CODED):
            square += codec._residuals(part, codec.nearest(part)).square().sum(0)
        variance = square[:width] / len(sample)
        mean = variance.mean() if variance.any() else torch.ones(())
        codec.spread[:width] = variance.clamp(min=NARROWEST**2 * mean).sqrt().numpy()
        return codec

    def columns(self, dim: int, fields: Sequence[str]) -> dict[str, DTypeLike]:
        width = padded_width(dim, self.bits)
        coded: dict[str, DTypeLike] = {"centroids": "uint16"}
        for prefix, bits in self.codes.items():
            coded |= {f"{prefix}codes": ("uint8", (width * bits // 8,)), f"{prefix}scales": "uint8"}
        return coded | {name: DTYPES[name] for name in fields if name != "vectors"}

    def encode(self, tokens: Rows) -> Rows:
        vectors = torch.from_numpy(tokens["vectors"]).float()
        return self.encode_vectors(vectors) | {n: rows for n, rows in tokens.items() if n != "vectors"}

    def decode(self, columns: Rows) -> Rows:
        """Decode vectors from their finest codes."""
        rest = dict(columns)
        coded = {name: rest.pop(f"{prefix}{name}") for prefix in self.codes for name in ("codes", "scales")}
        return {"vectors": self.decode_vectors(**coded, centroids=rest.pop("centroids")).numpy()} | rest

    def scanned(
        self, columns: Mapping[str, np.ndarray], offsets: np.ndarray, coarse: bool = False
    ) -> Scanned:
        """Return the kernels' input: the codes, which are scored without decoding.

        coarse: whether to score the codes of `bits` instead of the finest ones.
        """
        from paradigms.scoring import kernels

        prefix = "" if coarse else list(self.codes)[-1]
        bits = self.codes[prefix]
        codes = columns[f"{prefix}codes"]
        scales = columns[f"{prefix}scales"]
        coded = kernels.Stored(codes, bits, scales, levels(bits), columns["centroids"])
        return Scanned(coded, offsets, columns, Codes(self.spread, middle(bits), self.centroids.numpy()))

    def encode_vectors(self, vectors: Float[Tensor, "t h"]) -> Rows:
        """Encode vectors as codes (uint8 [t, h·b/8]), scales (uint8 [t]) and centroids (uint16 [t])."""
        from paradigms.store import loops

        vectors = padded(vectors, self.bits)
        nearest = self.nearest(vectors) if len(vectors) else torch.zeros(0).long()
        columns: Rows = {"centroids": nearest.numpy().astype(np.uint16)}
        for prefix, bits in self.codes.items():
            step = np.float32(STEPS[bits])
            codes = np.empty((len(vectors), len(self.spread) * bits // 8), np.uint8)
            scales = np.empty(len(vectors), np.float32)
            for part in (slice(first, first + CODED) for first in range(0, len(vectors), CODED)):
                residuals = self._residuals(vectors[part], nearest[part]).numpy()
                loops.encode(residuals, self.spread, bits, step, MANTISSA, codes[part], scales[part])
            with np.errstate(divide="ignore"):
                level = np.rint(np.log2(scales / step) * MANTISSA) + UNIT
            columns |= {f"{prefix}codes": codes, f"{prefix}scales": level.clip(0, 255).astype(np.uint8)}
        return columns

    def decode_vectors(
        self, codes: np.ndarray, scales: np.ndarray, centroids: np.ndarray
    ) -> Float[Tensor, "t h"]:
        """Decode vectors from codes, scales and centroids."""
        bits = codes.shape[1] * 8 // len(self.spread)
        parts = [codes >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        centred = torch.from_numpy(np.concatenate(parts, axis=1)).float() - middle(bits)
        scaled = torch.from_numpy(levels(bits)[scales])[:, None] * centred * torch.from_numpy(self.spread)
        existing = torch.from_numpy(centroids.astype(np.int64)).clamp(max=len(self.centroids) - 1)
        return (self.centroids[existing] + scaled)[:, : self.dim]

    def _residuals(self, vectors: Float[Tensor, "t h"], nearest: Int[Tensor, " t"]) -> Float[Tensor, "t h"]:
        return vectors.cpu() - self.centroids[nearest]


def middle(bits: int) -> float:
    """Return (2^b − 1) / 2, the code of a residual of 0."""
    return ((1 << bits) - 1) / 2


def levels(bits: int) -> np.ndarray:
    """Return the scale s that each byte represents, float32 [256]."""
    return LEVELS * np.float32(STEPS[bits])


def _kmeans(sample: Float[Tensor, "s h"], count: int, rounds: int, seed: int) -> Float[Tensor, "k h"]:
    import faiss  # slow to import, and only builds need it

    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": len(sample)}
    kmeans = faiss.Kmeans(sample.shape[1], min(count, len(sample)), niter=rounds, seed=seed, **limits)
    kmeans.train(sample.numpy())
    return torch.from_numpy(kmeans.centroids)


def _nearest(vectors: Float[Tensor, "t h"], centroids: Float[Tensor, "k h"]) -> Int[Tensor, " t"]:
    """argmin_c ‖x − c‖² over all centroids."""
    halves = centroids.square().sum(1) / 2
    parts = vectors.split(max(1, SIMILARITIES // len(halves)))
    return torch.cat([(part @ centroids.T).sub_(halves).argmax(1) for part in parts])


def padded_width(width: int, bits: int) -> int:
    """Round a width up so that codes fill whole VECTORs of bytes; kernels read one VECTOR at a time."""
    multiple = VECTOR * 8 // bits
    return -(-width // multiple) * multiple


def padded(vectors: Float[Tensor, "t h"], bits: int) -> Float[Tensor, "t p"]:
    """Pad vectors with zeros to `padded_width`, which does not change inner products."""
    more = padded_width(vectors.shape[-1], bits) - vectors.shape[-1]
    return torch.nn.functional.pad(vectors.float(), (0, more)) if more else vectors.float()
