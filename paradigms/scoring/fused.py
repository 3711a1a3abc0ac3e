"""maxᵢ ⟨dᵢ, qⱼ⟩ and argmaxᵢ for every query token and document, by Triton kernels that do not form S.

The forward kernel holds a tile of query tokens, reads each document's tokens tile by tile, and keeps only the
largest similarities and their places: b·n·j numbers instead of b·n·i·j. The backward pass needs only the
places:

    ∂Q[b, j] = Σₙ g[b, n, j] · D[n, place[b, n, j]]
    ∂D[n, i] = Σ g[b, n, j] · Q[b, j] over the (b, j) whose place in n is i

∂Q gathers rows; ∂D is a product with a one-hot matrix, which is formed tile by tile. There are no atomic
additions: one program computes each result and sums in a fixed order, whatever the tile sizes. Products,
maxima and gradients are accumulated in float32. This module requires Triton, so `in_batch` imports it only
when needed. For tests, TRITON_INTERPRET=1, set before Triton is imported, runs the kernels slowly on the CPU.
"""

import os
from typing import Any, no_type_check

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from paradigms.align import ids_of
from paradigms.core import Tokens

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FEATURES_HELD = 128  # features of a vector that a program holds at once
PROGRAMS = 1024  # enough to keep every multiprocessor busy; with more, a program takes several documents
DOCUMENTS = 16  # maximum number of documents per tile of query tokens
# Arguments without compile-time specialisation. The last two are rounded-up sizes, the tuner's keys, so that
# similar batches are not tuned again.
SIZES = ["documents", "tokens", "group", "near_tokens", "near_rows"]


def supports(vectors: Tensor) -> bool:
    """Return whether the kernels are faster than torch for these vectors on their device.

    The kernels need tensor cores: compute capability 8.0, and 16-bit vectors or
    `torch.set_float32_matmul_precision("high")`.
    """
    if vectors.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
    if INTERPRETED:
        return True
    exact = vectors.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    nvidia = vectors.is_cuda and torch.version.hip is None
    return not exact and nvidia and torch.cuda.get_device_capability(vectors.device) >= (8, 0)


def best_tokens(
    documents: Tokens, queries: Tokens, equal_ids: bool = False
) -> tuple[Float[Tensor, "b n j"], Int[Tensor, "b n j"]]:
    """Compute (maxᵢ ⟨dᵢ, qⱼ⟩, argmaxᵢ) over each document's real tokens; maxima are differentiable once.

    equal_ids: consider only tokens with the id of j (COIL). Among equal similarities, the first token wins;
    NaN always wins. If there is no candidate, the maximum is 0 and the place is −1. Documents have x = 1;
    neither side is empty. Both sides' vectors are float32, float16 or bfloat16; for float32,
    `torch.set_float32_matmul_precision` applies.
    """
    ids = ids_of(documents, queries) if equal_ids else (None, None)
    sides = (documents.vectors[0], queries.vectors[:, 0], documents.mask[0], queries.mask, *ids)
    maxima, place = _BestTokens.apply(*(None if t is None else t.contiguous() for t in sides))
    return maxima.transpose(0, 1), place.transpose(0, 1)


