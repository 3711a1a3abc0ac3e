"""rel of every query against every document of a training batch, without S in full."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch.utils.checkpoint import checkpoint

from paradigms.core import Align, Interaction, Normalise, Tokens, rel, salience, similarity


def in_batch_rel(
    documents: Tokens, queries: Tokens, align: Align, normalise: Normalise, cells: int = 1 << 22
) -> Float[Tensor, "b n"]:
    """`core.rel(documents, queries, align, normalise)`, equal in values and gradients, in bounded memory.

    Documents have x = 1. S is formed for a few queries at a time, at most `cells` of its entries at once
    (4 bytes each). What is kept for the backward pass depends on A:

    - a hard alignment (no gradient through A) leaves few pairs: their places and similarities are kept,
      [b, n, r, j] with r the most document tokens that any query token aligns to (1 for a max, k for
      top-k), and the gradients of D and Q are gathered from those alone, never through S;
    - a soft one is recomputed chunk by chunk in the backward pass.

    Chunks are slices of queries, so alignments that read the whole pool (XTR) see the whole pool.
    """
    b, (n, i) = queries.mask.shape[0], documents.mask.shape[1:]
    if documents.mask.shape[0] != 1:
        raise ValueError(f"in-batch documents have axes [1, n, i, h], got x = {documents.mask.shape[0]}")
    rows = max(1, cells // max(1, n * i * queries.mask.shape[-1]))
    chunks = [queries[start : start + rows] for start in range(0, b, rows)]
    places, weights, similarities = [], [], []
    for chunk in chunks:
        with torch.no_grad():
            S, valid = similarity(documents, chunk)
        A = align(S.requires_grad_(), valid, documents, chunk)
        if A.requires_grad:
            return torch.cat([_recomputed(documents, c, align, normalise) for c in chunks])
        place, weight = _compact(A.where(valid, 0))
        places.append(place)
        weights.append(weight)
        similarities.append(S.detach().gather(-2, place))
    r = max((p.shape[-2] for p in places), default=1)
    place = torch.cat([_pad(p, r) for p in places])
    A, S = torch.cat([_pad(w, r) for w in weights]), torch.cat([_pad(s, r) for s in similarities])
    S = _PairSimilarity.apply(documents.vectors, queries.vectors, S, place)
    A = A * _salience_at(place, documents, queries)
    return Interaction(S, A, normalise(A, documents, queries)).rel


def _recomputed(documents: Tokens, queries: Tokens, align: Align, normalise: Normalise) -> Tensor:
    scores = checkpoint(rel, documents, queries, align, normalise, use_reentrant=False)
    assert isinstance(scores, Tensor)
    return scores


def _compact(A: Float[Tensor, "b n i j"]) -> tuple[Tensor, Float[Tensor, "b n r j"]]:
    """The nonzero entries of each column of A, moved together: their rows i and their values."""
    r = max(1, int((A != 0).sum(-2).max())) if A.numel() else 1
    weight, place = A.max(-2, keepdim=True) if r == 1 else A.topk(r, dim=-2)
    return place, weight


def _pad(t: Tensor, r: int) -> Tensor:
    return torch.nn.functional.pad(t, (0, 0, 0, r - t.shape[-2]))


def _salience_at(place: Tensor, documents: Tokens, queries: Tokens) -> Tensor | float:
    unary = salience(documents, queries)
    if unary is None:
        return 1.0
    d, q = documents.salience, queries.salience
    u = torch.ones((), device=place.device)
    if d is not None:
        u = d[..., None].expand(place.shape[0], -1, -1, place.shape[-1]).gather(-2, place)
    return u if q is None else u * q[:, :, None, :]


class _PairSimilarity(torch.autograd.Function):
    """(D, Q) → Sᵢⱼ at given pairs. The values come along; the backward pass is two sparse products.

    With W ∈ R^{(n·i)×(b·j)} holding the incoming gradient at the pairs: ∂D = W Q and ∂Q = Wᵀ D. Both are
    one weighted embedding bag: bag (b, j) sums the rows of D at its pairs, and its own gradient scatters
    the rows of Q back to them.
    """

    @staticmethod
    def forward(ctx, D: Tensor, Q: Tensor, S: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(D, Q, place.int())
        return S.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        D, Q, place = ctx.saved_tensors
        (n, i, h), (b, _, r, j) = D.shape[1:], place.shape
        first = torch.arange(n, device=D.device).mul(i)[:, None, None]
        bags = (place + first).permute(0, 3, 1, 2).reshape(b * j, n * r)
        weights = gradient.to(D.dtype).permute(0, 3, 1, 2).reshape(b * j, n * r)
        with torch.enable_grad():
            table = D.detach().reshape(n * i, h).requires_grad_()
            out = embedding_bag(bags, table, per_sample_weights=weights, mode="sum")
        (scattered,) = torch.autograd.grad(out, table, Q.reshape(b * j, h).to(out.dtype))
        return scattered.view_as(D), out.detach().view_as(Q), None, None
