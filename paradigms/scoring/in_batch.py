"""rel of every query against every document of a training batch, without S in full."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch.utils.checkpoint import checkpoint

from paradigms.align import as_maximum
from paradigms.core import Align, Interaction, Normalise, Tokens, rel, similarity

CELLS = {"cpu": 1 << 20}  # entries of S at once: what a processor's cache holds with its temporaries
MANY_CELLS = 1 << 24  # elsewhere: 64 MB, so that launching a chunk costs nothing beside computing it
FUSED = {"cuda"}  # devices on which the kernels of train.fused find maxima, where Triton is installed


def in_batch_rel(
    documents: Tokens, queries: Tokens, align: Align, normalise: Normalise, cells: int | None = None
) -> Float[Tensor, "b n"]:
    """`core.rel(documents, queries, align, normalise)`, equal in values and gradients, in bounded memory.

    Documents have x = 1. S is formed for a few queries at a time, at most `cells` of its entries at once (one
    query's at least). What is kept for the backward pass depends on A:

    - a hard alignment (no gradient through A) with few pairs leaves their places and similarities:
      [b, n, r, j] with r the most document tokens that any query token aligns to (1 for a max, k for top-k).
      The gradients of D and Q are gathered from those alone, never through S;
    - one that is soft, or aligns more than a quarter of a document to one query token, is recomputed chunk by
      chunk in the backward pass.

    Chunks are slices of queries, so alignments that read the whole pool (XTR) see the whole pool.

    On a GPU with Triton a max (`Alignment.maximum`) takes the first of these ways without S, without chunks
    (see `train.fused`), and its rel is float32 whatever the vectors are. XTR's max does not: which of the
    maxima count is a matter of rank among all similarities of the pool.

    Autocast, which is for the products of layers, changes nothing here, whichever way is taken: similarities
    are of the vectors in their own type, float32 in training. In bfloat16 a cosine of 0.9 would have steps of
    0.004, which at τ = 0.02 are a fifth in the softmax.
    """
    if documents.mask.shape[0] != 1:
        raise ValueError(f"in-batch documents have axes [1, n, i, h], got x = {documents.mask.shape[0]}")
    with torch.autocast(documents.vectors.device.type, enabled=False):
        if not (documents.mask.numel() and queries.mask.numel()):
            return rel(documents, queries, align, normalise)
        return _rel(documents, queries, align, normalise, cells)


def _rel(
    documents: Tokens, queries: Tokens, align: Align, normalise: Normalise, cells: int | None
) -> Float[Tensor, "b n"]:
    pairs = _fused_pairs(documents, queries, align)
    if pairs is None:
        b, (n, i), j = queries.mask.shape[0], documents.mask.shape[1:], queries.mask.shape[-1]
        cells = CELLS.get(documents.vectors.device.type, MANY_CELLS) if cells is None else cells
        rows = max(1, cells // max(1, n * i * j))
        chunks = [queries[start : start + rows] for start in range(0, b, rows)]
        if not _soft(documents, queries, align):
            pairs = _chunked_pairs(documents, queries, chunks, align)
        if pairs is None:
            return _recomputed(documents, chunks, align, normalise)
    S, A, place = pairs
    if documents.salience is not None:
        at = (place.clamp(min=0) + _first_tokens(place, documents.mask.shape[-1])).flatten()
        # index_select: the backward pass of take adds in an order that changes from run to run.
        A = A * documents.salience.flatten().index_select(0, at).view_as(place)
    if queries.salience is not None:
        A = A * queries.salience[:, :, None, :]
    return Interaction(S, A, normalise(A, documents, queries)).rel


# S, A and the document tokens i of the pairs that align, each [b, n, r, j]; −1 may stand where A is 0
AlignedPairs: TypeAlias = tuple[Float[Tensor, "b n r j"], Float[Tensor, "b n r j"], Int[Tensor, "b n r j"]]


def _fused_pairs(documents: Tokens, queries: Tokens, align: Align) -> AlignedPairs | None:
    """The pairs of a max, found on the GPU without S; None where the kernels do not apply."""
    known = as_maximum(align) if documents.vectors.device.type in FUSED and find_spec("triton") else None
    if known is None:
        return None
    from paradigms.scoring import fused

    if not (fused.supports(documents.vectors) and fused.supports(queries.vectors)):
        return None
    if documents.vectors.dtype != queries.vectors.dtype:
        return None
    S, place = fused.best_tokens(documents, queries, equal_ids="ids" in known.reads)
    S, place = S[:, :, None], place[:, :, None]
    return S, (place >= 0).to(S.dtype), place


def _chunked_pairs(
    documents: Tokens, queries: Tokens, chunks: list[Tokens], align: Align
) -> AlignedPairs | None:
    """The pairs of a hard alignment, S formed chunk by chunk; None where they are many."""
    places, weights, similarities = [], [], []
    for chunk in chunks:
        with torch.no_grad():
            S, valid = similarity(documents, chunk)
            place, weight = _compact(align(S, valid, documents, chunk).where(valid, 0))
        if place.shape[-2] > max(1, documents.mask.shape[-1] // 4):
            return None
        places.append(place)
        weights.append(weight)
        similarities.append(S.gather(-2, place))
    r = max(p.shape[-2] for p in places)
    place = torch.cat([_pad(p, r) for p in places])
    A, S = torch.cat([_pad(w, r) for w in weights]), torch.cat([_pad(s, r) for s in similarities])
    return _PairSimilarity.apply(documents.vectors, queries.vectors, S, place), A, place


def _soft(documents: Tokens, queries: Tokens, align: Align) -> bool:
    """Whether a gradient flows through A, found out on one query and one document."""
    document, query = documents.map(lambda t: t[:, :1].detach()), queries[:1].map(torch.detach)
    S, valid = similarity(document, query)
    with torch.enable_grad():
        return align(S.clone().requires_grad_(), valid, document, query).requires_grad


def _recomputed(documents: Tokens, chunks: list[Tokens], align: Align, normalise: Normalise) -> Tensor:
    return torch.cat(
        [
            checkpoint(rel, documents, chunk, align, normalise, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
    )


def _compact(A: Float[Tensor, "b n i j"]) -> tuple[Tensor, Float[Tensor, "b n r j"]]:
    """The nonzero entries of each column of A, moved together: their rows i and their values."""
    r = max(1, int((A != 0).sum(-2).max())) if A.numel() else 1
    weight, place = A.max(-2, keepdim=True) if r == 1 else A.topk(r, dim=-2)
    return place, weight


def _pad(t: Tensor, r: int) -> Tensor:
    return torch.nn.functional.pad(t, (0, 0, 0, r - t.shape[-2]))


def _first_tokens(place: Tensor, i: int) -> Tensor:
    """Where each document of [b, n, r, j] begins among the n·i tokens of all."""
    return torch.arange(place.shape[1], device=place.device).mul(i)[:, None, None]


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
        bags = (place + _first_tokens(place, i)).permute(0, 3, 1, 2).reshape(b * j, n * r)
        weights = gradient.to(D.dtype).permute(0, 3, 1, 2).reshape(b * j, n * r)
        with torch.enable_grad():
            table = D.detach().reshape(n * i, h).requires_grad_()
            out = embedding_bag(bags, table, per_sample_weights=weights, mode="sum")
        (scattered,) = torch.autograd.grad(out, table, Q.reshape(b * j, h).to(out.dtype))
        return scattered.view_as(D), out.detach().view_as(Q), None, None