class _BestTokens(torch.autograd.Function):
    """Map D [n, i, h] and Q [b, j, h] to max_i S and its index i, both [n, b, j] and contiguous in j."""

    @staticmethod
    def forward(
        ctx: Any,
        D: Tensor,
        Q: Tensor,
        d_mask: Tensor,
        q_mask: Tensor,
        d_ids: Tensor | None,
        q_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        n, i = D.shape[:2]
        rows = Q.shape[:2].numel()
        order = torch.arange(1, i + 1, dtype=torch.int32, device=D.device)
        lengths = (d_mask * order).amax(-1)  # up to the last real token; earlier ones may be masked
        maxima = torch.empty((n, *Q.shape[:2]), dtype=torch.float32, device=D.device)
        place = torch.empty_like(maxima, dtype=torch.int16 if i < 1 << 15 else torch.int32)
        group = min(DOCUMENTS, max(1, n * triton.cdiv(rows, 128) // PROGRAMS))
        ctx.common = _common(D, i, rows)
        with torch.cuda.device_of(D):
            _maxima_kernel[lambda tuned: (triton.cdiv(rows, tuned["ROWS"]), triton.cdiv(n, group))](
                *(D, Q, d_mask.view(torch.uint8), q_mask.view(torch.uint8)),
                *(D if d_ids is None else d_ids, Q if q_ids is None else q_ids),  # never read without ids
                *(lengths, maxima, place, n, i, rows, group),
                EQUAL_IDS=d_ids is not None,
                **ctx.common,
            )
        ctx.save_for_backward(D, Q, lengths, place)
        ctx.mark_non_differentiable(place)
        return maxima, place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor):
        D, Q, lengths, place = ctx.saved_tensors
        n, i = D.shape[:2]
        rows = Q.shape[:2].numel()
        g = gradient.contiguous()
        blocks = ctx.common["BLOCKS"]
        to_D = to_Q = None
        with torch.cuda.device_of(D):
            if ctx.needs_input_grad[0]:
                to_D = torch.empty_like(D)
                _to_documents[lambda tuned: (n * triton.cdiv(i, tuned["TOKENS"]), blocks)](
                    g, place, Q, lengths, to_D, i, rows, **ctx.common
                )
            if ctx.needs_input_grad[1]:
                to_Q = torch.empty_like(Q)
                _to_queries[lambda tuned: (triton.cdiv(rows, tuned["ROWS"]), blocks)](
                    g, place, D, to_Q, n, i, rows, **ctx.common
                )
        return to_D, to_Q, None, None, None, None


def _common(D: Tensor, tokens: int, rows: int) -> dict[str, Any]:
    """Return the keyword arguments that all kernels share."""
    features = D.shape[-1]
    block = min(FEATURES_HELD, max(16, triton.next_power_of_2(features)))
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "near_tokens": triton.next_power_of_2(tokens),
        "near_rows": triton.next_power_of_2(rows),
        "FEATURES": features,
        "BLOCK": block,
        "BLOCKS": triton.cdiv(features, block),
        "PRECISION": "ieee" if exact else "tf32",
        "WIDEN": INTERPRETED and D.dtype == torch.bfloat16,  # the interpreter multiplies bits as integers
    }


def _tuned(*configurations: tuple[dict[str, int], int, int, int | None]) -> Any:
    """Autotune a kernel over configurations (tiles, warps, stages, registers), once per kind of batch."""
    tried = [
        triton.Config(tiles, num_warps=warps, num_stages=stages, maxnreg=registers)
        for tiles, warps, stages, registers in configurations
    ]
    kinds = ["near_tokens", "near_rows", "FEATURES", "PRECISION"]
    return triton.autotune(tried[:1] if INTERPRETED else tried, key=kinds)


@triton.jit
@no_type_check
def _vectors(base, rows, inside, features, FEATURES: tl.constexpr, BLOCK: tl.constexpr, WIDEN: tl.constexpr):
    """Load features of some rows of [·, FEATURES]; unwanted rows and features past the last are 0."""
    at = base + rows.to(tl.int64)[:, None] * FEATURES + features[None, :]
    mask = inside[:, None]
    if FEATURES % BLOCK != 0:
        mask = mask & (features < FEATURES)[None, :]
    vectors = tl.load(at, mask=mask, other=0.0)
    if WIDEN:
        vectors = vectors.to(tl.float32)
    return vectors


@_tuned(
    ({"ROWS": 128, "TOKENS": 64}, 8, 3, 128),  # 128 registers: two programs on a multiprocessor
    ({"ROWS": 128, "TOKENS": 64}, 8, 2, None),
    ({"ROWS": 64, "TOKENS": 64}, 4, 3, None),
    ({"ROWS": 128, "TOKENS": 32}, 8, 2, None),
    ({"ROWS": 64, "TOKENS": 32}, 4, 2, None),  # 64 KB in float32, which fits any device
)
@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _maxima_kernel(
    D,
    Q,
    d_mask,
    q_mask,
    d_ids,
    q_ids,
    lengths,
    maxima,
    place,
    documents,
    tokens,
    rows,
    group,
    near_tokens,
    near_rows,
    EQUAL_IDS: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # a query token: b·j of them
    feature = tl.arange(0, BLOCK)
    inside = row < rows
    real = tl.load(q_mask + row, mask=inside, other=0) != 0
    if EQUAL_IDS:
        q_id = tl.load(q_ids + row, mask=inside, other=0)
    if BLOCKS == 1:
        q = _vectors(Q, row, inside, feature, FEATURES, BLOCK, WIDEN)
    first = tl.program_id(1) * group
    for n in range(first, tl.minimum(first + group, documents)):
        length = tl.load(lengths + n)
        begin = tl.cast(n, tl.int64) * tokens
        # The largest similarity so far and its place, for each column of the tiles.
        top = tl.full([ROWS, TOKENS], float("-inf"), tl.float32)
        at = tl.full([ROWS, TOKENS], 0, tl.int32)
        for start in range(0, length, TOKENS):
            i = start + tl.arange(0, TOKENS)
            within = i < length
            candidate = (tl.load(d_mask + begin + i, mask=within, other=0) != 0)[None, :]
            if EQUAL_IDS:
                d_id = tl.load(d_ids + begin + i, mask=within, other=0)
                candidate = candidate & (q_id[:, None] == d_id[None, :])
            S = tl.zeros([ROWS, TOKENS], tl.float32)
            for block in range(BLOCKS):
                features = block * BLOCK + feature
                if BLOCKS > 1:
                    q = _vectors(Q, row, inside, features, FEATURES, BLOCK, WIDEN)
                d = _vectors(D, begin + i, within, features, FEATURES, BLOCK, WIDEN)
                S = tl.dot(q, tl.trans(d), S, input_precision=PRECISION)
            wins = candidate & ((top < S) | (S != S))  # NaN stays
            top = tl.where(wins, S, top)
            at = tl.where(wins, i[None, :], at)
        value = tl.max(top, axis=1)
        nan = tl.max((top != top).to(tl.int32), axis=1) > 0
        where = tl.min(tl.where((top == value[:, None]) | (top != top), at, tokens), axis=1)
        aligned = real & (nan | (value > float("-inf")))
        value = tl.where(nan, float("nan"), value)
        out = tl.cast(n, tl.int64) * rows + row
        tl.store(maxima + out, tl.where(aligned, value, 0.0), mask=inside)
        tl.store(place + out, tl.where(aligned, where, -1).to(place.dtype.element_ty), mask=inside)


@_tuned(({"ROWS": 16}, 4, 1, None), ({"ROWS": 8}, 2, 1, None), ({"ROWS": 32}, 4, 1, None))
@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _to_queries(
    g,
    place,
    D,
    out,
    documents,
    tokens,
    rows,
    near_tokens,
    near_rows,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    features = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for n in tl.range(0, documents, loop_unroll_factor=4):
        pair = tl.cast(n, tl.int64) * rows + row
        i = tl.load(place + pair, mask=inside, other=-1).to(tl.int64)
        weight = tl.load(g + pair, mask=inside & (i >= 0), other=0.0)
        d = _vectors(D, tl.cast(n, tl.int64) * tokens + i, i >= 0, features, FEATURES, BLOCK, WIDEN)
        total += weight[:, None] * d.to(tl.float32)
    at = out + row.to(tl.int64)[:, None] * FEATURES + features[None, :]
    mask = inside[:, None] & (features < FEATURES)[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)


@_tuned(
    ({"ROWS": 64, "TOKENS": 64}, 4, 3, None),
    ({"ROWS": 64, "TOKENS": 128}, 8, 3, None),
    ({"ROWS": 32, "TOKENS": 64}, 4, 2, None),
)
@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _to_documents(
    g,
    place,
    Q,
    lengths,
    out,
    tokens,
    rows,
    near_tokens,
    near_rows,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    tiles = tl.cdiv(tokens, TOKENS)
    n = (tl.program_id(0) // tiles).to(tl.int64)
    start = tl.program_id(0) % tiles * TOKENS
    i = start + tl.arange(0, TOKENS)
    features = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([TOKENS, BLOCK], tl.float32)
    chosen = tl.where(start < tl.load(lengths + n), rows, 0)  # no place lies beyond the last real token
    for first in range(0, chosen, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = row < rows
        at = tl.load(place + n * rows + row, mask=inside, other=-1).to(tl.int32)
        weight = tl.load(g + n * rows + row, mask=inside, other=0.0)
        W = tl.where(i[:, None] == at[None, :], weight[None, :], 0.0)
        q = _vectors(Q, row, inside, features, FEATURES, BLOCK, WIDEN)
        total = tl.dot(W.to(q.dtype), q, total, input_precision=PRECISION)
    to = out + (n * tokens + i)[:, None] * FEATURES + features[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(i < tokens)[:, None] & (features < FEATURES)[None, :])
