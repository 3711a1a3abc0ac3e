"""F_q(Q)ᵀ F_d(D) = Σᵢⱼ Sᵢⱼ Aᵢⱼ: one vector of fixed length for each text in place of its tokens.

Dhulipala et al. 2024 (arXiv:2405.19504): MUVERA's fixed-dimensional encodings. A repetition cuts the space by
random planes through 0 (SimHash). A query token adds its vector to the block of its bucket, and a document
puts into every block the mean of its tokens in that bucket, so that

    Aᵢⱼ = 1[bucket(i) = bucket(j)] / |bucket(j) ∩ d|, averaged over repetitions.

An empty bucket is filled with the mean of the tokens at the least Hamming distance. The paper takes one of
these tokens; with the mean, their order does not matter. Then Aᵢⱼ is 1[Hᵢⱼ = minᵢ' Hᵢ'ⱼ] divided by the
number of such tokens, so that A sums to 1 for each j, and rel is at most that of MaxSim. Two random
projections shorten the result and preserve inner products on average: `inner` projects each token's vector,
`final` the whole vector.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from paradigms.core import Tokens

MOST_PLANES = 12  # a document has a block for each of 2^planes buckets


def check_buckets(planes: int, repetitions: int) -> None:
    """Raise ValueError if the numbers do not define a partition of the space."""
    if not 0 <= planes <= MOST_PLANES or repetitions < 1:
        raise ValueError(
            f"buckets need 0 to {MOST_PLANES} planes and at least 1 repetition, got {planes} planes and "
            f"{repetitions} repetitions"
        )


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # cached, and used in training too
def random_planes(dim: int, planes: int, repetitions: int, seed: int) -> Float[Tensor, "r h k"]:
    """Normal vectors of planes, float32."""
    check_buckets(planes, repetitions)
    return torch.randn(repetitions, dim, planes, generator=torch.Generator().manual_seed(seed))


def buckets_of(vectors: Float[Tensor, "*x h"], normals: Float[Tensor, "h k"]) -> Int[Tensor, "*x"]:
    """The number of the bucket of each vector: bit p says on which side of plane p it lies."""
    sides = vectors.detach() @ normals.to(vectors) > 0
    return (sides.long() << torch.arange(normals.shape[1], device=vectors.device)).sum(-1)


def shares(
    buckets: Int[Tensor, "x n l"], mask: Bool[Tensor, "x n l"], planes: int, fill: bool, dtype: torch.dtype
) -> Float[Tensor, "x n l m"]:
    """The share of each real token in the mean that each of m = 2^planes blocks holds.

    fill: whether the tokens at the least Hamming distance stand in for a bucket without tokens.
    """
    everything = torch.arange(1 << planes, device=mask.device)
    distance = buckets[..., None] ^ everything
    ones = torch.tensor([n.bit_count() for n in range(1 << planes)], device=mask.device)
    distance = ones[distance].where(mask[..., None], planes + 1)
    least = distance.amin(2, keepdim=True) if fill and mask.shape[2] else torch.zeros_like(distance[:, :, :1])
    chosen = ((distance == least) & mask[..., None]).to(dtype)
    return chosen / chosen.sum(2, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class FixedEncoding:
    """F_q and F_d. planes: the number of planes in each of `repetitions` partitions, which gives 2^planes
    buckets. inner: dimensions to which token vectors are projected; 0 for no projection. final: dimensions of
    the whole vector; 0 keeps all repetitions · 2^planes · inner. fill: whether empty buckets are filled.
    seed: determines everything random."""

    planes: int = 5
    repetitions: int = 20
    inner: int = 16
    final: int = 0
    fill: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_buckets(self.planes, self.repetitions)
        if self.inner < 0 or self.final < 0:
            raise ValueError(f"inner and final are dimensions, got {self.inner} and {self.final}")

    def width(self, dim: int) -> int:
        """Dimensions of F for token vectors of `dim`."""
        return self.final or (self.repetitions << self.planes) * (self.inner or dim)

    def documents(self, tokens: Tokens, centre: Float[Tensor, " h"] | None = None) -> Float[Tensor, "n w"]:
        """F_d of documents [1, n, i, h]; zeros for one without tokens.

        centre: a vector that is subtracted from every token first. This changes all scores of a query by the
        same number if empty buckets are filled, and lets planes divide vectors that share a large mean.
        """
        vectors = _centred(_real(tokens), centre)

        def means(buckets: Tensor) -> Tensor:
            return shares(buckets, tokens.mask, self.planes, self.fill, vectors.dtype)

        return self._blocks(vectors, vectors, tokens, means)[0]

    def queries(self, tokens: Tokens, centre: Float[Tensor, " h"] | None = None) -> Float[Tensor, "b w"]:
        """F_q of queries [b, 1, j, h], divided by the number of repetitions. centre: as for `documents`."""
        vectors = _real(tokens)

        def sums(buckets: Tensor) -> Tensor:
            return one_hot(buckets, 1 << self.planes) * tokens.mask[..., None]

        return self._blocks(vectors, _centred(vectors, centre), tokens, sums)[:, 0] / self.repetitions

    def _blocks(
        self, values: Tensor, where: Tensor, tokens: Tokens, weights: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "x n w"]:
        """Σ over tokens of weight · salience · value, for each block of each repetition."""
        dim, (x, n, _) = values.shape[-1], tokens.mask.shape
        normals = random_planes(dim, self.planes, self.repetitions, self.seed)
        inner, slots, signs = _projections(self, dim)
        if tokens.salience is not None:
            values = values * tokens.salience.where(tokens.mask, 0)[..., None]
        encoded = values.new_zeros((x, n, self.width(dim)))
        size = (1 << self.planes) * (self.inner or dim)
        for r in range(self.repetitions):
            short = values @ inner[r].to(values) if self.inner else values
            weight = weights(buckets_of(where, normals[r])).to(values)
            block = (weight.transpose(-1, -2) @ short).flatten(2)
            part = slice(r * size, (r + 1) * size)
            if self.final:
                encoded.index_add_(2, slots[part].to(values.device), block * signs[part].to(values))
            else:
                encoded[..., part] = block
        return encoded


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # cached, and used in training too
def _projections(encoding: FixedEncoding, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """±1/√inner for each repetition [r, h, inner]; each dimension's slot in the final vector, and sign."""
    random = torch.Generator().manual_seed(encoding.seed + 1)

    def signs(*shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=random) * 2.0 - 1

    inner = signs(encoding.repetitions, dim, encoding.inner) / max(1, encoding.inner) ** 0.5
    whole = replace(encoding, final=0).width(dim) if encoding.final else 0
    return inner, torch.randint(0, max(1, encoding.final), (whole,), generator=random), signs(whole)


def _real(tokens: Tokens) -> Float[Tensor, "x n l h"]:
    """The vectors, with zeros in place of padding, which may hold any values."""
    return tokens.vectors.where(tokens.mask[..., None], 0)


def _centred(vectors: Tensor, centre: Tensor | None) -> Tensor:
    return vectors if centre is None else vectors - centre.to(vectors)
