"""Speed up dropout, attention with dropout, and matrix products in training on CPUs.

Dropout: torch draws one number per element from a serial generator and stores a float32 mask. Here, 64 random
bits decide four elements, and the mask is stored in bits. Attention: torch's fused attention on CPUs has no
dropout, so torch stores four l × l matrices per head. Here, these matrices exist for a few texts at a time
and are recomputed for the gradient, as in FlashAttention (Dao et al. 2022, arXiv:2205.14135, §3.1). Products:
MKL uses half the vector width of AMD processors with AVX-512 and reaches 95 GFLOP/s per core; oneDNN reaches
200 (torch 2.13, Zen 5).
"""

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

NAME = "sdpa_dropout"  # key in transformers' registry of attentions
TILE = 1 << 20  # elements of QKᵀ per tile: 4 MiB
STEPS = 1 << 16  # p is rounded to multiples of 1/STEPS
LARGEST = 1 - 1 / STEPS  # largest supported p


@contextmanager
def fast_cpu(model: nn.Module) -> Iterator[None]:
    """Make `model` use this module's functions on CPUs, without changing its classes or weights.

    Values and gradients equal torch's up to rounding and the choice of dropped elements. torch still computes
    attention other than transformers' "sdpa", and everything on other devices or in other dtypes.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    forwards: dict[type[nn.Module], Any] = {nn.Dropout: dropout}
    if _onednn_is_faster():
        forwards[nn.Linear] = linear
    changed = [layer for layer in model.modules() if type(layer) in forwards and "forward" not in vars(layer)]
    attending: list[Any] = []
    try:
        for layer in changed:
            layer.forward = partial(forwards[type(layer)], layer)
        models: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
        for module in models:  # each is checked in turn, because a model also changes the models within it
            if module.config._attn_implementation == "sdpa" and module._can_set_attn_implementation():
                module.set_attn_implementation(NAME)
                attending.append(module)
        yield
    finally:
        for layer in changed:
            del layer.forward
        for module in attending:
            module.set_attn_implementation("sdpa")


# --- dropout: x ∘ m / (1 − p), m ~ Bernoulli(1 − p) ---------------------------------------------------


def dropout(layer: nn.Dropout, x: Tensor) -> Tensor:
    """`layer(x)` with p rounded; torch's CPU generator draws the mask, so its state reproduces the mask."""
    applies = (
        layer.training
        and 0 < layer.p <= LARGEST
        and not layer.inplace
        and x.device.type == "cpu"
        and x.is_floating_point()
        and not torch.compiler.is_compiling()
    )
    return _Dropout.apply(x, layer.p) if applies else nn.Dropout.forward(layer, x)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept = draw(x.shape, p)
        ctx.save_for_backward(pack(kept))
        ctx.p = p
        return x * kept * scale(p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        return gradient * unpack(bits, gradient.shape) * scale(ctx.p), None


def draw(shape: torch.Size, p: float) -> Bool[Tensor, "..."]:
    """Draw a mask whose elements are True with probability 1 − round(p · STEPS) / STEPS."""
    count = math.prod(shape)
    # random_ from the smallest int64 to None draws all 64 bits.
    lowest = torch.iinfo(torch.int64).min
    words = torch.empty(-(-count // 4), dtype=torch.int64, device="cpu").random_(lowest, None)
    kept = words.numpy().view(np.uint16)[:count] >= round(p * STEPS)
    return torch.from_numpy(kept).view(shape)


def scale(p: float) -> float:
    return STEPS / (STEPS - round(p * STEPS))


def pack(kept: Bool[Tensor, "..."]) -> UInt8[Tensor, " bytes"]:
    return torch.from_numpy(np.packbits(kept.numpy()))


def unpack(bits: UInt8[Tensor, " bytes"], shape: torch.Size) -> Bool[Tensor, "..."]:
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=math.prod(shape)).view(bool)).view(shape)


# --- softmax(QKᵀ/√h) ∘ m / (1 − p) · V, storing Q, K, V and the bits of m ----------------------------------


def attention(
    module: nn.Module,
    query: Float[Tensor, "x n l h"],
    key: Float[Tensor, "x g k h"],
    value: Float[Tensor, "x g k h"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Float[Tensor, "x l n h"], None]:
    """Attention with transformers' signature: `_Attention` if it supports the arguments, else torch's."""
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

        inputs = query, key, value, attention_mask, dropout, scaling, is_causal
        return sdpa_attention_forward(module, *inputs, **more)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    mask = None if attention_mask is None else attention_mask.expand(len(query), -1, -1, -1)
    return _Attention.apply(query, key, value, mask, dropout, factor), None


class _Attention(torch.autograd.Function):
    """Attention computed in float32, with Q, K and V stored in their input dtypes."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx: Any,
        query: Float[Tensor, "x n l h"],
        key: Float[Tensor, "x n k h"],
        value: Float[Tensor, "x n k v"],
        mask: Bool[Tensor, " x #n #l k"] | None,
        p: float,
        factor: float,
    ) -> Float[Tensor, "x l n v"]:
        out, bits = value.new_empty(*query.transpose(1, 2).shape[:3], value.shape[-1]), []
        for texts in _tiles(query, key):
            q, k, v = _heads(texts, query, key, value)
            weights = _weights(q, k, mask, texts, query.shape[1], factor)
            kept = draw(weights.shape, p)
            bits.append(pack(kept))
            tile = out[texts].transpose(1, 2)
            tile.copy_(torch.bmm(weights.mul_(kept), v).mul_(scale(p)).view_as(tile))
        ctx.save_for_backward(query, key, value, mask, *bits)
        ctx.p, ctx.factor = p, factor
        return out

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)  # its decorator has no types
    def backward(  # type: ignore[override]
        ctx: Any, gradient: Float[Tensor, "x l n v"]
    ) -> tuple[Tensor | None, ...]:
        query, key, value, mask, *bits = ctx.saved_tensors
        # In the memory layout of the linear layers' output: each token's heads are adjacent.
        gradients = [t.new_empty(t.transpose(1, 2).shape).transpose(1, 2) for t in (query, key, value)]
        for texts, packed in zip(_tiles(query, key), bits, strict=True):
            q, k, v, to_out = _heads(texts, query, key, value, gradient.transpose(1, 2))
            weights = _weights(q, k, mask, texts, query.shape[1], ctx.factor)
            kept = unpack(packed, weights.shape)
            to_out = to_out * scale(ctx.p)
            to_weights = torch.bmm(to_out, v.mT).mul_(kept)
            to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype).mul_(ctx.factor)
            to_value = torch.bmm(weights.mul_(kept).mT, to_out)
            for full, part in zip(gradients, (to_scores @ k, to_scores.mT @ q, to_value), strict=True):
                full[texts].copy_(part.view_as(full[texts]))
        return *gradients, None, None, None


def _tiles(query: Tensor, key: Tensor) -> Iterator[slice]:
    size = max(1, TILE // (query.shape[1] * query.shape[2] * key.shape[2]))
    return (slice(start, start + size) for start in range(0, len(query), size))


def _heads(texts: slice, *tensors: Float[Tensor, "x n _ _"]) -> list[Float[Tensor, "tn _ _"]]:
    return [t[texts].flatten(0, 1).float() for t in tensors]


def _weights(
    query: Float[Tensor, "tn l h"],
    key: Float[Tensor, "tn k h"],
    mask: Bool[Tensor, " x #n #l k"] | None,
    texts: slice,
    heads: int,
    factor: float,
) -> Float[Tensor, "tn l k"]:
    """softmax(factor · QKᵀ) over unmasked positions; uniform if all positions are masked."""
    scores = torch.bmm(query * factor, key.mT)
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min  # −∞ would give NaN if all positions are masked
        scores.unflatten(0, (-1, heads)).masked_fill_(~mask[texts], lowest)
    return torch.softmax(scores, -1)


# --- x Wᵀ + b ------------------------------------------------------------------------------------------


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Compute `layer(x)` with oneDNN; values and gradients equal torch's up to rounding."""
    applies = (
        x.device.type == "cpu"
        and x.ndim > 1
        and x.dtype == layer.weight.dtype == torch.float32
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # the compiler chooses the product itself
    )
    return _Linear.apply(x, layer.weight, layer.bias) if applies else nn.Linear.forward(layer, x)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _product(gradient, weight.t()) if of_x else None,
            _product(rows.t(), x.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _product(x: Float[Tensor, "... w"], weight: Float[Tensor, "v w"], bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b with torch.compile's operator, which copies neither x nor the result."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _onednn_is_faster() -> bool:
    choice = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    linux = Path("/proc/cpuinfo")
    processor = linux.read_text() if linux.is_file() else platform.processor()
    return choice and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in processor
