"""softmax(QKᵀ/√h) ∘ m / (1 − p) · V on processors, keeping Q, K, V and the bits of m for the gradient.

torch's fused attention of processors knows no dropout, and what takes its place in training keeps four
matrices of l × l a head: about half of the activations of an encoder of 384 dimensions at 180 tokens. Here
they live for a few texts at a time, in the processor's cache, and are computed again for the gradient, as in
FlashAttention (Dao et al. 2022, arXiv:2205.14135, §3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paradigms.encoder.dropout import LARGEST, draw, pack, scale, unpack

NAME = "sdpa_dropout"  # in transformers' register
TILE = 1 << 20  # numbers of QKᵀ at once: 4 MiB


def with_lean_attention(model: Any) -> Any:
    """The same model; where its attention is torch's, that in training on processors is the one below."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(NAME)
    return model


def attention(
    module: nn.Module,
    query: Float[Tensor, "x n l h"],
    key: Float[Tensor, "x n k h"],
    value: Float[Tensor, "x n k h"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Float[Tensor, "x l n h"], None]:
    """Attention as transformers asks for it, by `_Attention` where that applies, else by torch's."""
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    applies = (
        0 < dropout <= LARGEST
        and query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.bfloat16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[:2] == key.shape[:2]
        and (attention_mask.dtype == torch.bool if attention_mask is not None else not causal)
        and all(more.get(name) is None for name in ("position_bias", "softcap", "cache"))
        and not torch.compiler.is_compiling()
    )
    if not applies:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
        )
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _Attention.apply(query, key, value, attention_mask, dropout, factor), None


class _Attention(torch.autograd.Function):
    """Computes in float32, keeps Q, K and V as they are."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx: Any,
        query: Float[Tensor, "x n l h"],
        key: Float[Tensor, "x n k h"],
        value: Float[Tensor, "x n k v"],
        mask: Bool[Tensor, "#x #n #l k"] | None,
        p: float,
        factor: float,
    ) -> Float[Tensor, "x l n v"]:
        out, bits = value.new_empty(*query.transpose(1, 2).shape[:3], value.shape[-1]), []
        for texts in _tiles(query, key):
            q, k, v = _heads(texts, query, key, value)
            weights = _weights(q, k, _some(mask, texts), query.shape[1], factor)
            kept = draw(weights.shape, p)
            bits.append(pack(kept))
            whole = out[texts].transpose(1, 2)
            whole.copy_(torch.bmm(weights.mul_(kept), v).mul_(scale(p)).view_as(whole))
        ctx.save_for_backward(query, key, value, mask, *bits)
        ctx.p, ctx.factor = p, factor
        return out

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)  # whose decorator has no types
    def backward(  # type: ignore[override]
        ctx: Any, gradient: Float[Tensor, "x l n v"]
    ) -> tuple[Tensor | None, ...]:
        query, key, value, mask, *bits = ctx.saved_tensors
        # Laid out as the linear layers gave them, each token's heads side by side.
        found = [t.new_empty(t.transpose(1, 2).shape).transpose(1, 2) for t in (query, key, value)]
        for texts, packed in zip(_tiles(query, key), bits, strict=True):
            q, k, v, given = _heads(texts, query, key, value, gradient.transpose(1, 2))
            weights = _weights(q, k, _some(mask, texts), query.shape[1], ctx.factor)
            kept = unpack(packed, weights.shape)
            given = given * scale(ctx.p)
            to_weights = torch.bmm(given, v.mT).mul_(kept)
            to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype).mul_(ctx.factor)
            to_value = torch.bmm(weights.mul_(kept).mT, given)
            for whole, part in zip(found, (to_scores @ k, to_scores.mT @ q, to_value), strict=True):
                whole[texts].copy_(part.view_as(whole[texts]))
        return *found, None, None, None


def _tiles(query: Tensor, key: Tensor) -> Iterator[slice]:
    size = max(1, TILE // (query.shape[1] * query.shape[2] * key.shape[2]))
    return (slice(start, start + size) for start in range(0, len(query), size))


def _heads(texts: slice, *whole: Float[Tensor, "x n _ _"]) -> list[Float[Tensor, "tn _ _"]]:
    return [t[texts].flatten(0, 1).float() for t in whole]


def _some(mask: Tensor | None, texts: slice) -> Tensor | None:
    return mask if mask is None or len(mask) == 1 else mask[texts]


def _weights(
    query: Float[Tensor, "tn l h"],
    key: Float[Tensor, "tn k h"],
    mask: Bool[Tensor, "#t #n #l k"] | None,
    heads: int,
    factor: float,
) -> Float[Tensor, "tn l k"]:
    """softmax(factor · QKᵀ), over the places where the mask is true; uniform where it is nowhere."""
    scores = torch.bmm(query * factor, key.mT)
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min  # not −∞, of which a text that attends to nothing makes NaN
        scores.unflatten(0, (-1, heads)).masked_fill_(~mask, lowest)
    return torch.softmax(scores, -1)
