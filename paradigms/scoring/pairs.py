"""rel from the pairs that align, without S and A in full.

Where A keeps few document tokens for each query token, S and A at those pairs are all that rel needs: [b, n,
r, j], with r the most document tokens that any query token is aligned to (1 for a maximum, k for top-k).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.align import ids_of
from paradigms.core import Interaction, Normalise, Tokens


class Pairs(NamedTuple):
    """S and A of the pairs that align, without salience, and which document tokens they are."""

    similarity: Float[Tensor, "b n r j"]  # 0 where A is 0
    alignment: Float[Tensor, "b n r j"]
    place: Int[Tensor, "b n r j"]  # i; where A is 0 any, or −1


def rel_of(pairs: Pairs, documents: Tokens, queries: Tokens, normalise: Normalise) -> Float[Tensor, "b n"]:
    """rel(d, q) of documents with axes [1, n, i, h]: A gets its salience, then Z."""
    S, A, place = pairs
    if documents.salience is not None:
        at = (place.clamp(min=0) + first_tokens(place, documents.mask.shape[-1])).flatten()
        # index_select: the backward pass of take adds in an order that changes from run to run.
        A = A * documents.salience.flatten().index_select(0, at).view_as(place)
    if queries.salience is not None:
        A = A * queries.salience[:, :, None, :]
    return Interaction(S, A, normalise(A, documents, queries)).rel


def maxima(documents: Tokens, queries: Tokens, equal_ids: bool) -> Pairs:
    """(maxᵢ ⟨dᵢ, qⱼ⟩, 1, argmaxᵢ) over the real tokens of each document, without gradients; r = 1.

    equal_ids: over those with the id of j. A is 0 where none can win. S is formed as [n, i, b·j] in one
    product, so that the maximum over i runs along contiguous memory. Documents have axes [1, n, i, h].
    """
    D, Q = documents.vectors[0].detach(), queries.vectors[:, 0].detach()
    (n, i), (b, j) = D.shape[:2], Q.shape[:2]
    S = (D.flatten(0, 1) @ Q.flatten(0, 1).T).view(n, i, b * j)
    S.masked_fill_(~documents.mask[0, :, :, None], -torch.inf)
    if equal_ids:
        d_ids, q_ids = ids_of(documents, queries)
        S.masked_fill_(d_ids[0, :, :, None] != q_ids.flatten(), -torch.inf)
    best, place = S.max(1)
    # NaN is aligned: a diverged model must not look healthy.
    aligned = (best != -torch.inf) & queries.mask.flatten()

    def shaped(t: Tensor) -> Tensor:
        return t.view(n, b, j).transpose(0, 1)[:, :, None]

    return Pairs(shaped(best.where(aligned, 0)), shaped(aligned.to(best.dtype)), shaped(place))


def first_tokens(place: Tensor, i: int) -> Tensor:
    """Where each document of [b, n, r, j] begins among the n·i tokens of all."""
    return torch.arange(place.shape[1], device=place.device).mul(i)[:, None, None]
