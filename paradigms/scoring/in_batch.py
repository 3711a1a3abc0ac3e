"""Compute rel for every query and document in a training batch, without forming all of S."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch.utils.checkpoint import checkpoint

from paradigms.align import Alignment, PoolTopK, ids_of, one
from paradigms.core import Align, Interaction, Normalise, Tokens, check_sides, rel, similarity


class AlignedPairs(NamedTuple):
    """Each query token's entry of S and A, without salience, and the position of its document token."""

    similarity: Float[Tensor, "b n j"]  # arbitrary where A is 0
    alignment: Float[Tensor, "b n j"]
    place: Int[Tensor, "b n j"]  # i; arbitrary, or −1, where A is 0


def rel_of(
    pairs: AlignedPairs, documents: Tokens, queries: Tokens, normalise: Normalise
) -> Float[Tensor, "b n"]:
    """Compute rel(d, q) from pairs: multiply A by salience, then divide by Z. documents: [1, n, i, h]."""
    S, A, place = pairs
    if documents.salience is not None:
        at = (place.clamp(min=0) + first_tokens(place, documents.mask.shape[-1])).flatten()
        # index_select, because the backward pass of take adds in an order that varies from run to run.
        A = A * documents.salience.flatten().index_select(0, at).view_as(place)
    if queries.salience is not None:
        A = A * queries.salience
    A = A[:, :, None]
    return Interaction(S[:, :, None], A, normalise(A, documents, queries)).rel


def maxima(documents: Tokens, queries: Tokens, equal_ids: bool) -> AlignedPairs:
    """Compute (maxᵢ ⟨dᵢ, qⱼ⟩, 1, argmaxᵢ) over each document's real tokens, without gradients.

    equal_ids: consider only document tokens whose id equals that of query token j; A is 0 if there are none.
    S is one product [n, i, b·j], so that the maximum over i reads contiguous memory. documents:
    [1, n, i, h].
    """
    D = documents.vectors[0].detach()
    Q = queries.vectors[:, 0].detach()
    n, i = D.shape[:2]
    b, j = Q.shape[:2]
    S = (D.flatten(0, 1) @ Q.flatten(0, 1).T).view(n, i, b * j)
    S.masked_fill_(~documents.mask[0, :, :, None], -torch.inf)
    if equal_ids:
        d_ids, q_ids = ids_of(documents, queries)
        S.masked_fill_(d_ids[0, :, :, None] != q_ids.flatten(), -torch.inf)
    values, place = S.max(1)
    # NaN is aligned: a diverged model must not look healthy.
    aligned = (values != -torch.inf) & queries.mask.flatten()

    def shaped(t: Tensor) -> Tensor:
        return t.view(n, b, j).transpose(0, 1)

    A = aligned.to(values.dtype)
    return AlignedPairs(shaped(values.where(aligned, 0)), shaped(A), shaped(place.int()))


def first_tokens(place: Tensor, i: int) -> Tensor:
    """Return the place of each document's first token [n, 1] among all n·i tokens."""
    n = place.shape[1]
    dtype = torch.int32 if n * i < 1 << 31 else torch.int64
    return torch.arange(n, device=place.device, dtype=dtype).mul(i)[:, None]


CELLS = {"cpu": 1 << 20}  # entries of S at once, which fit in a CPU's cache with temporaries
MANY_CELLS = 1 << 24  # on other devices, 64 MB: computing a chunk then takes longer than launching it
BOUND = 1 << 30  # bytes for what `in_batch_rel` forms and keeps, besides vectors and their gradients
PAIR_BYTES = 36  # of float32 in a forward and backward pass (25 to 28), and a pair's share of a tile
FUSED = {"cuda"}  # devices on which Triton kernels find maxima, if they are faster


