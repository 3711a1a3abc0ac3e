"""x Wᵀ + b in 8 bits (W8A8), with one scale per token and one per output channel.

    x ≈ s · q, s = max |x| / 127 per token;  W ≈ t · p, t = max |W| / 127 per output;  x Wᵀ ≈ s tᵀ ∘ (q pᵀ)

Values are rounded to the nearest of 255 steps, and halves are rounded up. Outliers are not clipped.
There is no calibration: the quantisation depends only on the weights and on the token itself. The product
q pᵀ is exact. oneDNN computes the product with weights that are packed once; torch._int_mm packs them in
every call, which takes longer than the product.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paradigms.encoder.weights import cached_by_weights

LARGEST = 127
ZERO = 128
LEAST = torch.finfo(torch.float32).tiny  # scale of a token or an output that is all zeros


class Quantised(NamedTuple):
    """A weight W ≈ t · p, quantised to 8 bits."""

    values: Tensor  # p, int8, packed for oneDNN if its product is `exact`
    scales: Float[Tensor, " v"]  # t
    zeros: Int[Tensor, " v"]  # the value that represents 0 in p


def quantised(weight: Float[Tensor, "v w"]) -> Quantised:
    """Round a weight to 8 bits, with one scale per output channel."""
    scales = weight.detach().float().abs().amax(1).div(LARGEST).clamp_min(LEAST)
    values = (weight.detach() / scales[:, None] + 0.5).floor_().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(values, None) if exact() else values
    return Quantised(packed, scales, torch.zeros(len(scales), dtype=torch.int64))


def product(x: Float[Tensor, "... w"], weight: Quantised, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b in float32, for a quantised weight W."""
    rows = x.flatten(0, -2).float()
    scales = rows.abs().amax(-1, keepdim=True).div_(LARGEST).clamp_min_(LEAST)
    # q + ZERO, from 1 to 255: processors multiply unsigned by signed bytes. Adding a half rounds.
    shifted = (rows * scales.reciprocal()).add_(ZERO + 0.5).to(torch.uint8)
    outputs = shifted_product(shifted, weight).mul_(scales)
    if bias is not None:
        outputs.add_(bias)
    return outputs.unflatten(0, x.shape[:-1])


def shifted_product(shifted: UInt8[Tensor, "x w"], weight: Quantised) -> Float[Tensor, "x v"]:
    """Compute q (t · p)ᵀ from bytes q + ZERO: the product before multiplication by the tokens' scales."""
    if exact():
        return _packed_product(shifted, weight)
    return ((shifted.float() - ZERO) @ weight.values.float().t()).mul_(weight.scales)


def _packed_product(shifted: UInt8[Tensor, "x w"], weight: Quantised) -> Float[Tensor, "x v"]:
    return torch.ops.onednn.qlinear_pointwise(
        shifted, 1.0, ZERO, *weight, None, 1.0, 0, torch.float32, "none", [], ""
    )


@cache
def exact() -> bool:
    """Return whether oneDNN's 8-bit products are exact; without VNNI, pair sums may saturate at 16 bits."""
    if "onednn" not in torch.backends.quantized.supported_engines:
        return False
    largest = torch.full((64, 64), LARGEST, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(largest, None)
    weight = Quantised(packed, torch.ones(64), torch.zeros(64, dtype=torch.int64))
    product = _packed_product(torch.full((64, 64), ZERO + LARGEST, dtype=torch.uint8), weight)
    return bool((product == 64 * LARGEST**2).all())


def product_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `product` by its definition: round both factors to 8 bits, rescale them and multiply."""
    rounded: list[Tensor] = []
    for factor in (x, weight):
        scales = (factor.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(LEAST)
        rounded.append((factor / scales + 0.5).floor() * scales)
    return nn.functional.linear(rounded[0], rounded[1], bias)


class W8A8(TorchFunctionMode):
    """Context in which `product` computes every linear layer with a float32 weight on a CPU.

    Weights are quantised when they are first used, and again after they change.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.linear and not torch.is_grad_enabled():
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            if weight.dtype == torch.float32 and weight.device.type == "cpu":
                names = ("input", "weight", "bias")
                named = dict(zip(names, args, strict=False)) | kwargs
                return product(named["input"], _quantised(weight), named.get("bias"))
        return function(*args, **kwargs)


_quantised = cached_by_weights(quantised)
