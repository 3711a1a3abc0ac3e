"""x Wᵀ + b in 8 bits: W8A8, a scale per token and per output channel.

    x ≈ s · q, s = max |x| / 127 per token;  W ≈ t · p, t = max |W| / 127 per output;  x Wᵀ ≈ s tᵀ ∘ (q pᵀ)

Values round to the nearest of 255 steps, no outlier is clipped, and no text is needed to calibrate: the
quantisation depends on the weights and on the token itself. q pᵀ is exact.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

LARGEST = 127
LEAST = torch.finfo(torch.float32).tiny  # scale of a token or an output that is all zeros


class Quantised(NamedTuple):
    """A weight as t · p."""

    values: Int8[Tensor, "w v"]  # pᵀ
    scales: Float[Tensor, " v"]  # t


def quantised(weight: Float[Tensor, "v w"]) -> Quantised:
    """Round a weight to 8 bits, with a scale for each output."""
    scales = weight.detach().float().abs().amax(1).div(LARGEST).clamp_min(LEAST)
    values = (weight.detach() / scales[:, None]).round_().to(torch.int8)
    return Quantised(values.t(), scales)  # transposed without a copy: the layout that products read fastest


def product(x: Float[Tensor, "... w"], weight: Quantised, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b of a quantised weight, in float32."""
    rows = x.flatten(0, -2).float()
    scales = torch.linalg.vector_norm(rows, torch.inf, -1, keepdim=True).div_(LARGEST).clamp_min_(LEAST)
    found = _sums((rows / scales).round_(), weight.values).mul_(scales).mul_(weight.scales)
    if bias is not None:
        found.add_(bias)
    return found.unflatten(0, x.shape[:-1])


def _sums(rows: Float[Tensor, "x w"], values: Int8[Tensor, "w v"]) -> Float[Tensor, "x v"]:
    """q pᵀ of whole numbers, from 8 bits where that is exact."""
    if len(values) > 1 and exact():  # torch 2.13 multiplies a single column wrongly
        return torch._int_mm(rows.to(torch.int8), values).float()
    return rows @ values.float()


@cache
def exact() -> bool:
    """Whether torch multiplies 8 bits exactly here: without VNNI, sums of pairs saturate at 16 bits."""
    largest = torch.full((64, 64), LARGEST, dtype=torch.int8)
    return bool((torch._int_mm(largest, -largest) == -64 * LARGEST**2).all())


def product_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product` in its definition: both factors rounded, and multiplied in their own type."""
    rounded = []
    for factor in (x, weight):
        scales = (factor.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(LEAST)
        rounded.append((factor / scales).round() * scales)
    return nn.functional.linear(*rounded, bias)


class W8A8(TorchFunctionMode):
    """Inside, every linear layer with a float32 weight on a CPU is a `product`, in any encoder.

    Weights are quantised when they are first used, and again after they change in place.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.linear and not torch.is_grad_enabled():
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            if weight.dtype == torch.float32 and weight.device.type == "cpu":
                names = ("input", "weight", "bias")
                given = dict(zip(names, args, strict=False)) | kwargs
                return product(given["input"], _kept(weight), given.get("bias"))
        return function(*args, **kwargs)


_weights = WeakTensorKeyDictionary()  # weight -> its state and it as `Quantised`


def _kept(weight: Tensor) -> Quantised:
    state = weight.data_ptr(), 0 if weight.is_inference() else weight._version
    known = _weights.get(weight)
    if known is None or known[0] != state:
        known = _weights[weight] = state, quantised(weight)
    return known[1]