def in_batch_rel(
    documents: Tokens,
    queries: Tokens,
    align: Align,
    normalise: Normalise,
    cells: int | None = None,
    bound: int = BOUND,
) -> Float[Tensor, "b n"]:
    """Compute `core.rel` in bounded memory, with equal values and gradients.

    Documents have x = 1. S is formed in tiles of at most `cells` entries: of queries and documents or, if A
    depends on the pool, of queries alone, at least one (and of query tokens, for `PoolTopK`). For the
    backward pass, an alignment with at most one document token per query token (`Alignment.kept`, `PoolTopK`)
    saves these tokens' places and similarities [b, n, j]. If these would take more than `bound` bytes, the
    queries are cut into pieces, and a piece is computed again in the backward pass. So is, tile by tile, any
    other alignment. On a device in `FUSED`, a maximum needs neither S nor tiles, and rel is float32. For
    weights of terms (SPLADE, uniCOIL: one number per token, matched by ids), rel is one matrix product
    (`_product_of_terms`).

    Autocast has no effect: similarities have the dtype of the vectors, float32 in training. Near 0.9,
    bfloat16 cosines have steps of 0.004; at τ = 0.02 one step changes a softmax weight by a fifth.
    """
    check_sides(documents, queries)
    if documents.mask.shape[0] != 1:
        raise ValueError(f"in-batch documents have axes [1, n, i, h], got x = {documents.mask.shape[0]}")
    with torch.autocast(documents.vectors.device.type, enabled=False):
        if not (documents.mask.numel() and queries.mask.numel()):
            return rel(documents, queries, align, normalise)
        return _rel(documents, queries, align, normalise, cells, bound)


