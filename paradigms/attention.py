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
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paradigms.dropout import draw, pack, scale, unpack

NAME = "sdpa_dropout"  # in transformers' register
TILE = 1 << 20  # numbers of QKᵀ at once: 4 MiB


def with_lean_attention(model: PreTrainedModel) -> PreTrainedModel:
    """The same model; where its attention is torch's, that in training on processors is the one below."""
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
        0 < dropout < 1
        and query.device.type == "cpu"
        and query.dtype == key.dtype == value.dtype == torch.float32
        and query.shape[:2] == key.shape[:2]
        and (attention_mask.dtype == torch.bool if attention_mask is not None else not causal)
        and all(more.get(name) is None for name in ("position_bias", "softcap", "cache"))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
    if not applies:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
        )
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _Attention.apply(query * factor, key, value, attention_mask, dropout), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Float[Tensor, "x n l h"],
        key: Float[Tensor, "x n k h"],
        value: Float[Tensor, "x n k h"],
        mask: Bool[Tensor, "#x #n #l k"] | None,
        p: float,
    ) -> Float[Tensor, "x l n h"]:
        x, n, l, h = query.shape
        out, bits = query.new_empty(x, l, n, h), []
        for texts in _tiles(query, key):
            weights = _weights(query[texts], key[texts], _some(mask, texts))
            kept = draw(weights.shape, p)
            bits.append(pack(kept))
            found = torch.bmm(weights.mul_(kept), value[texts].flatten(0, 1)).mul_(scale(p))
            out[texts].transpose(1, 2).copy_(found.view(-1, n, l, h))
        ctx.save_for_backward(query, key, value, mask, *bits)
        ctx.p = p
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "x l n h"]) -> tuple[Tensor | None, ...]:
        query, key, value, mask, *bits = ctx.saved_tensors
        factor = scale(ctx.p)
        # Laid out as the linear layers gave them, each token's heads side by side.
        found = [t.new_empty(t.transpose(1, 2).shape).transpose(1, 2) for t in (query, key, value)]
        for texts, packed in zip(_tiles(query, key), bits, strict=True):
            weights = _weights(query[texts], key[texts], _some(mask, texts))
            kept = unpack(packed, weights.shape)
            q, k, v = (t[texts].flatten(0, 1) for t in (query, key, value))
            given = gradient[texts].transpose(1, 2).flatten(0, 1) * factor
            to_weights = torch.bmm(given, v.mT).mul_(kept)
            to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
            to_value = torch.bmm(weights.mul_(kept).mT, given)
            for whole, part in zip(found, (to_scores @ k, to_scores.mT @ q, to_value), strict=True):
                whole[texts].copy_(part.view_as(whole[texts]))
        return *found, None, None


def _some(mask: Tensor | None, texts: slice) -> Tensor | None:
    return mask if mask is None or len(mask) == 1 else mask[texts]


def _tiles(query: Tensor, key: Tensor) -> Iterator[slice]:
    size = max(1, TILE // (query.shape[1] * query.shape[2] * key.shape[2]))
    return (slice(start, start + size) for start in range(0, len(query), size))


def _weights(
    query: Float[Tensor, "t n l h"], key: Float[Tensor, "t n k h"], mask: Bool[Tensor, "#t #n #l k"] | None
) -> Float[Tensor, "tn l k"]:
    """softmax(QKᵀ), over the places where the mask is true."""
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).mT)
    if mask is not None:
        lowest = torch.finfo(
            scores.dtype
        ).min  # and not −∞, of which a text that attends to nothing makes NaN
        scores.view(*query.shape[:2], *scores.shape[1:]).masked_fill_(~mask, lowest)
    return torch.softmax(scores, -1)
