"""F_q(Q)ᵀ F_d(D) = Σᵢⱼ Sᵢⱼ Aᵢⱼ: one vector of fixed length replaces the tokens of a text.

Dhulipala et al. 2024 (arXiv:2405.19504): MUVERA's fixed-dimensional encodings. Each repetition divides space
into buckets by random planes through the origin (SimHash). A query token adds its vector to the block of its
bucket. A document stores in each block the mean of its tokens in that bucket, so that

    Aᵢⱼ = 1[bucket(i) = bucket(j)] / |bucket(j) ∩ d|, averaged over repetitions.

An empty bucket is filled with the mean of the tokens at the smallest Hamming distance. The paper takes one of
these tokens; with the mean, the order of tokens does not matter. Then Aᵢⱼ is 1[Hᵢⱼ = minᵢ' Hᵢ'ⱼ] divided by
the number of such tokens. Hence, A sums to 1 for each j, and rel is at most the MaxSim score. Two random
projections shorten the result and preserve inner products on average: `inner` projects each token's vector,
and `final` projects the whole vector.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
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
    """F_q and F_d: fixed-dimensional encodings of queries and documents.

    planes: number of planes in each of `repetitions` partitions, which gives 2^planes buckets per partition.
    inner: number of dimensions to project token vectors to; 0 for no projection. final: number of dimensions
    of the whole vector; 0 keeps all repetitions · 2^planes · inner. fill: whether to fill empty buckets.
    seed: seed of the random planes and projections.
    """

    planes: Annotated[int, Range(0, MOST_PLANES)] = 5
    repetitions: Annotated[int, Range(1, 1 << 20)] = 20
    inner: Annotated[int, Range(0, 1 << 20)] = 16
    final: Annotated[int, Range(0, 1 << 30)] = 0
    fill: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)

    def width(self, dim: int) -> int:
        """Return the number of dimensions of F for token vectors of `dim` dimensions."""
        return self.final or (self.repetitions << self.planes) * (self.inner or dim)

    def documents(self, tokens: Tokens, centre: Float[Tensor, " h"] | None = None) -> Float[Tensor, "n w"]:
        """Compute F_d for documents [1, n, i, h]; for an empty document, F_d is all zeros.

        centre: vector to subtract from every token first, so that the planes separate vectors with a large
        common mean. If empty buckets are filled, this changes all scores of a query by the same number.
        """
        vectors = _centred(_real(tokens), centre)

        def means(buckets: Tensor) -> Tensor:
            return shares(buckets, tokens.mask, self.planes, self.fill, vectors.dtype)

        return self._blocks(vectors, vectors, tokens, means)[0]

    def queries(self, tokens: Tokens, centre: Float[Tensor, " h"] | None = None) -> Float[Tensor, "b w"]:
        """Compute F_q for queries [b, 1, j, h], divided by `repetitions`. centre: see `documents`."""
        vectors = _real(tokens)

        def sums(buckets: Tensor) -> Tensor:
            return one_hot(buckets, 1 << self.planes) * tokens.mask[..., None]

        return self._blocks(vectors, _centred(vectors, centre), tokens, sums)[:, 0] / self.repetitions

    def _blocks(
        self, values: Tensor, where: Tensor, tokens: Tokens, weights: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "x n w"]:
        """Sum weight · salience · value over tokens, for each repetition and block."""
        dim = values.shape[-1]
        x, n, _ = tokens.mask.shape
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
    """Return ±1/√inner projections [r, h, inner], and each dimension's slot and sign in the final vector."""
    random = torch.Generator().manual_seed(encoding.seed + 1)

    def signs(*shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=random) * 2.0 - 1

    inner = signs(encoding.repetitions, dim, encoding.inner) / max(1, encoding.inner) ** 0.5
    width = replace(encoding, final=0).width(dim) if encoding.final else 0
    slots = torch.randint(0, max(1, encoding.final), (width,), generator=random)
    return inner, slots, signs(width)


def _real(tokens: Tokens) -> Float[Tensor, "x n l h"]:
    """Return the vectors with padding, which may contain any values, set to 0."""
    return tokens.vectors.where(tokens.mask[..., None], 0)


def _centred(vectors: Tensor, centre: Tensor | None) -> Tensor:
    return vectors if centre is None else vectors - centre.to(vectors)