def _rel(
    documents: Tokens, queries: Tokens, align: Align, normalise: Normalise, cells: int | None, bound: int
) -> Float[Tensor, "b n"]:
    if isinstance(align, Alignment):
        align, queries = align.with_salience(queries)
    n, i = documents.mask.shape[1:]
    b, _, j = queries.mask.shape
    maximum = align if isinstance(align, Alignment) and align.is_maximum(i) else None
    matches = maximum is not None and "ids" in maximum.reads and normalise is one
    if matches and _are_weights(documents, queries):
        return _product_of_terms(documents, queries)
    kept = align.kept(torch.tensor(i)) if isinstance(align, Alignment) else None
    single = (kept is not None and int(kept) <= 1) or isinstance(align, PoolTopK)
    cells = CELLS.get(documents.vectors.device.type, MANY_CELLS) if cells is None else cells
    piece = partial(_rel_of_piece, documents, align=align, normalise=normalise, single=single, cells=cells)
    query_bytes = n * j * PAIR_BYTES * documents.vectors.element_size() // 4
    rows = max(1, bound // query_bytes)
    if not single or rows >= b:
        return piece(queries)
    again = partial(checkpoint, piece, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([again(queries[start : start + rows]) for start in range(0, b, rows)])


def _rel_of_piece(
    documents: Tokens,
    queries: Tokens,
    align: Align,
    normalise: Normalise,
    single: bool,
    cells: int,
) -> Float[Tensor, "b n"]:
    """Compute rel. single: whether A aligns each query token with at most one token of each document."""
    if isinstance(align, Alignment) and align.is_maximum() and _fits_fused(documents, queries):
        from paradigms.scoring import fused

        values, place = fused.best_tokens(documents, queries, "ids" in align.reads)
        pairs = AlignedPairs(values, (place >= 0).to(values.dtype), place)
        return rel_of(pairs, documents, queries, normalise)
    n, i = documents.mask.shape[1:]
    b, _, j = queries.mask.shape
    rows = max(1, cells // (n * i * j))
    chunks = [queries[start : start + rows] for start in range(0, b, rows)]
    pool = not isinstance(align, Alignment) or "pool" in align.reads
    size = n if pool or rows > 1 else max(1, cells // (i * j))
    slices = [slice(start, start + size) for start in range(0, n, size)]
    parts = [documents.map(lambda t, part=part: t[:, part]) for part in slices]  # type: ignore[misc]
    if single:
        tokens = max(1, cells // (n * i)) if isinstance(align, PoolTopK) else j
        return rel_of(_pairs(documents, queries, parts, chunks, tokens, align), documents, queries, normalise)
    again = partial(checkpoint, rel, use_reentrant=False, preserve_rng_state=False)
    scores = [torch.cat([again(part, chunk, align, normalise) for part in parts], 1) for chunk in chunks]
    return torch.cat(scores)


def _are_weights(*sides: Tokens) -> bool:
    """Return whether every token is a single number ≥ 0, without salience."""
    single = all(side.vectors.shape[-1] == 1 and side.salience is None for side in sides)
    return single and all(bool((side.vectors >= 0).all()) for side in sides)


def _product_of_terms(documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Compute Σ_t w_t(d) · w_t(q).

    If a term t is repeated, w_t(d) is its largest weight in d, and w_t(q) is the sum of its weights in q. The
    result equals rel with equal ids, because maxᵢ dᵢ·qⱼ = qⱼ · maxᵢ dᵢ for weights ≥ 0.
    """
    d_ids, q_ids = ids_of(documents, queries)
    low = torch.minimum(d_ids.amin(), q_ids.amin())
    terms = int(torch.maximum(d_ids.amax(), q_ids.amax()) - low) + 1
    D, Q = (t.vectors.squeeze(-1).where(t.mask, 0).flatten(0, 1) for t in (documents, queries))
    d_ids, q_ids = ((ids - low).flatten(0, 1) for ids in (d_ids, q_ids))
    in_documents = D.new_zeros(len(D), terms).scatter_reduce(1, d_ids, D, "amax")
    return Q.new_zeros(len(Q), terms).scatter_add(1, q_ids, Q) @ in_documents.T


def _fits_fused(documents: Tokens, queries: Tokens) -> bool:
    """Return whether the Triton kernels are enabled and installed, and support these vectors."""
    D = documents.vectors
    Q = queries.vectors
    if D.device.type not in FUSED or D.dtype != Q.dtype or not find_spec("triton"):
        return False
    from paradigms.scoring import fused

    return fused.supports(D)


def _pairs(
    documents: Tokens,
    queries: Tokens,
    parts: Sequence[Tokens],
    chunks: Sequence[Tokens],
    tokens: int,
    align: Align,
) -> AlignedPairs:
    """Find the aligned pairs; S is formed for a part of the documents and a chunk of the queries.

    tokens: query tokens at once.
    """
    maximum = align if isinstance(align, Alignment) and align.is_maximum() else None
    rows = []
    with torch.no_grad():
        for chunk in chunks:
            row = []
            for part in parts:
                columns = []
                for start in range(0, chunk.mask.shape[-1], tokens):
                    query = chunk.map(lambda t, first=start: t[:, :, first : first + tokens])  # type: ignore[misc]
                    if maximum is not None:
                        columns.append(maxima(part, query, "ids" in maximum.reads))
                        continue
                    S, valid = similarity(part, query)
                    A = align(S, valid, part, query).where(valid, 0)
                    A, place = A.masked_fill(S.isnan() & valid, torch.nan).max(-2)  # NaN is not hidden
                    S = S.gather(-2, place[:, :, None])[:, :, 0]
                    columns.append(AlignedPairs(S, A, place.int()))
                row.append(_joined(columns, -1))
            rows.append(_joined(row, 1))
    S, A, place = _joined(rows, 0)
    if torch.is_grad_enabled():
        S = _PairSimilarity.apply(documents.vectors, queries.vectors, S, place)
    return AlignedPairs(S, A, place)


def _joined(parts: Sequence[AlignedPairs], axis: int) -> AlignedPairs:
    if len(parts) == 1:
        return parts[0]
    return AlignedPairs(*(torch.cat(tensors, axis) for tensors in zip(*parts, strict=True)))


class _PairSimilarity(torch.autograd.Function):
    """Map (D, Q) to the known Sᵢⱼ of the pairs at `place`; the backward pass is two sparse products.

    If W ∈ R^{(n·i)×(b·j)} is the incoming gradient at the pairs, then ∂D = W Q and ∂Q = Wᵀ D: a weighted
    embedding bag and its gradient.
    """

    @staticmethod
    def forward(ctx, D: Tensor, Q: Tensor, S: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(D, Q, place)
        return S.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        D, Q, place = ctx.saved_tensors
        n, i, h = D.shape[1:]
        b, _, j = place.shape
        bags = (place + first_tokens(place, i)).transpose(1, 2).reshape(b * j, n)
        weights = gradient.to(D.dtype).transpose(1, 2).reshape(b * j, n)
        with torch.enable_grad():
            table = D.detach().reshape(n * i, h).requires_grad_()
            out = embedding_bag(bags, table, per_sample_weights=weights, mode="sum")
        (scattered,) = torch.autograd.grad(out, table, Q.reshape(b * j, h).to(out.dtype))
        # Without a base, autograd adds the gradients of pieces in place.
        return scattered.view_as(D).detach(), out.detach().view_as(Q), None, None
