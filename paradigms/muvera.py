"""F_q(Q)ᵀ F_d(D) = Σᵢⱼ Sᵢⱼ Aᵢⱼ: one vector of fixed length replaces the tokens of a text.

Dhulipala et al. 2024 (arXiv:2405.19504): MUVERA's fixed-dimensional encodings. Each repetition divides space
into buckets by random planes through the origin (SimHash). A query token adds its vector to the block of its
bucket. A document stores in each block the mean of its tokens in that bucket, so that

    Aᵢⱼ = 1[bucket(i) = bucket(j)] / |bucket(j) ∩ d|, averaged over repetitions.

An empty bucket is filled with the mean of the tokens at the smallest Hamming distance. The paper takes one of
these tokens; with the mean, the order of tokens does not matter. Then Aᵢⱼ is 1[Hᵢⱼ = minᵢ' Hᵢ'ⱼ] divided by
the number of such tokens. Hence, A sums to 1 for each j, and rel is at most the MaxSim score. The paper's
random projections, which shorten F and preserve inner products on average, are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from paradigms.core import Tokens
from paradigms.io.checks import Range, check_types

MOST_PLANES = 12  # a document has a block for each of 2^planes buckets


def random_planes(dim: int, planes: int, repetitions: int, seed: int) -> Float[Tensor, "r h k"]:
    """Draw the normal vectors of random planes, in float32."""
    return torch.randn(repetitions, dim, planes, generator=torch.Generator().manual_seed(seed))


def buckets_of(vectors: Float[Tensor, "*x h"], normals: Float[Tensor, "h k"]) -> Int[Tensor, "*x"]:
    """Return the bucket number of each vector: bit p says on which side of plane p it lies."""
    sides = vectors.detach() @ normals.to(vectors) > 0
    return (sides.long() << torch.arange(normals.shape[1], device=vectors.device)).sum(-1)


def side_counts(planes: int, device: torch.device) -> Int[Tensor, " m"]:
    """Count the 1 bits of 0 … 2^planes − 1: of b XOR b', the planes that separate buckets b and b'."""
    return torch.tensor([n.bit_count() for n in range(1 << planes)], device=device)


def shares(
    buckets: Int[Tensor, "x n l"], mask: Bool[Tensor, "x n l"], planes: int, fill: bool, dtype: torch.dtype
) -> Float[Tensor, "x n l m"]:
    """Return the weight of each real token in the mean of each of the m = 2^planes blocks.

    fill: whether an empty bucket uses the tokens at the smallest Hamming distance.
    """
    everything = torch.arange(1 << planes, device=mask.device)
    distance = buckets[..., None] ^ everything
    distance = side_counts(planes, mask.device)[distance].where(mask[..., None], planes + 1)
    least = distance.amin(2, keepdim=True) if fill and mask.shape[2] else torch.zeros_like(distance[:, :, :1])
    chosen = ((distance == least) & mask[..., None]).to(dtype)
    return chosen / chosen.sum(2, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class FixedEncoding:
    """F_q and F_d, of w = repetitions · 2^planes · h numbers, whose inner product is rel under `Buckets`.

    planes: number of planes in each of `repetitions` partitions, which gives 2^planes buckets per partition.
    fill: whether to fill empty buckets. seed: seed of the random planes.
    """

    planes: Annotated[int, Range(0, MOST_PLANES)] = 5
    repetitions: Annotated[int, Range(1, 1 << 20)] = 20
    fill: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)

    def documents(self, tokens: Tokens) -> Float[Tensor, "n w"]:
        """Compute F_d for documents [1, n, i, h]; for an empty document, F_d is all zeros."""
        dtype = tokens.vectors.dtype
        return self._blocks(tokens, lambda b: shares(b, tokens.mask, self.planes, self.fill, dtype))[0]

    def queries(self, tokens: Tokens) -> Float[Tensor, "b w"]:
        """Compute F_q for queries [b, 1, j, h], divided by `repetitions`."""
        sums = self._blocks(tokens, lambda b: one_hot(b, 1 << self.planes) * tokens.mask[..., None])
        return sums[:, 0] / self.repetitions

    def _blocks(self, tokens: Tokens, weights: Callable[[Tensor], Tensor]) -> Float[Tensor, "x n w"]:
        """Sum weight · salience · vector over tokens, for each repetition and block.

        weights: the weight [x, n, l, m] of each token in each block, given the tokens' buckets.
        """
        vectors = tokens.vectors.where(tokens.mask[..., None], 0)  # padding may contain any values
        values = vectors
        if tokens.salience is not None:
            values = values * tokens.salience.where(tokens.mask, 0)[..., None]
        planes = random_planes(vectors.shape[-1], self.planes, self.repetitions, self.seed)
        blocks = [weights(buckets_of(vectors, normals)).to(values).mT @ values for normals in planes]
        return torch.cat(blocks, 2).flatten(2)
