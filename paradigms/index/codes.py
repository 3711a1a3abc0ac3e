"""x ≈ c + s · σ ⊙ (z − (2^b − 1) / 2): a token vector as its nearest centroid c and b bits per dimension.

c: centroids of k-means over tokens (ColBERTv2, Santhanam et al. 2022; PLAID), kept as bytes. z ∈ {0, …, 2^b −
1}^h: the residual x − c, quantised uniformly. σ ∈ R^h: its spread per dimension, one for the whole index. s:
a scale per token, one of 256 logarithmic steps. A query scores codes without decoding them: qᵀx ≈ qᵀc + s ·
((σ ⊙ q)ᵀ z − (2^b − 1)/2 · Σ σ ⊙ q).
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.scoring.machine import VECTOR

# The step of the uniform quantiser of 2^b levels with the least squared error on N(0, 1).
STEPS = {1: 1.5958, 2: 0.9957, 4: 0.3352, 8: 0.0308}
MANTISSA = 16  # levels of s per factor of two: 2.2% off at most, where a code of 4 bits is 10% off
UNIT = 96  # the level at which s is the quantiser's step: residuals of 2^-6 to 2^10 times σ have their scale
LEVELS = np.concatenate([[0], 2.0 ** ((np.arange(1, 256) - UNIT) / MANTISSA)]).astype(np.float32)
NARROWEST = 0.25  # σ of a dimension at least, in shares of the mean: one that hardly varies costs no accuracy
MOST_CENTROIDS = 1 << 16
PER_CENTROID = 32  # tokens of the sample that k-means sees
CELLS = 1 << 25  # similarities of tokens to centroids that are in memory at once


def centroids_for(tokens: int) -> int:
    """The power of two nearest to 4√tokens, so that lists grow as their number does; at most 65,536."""
    return int(min(MOST_CENTROIDS, max(1, tokens), 2 ** round(np.log2(4 * max(1, tokens) ** 0.5))))


class Codec:
    """The quantiser of one index: centroids int8 [K, h] in units [K], spread σ [h] (`padded_width`)."""

    def __init__(self, centroids: np.ndarray, units: np.ndarray, spread: np.ndarray, bits: int) -> None:
        self.bits, self.spread = bits, spread
        self.packed, self.units = centroids, units
        self.centroids: Float[Tensor, "K h"] = torch.from_numpy(centroids).float()
        self.centroids *= torch.from_numpy(units)[:, None]

    def check(self, dim: int) -> None:
        """ValueError unless this is a codec of vectors of `dim` numbers, whose values float16 could hold."""
        count, width, most = len(self.packed), padded_width(dim, self.bits), np.finfo(np.float16).max
        shapes = {"centroids": (count, width), "units": (count,), "spread": (width,)}
        kinds = {"centroids": np.int8, "units": np.float32, "spread": np.float32}
        for name, values in (("centroids", self.packed), ("units", self.units), ("spread", self.spread)):
            if values.shape != shapes[name] or values.dtype != kinds[name] or not count <= MOST_CENTROIDS:
                raise ValueError(f"{name} are {values.dtype} {values.shape}, not of {dim} dimensions")
        if (
            not count
            or not (np.abs(self.units) <= most).all()
            or not ((self.spread >= 0) & (self.spread <= most)).all()
        ):
            raise ValueError("no centroid, or units and spread that are not finite or too large")

    @classmethod
    def fit(
        cls, sample: Float[Tensor, "s h"], count: int, bits: int, *, seed: int, rounds: int = 5
    ) -> "Codec":
        """The quantiser for vectors like the sample: `rounds` of Lloyd's algorithm for `count` centroids.

        Deterministic given the seed, the sample and the number of threads.
        """
        if not len(sample):
            sample = sample.new_zeros((1, sample.shape[1]))
        width = sample.shape[1]
        sample = padded(sample, bits)
        centres = _lloyd(sample, min(count, len(sample)), rounds, seed).cpu()
        units = (centres.abs().amax(1) / 127).clamp(min=1e-12)
        packed = (centres / units[:, None]).round().to(torch.int8).numpy()
        codec = cls(packed, units.numpy(), np.zeros(sample.shape[1], np.float32), bits)
        square = torch.zeros(sample.shape[1])
        for part in sample.split(max(1, CELLS // sample.shape[1])):
            square += codec._residuals(part, codec.nearest(part)).square().sum(0)
        variance = square[:width] / len(sample)
        mean = variance.mean() if variance.any() else torch.ones(())
        codec.spread[:width] = variance.clamp(min=NARROWEST**2 * mean).sqrt().numpy()
        return codec

    def nearest(self, vectors: Float[Tensor, "t h"]) -> Int[Tensor, " t"]:
        """The centroid of each vector: argmin_c ‖x − c‖²."""
        return _nearest(vectors, self.centroids.to(vectors.device)).cpu()

    def encode(self, vectors: Float[Tensor, "t h"]) -> dict[str, np.ndarray]:
        """Of vectors their codes, uint8 [t, h·b/8], scales, uint8 [t], and centroids, uint16 [t]."""
        from paradigms.index import loops

        vectors = padded(vectors, self.bits)
        nearest = self.nearest(vectors)
        residuals = self._residuals(vectors, nearest).numpy()
        codes = np.empty((len(vectors), self.code_bytes), np.uint8)
        scales = np.empty(len(vectors), np.float32)
        loops.encode(residuals, self.spread, self.bits, self.step, MANTISSA, codes, scales)
        with np.errstate(divide="ignore"):
            level = np.rint(np.log2(scales / self.step) * MANTISSA) + UNIT
        return {
            "codes": codes,
            "scales": level.clip(0, 255).astype(np.uint8),
            "centroids": nearest.numpy().astype(np.uint16),
        }

    def decode(self, codes: np.ndarray, scales: np.ndarray, centroids: np.ndarray) -> Float[Tensor, "t h"]:
        """The vectors that codes stand for, of the padded width."""
        parts = [codes >> shift & (1 << self.bits) - 1 for shift in range(0, 8, self.bits)]
        centred = torch.from_numpy(np.concatenate(parts, axis=1)).float() - self.middle
        scaled = torch.from_numpy(self.levels[scales])[:, None] * centred * torch.from_numpy(self.spread)
        return self.centroids[torch.from_numpy(centroids.astype(np.int64))] + scaled

    @property
    def middle(self) -> float:
        """(2^b − 1) / 2, the code of a residual of 0."""
        return ((1 << self.bits) - 1) / 2

    @property
    def step(self) -> np.float32:
        """s of a residual that is as large as σ says, in 2^b levels."""
        return np.float32(STEPS[self.bits])

    @property
    def levels(self) -> np.ndarray:
        """s of every byte that names one: float32 [256]."""
        return LEVELS * self.step

    @property
    def code_bytes(self) -> int:
        return len(self.spread) * self.bits // 8

    def _residuals(self, vectors: Float[Tensor, "t h"], nearest: Int[Tensor, " t"]) -> Float[Tensor, "t h"]:
        return vectors.cpu() - self.centroids[nearest]


def padded_width(width: int, bits: int) -> int:
    """The width that codes have in whole VECTORs of bytes, which the kernels read at a time."""
    whole = VECTOR * 8 // bits
    return -(-width // whole) * whole


def padded(vectors: Float[Tensor, "t h"], bits: int) -> Float[Tensor, "t p"]:
    """Vectors with zeros up to the `padded_width`, which changes no inner product."""
    more = padded_width(vectors.shape[-1], bits) - vectors.shape[-1]
    return torch.nn.functional.pad(vectors.float(), (0, more)) if more else vectors.float()


def _lloyd(sample: Float[Tensor, "s h"], count: int, rounds: int, seed: int) -> Float[Tensor, "K h"]:
    """Centroids begun at random vectors of the sample; one without vectors begins anew at another."""
    draw = torch.Generator().manual_seed(seed)
    centres = sample[torch.randperm(len(sample), generator=draw)[:count]].clone()
    for _ in range(rounds):
        nearest = _nearest(sample, centres)
        total = torch.zeros_like(centres).index_add_(0, nearest, sample)
        members = nearest.bincount(minlength=count)[:, None]
        others = sample[torch.randint(len(sample), (count,), generator=draw)]
        centres = torch.where(members > 0, total / members.clamp(min=1), others)
    return centres


def _nearest(vectors: Float[Tensor, "t h"], centres: Float[Tensor, "K h"]) -> Int[Tensor, " t"]:
    halves = centres.square().sum(1) / 2
    step = max(1, CELLS // len(centres))
    return torch.cat([(part @ centres.T).sub_(halves).argmax(1) for part in vectors.split(step)])
