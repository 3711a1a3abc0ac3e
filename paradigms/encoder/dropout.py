"""x ∘ m / (1 − p) with m of Bernoulli(1 − p), on processors: in training, most of the time of torch's own.

torch draws each number of `bernoulli_` from one serial generator, 5 ns apiece, and keeps the mask in float32.
Here each 64 bits that the same generator gives decide on four numbers, and the mask is kept in bits.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Module = TypeVar("Module", bound=nn.Module)
STEPS = 1 << 16  # p is rounded to multiples of 1/STEPS
LARGEST = 1 - 1 / STEPS  # p that keeps anything


def with_bit_dropout(module: Module) -> Module:
    """The same module; its dropout on processors is the one below."""
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = BitDropout
    return module


class BitDropout(nn.Dropout):
    """nn.Dropout of the rounded p, from torch's generator of processors, whose state replays it."""

    def forward(self, input: Tensor) -> Tensor:
        applies = (
            self.training
            and 0 < self.p <= LARGEST
            and not self.inplace
            and input.device.type == "cpu"
            and input.is_floating_point()
            and not torch.compiler.is_compiling()
        )
        return _Dropout.apply(input, self.p) if applies else super().forward(input)


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


def draw(shape: torch.Size, p: float) -> Bool[Tensor, ...]:
    """What is kept: each number with probability 1 − round(p · STEPS) / STEPS."""
    count = math.prod(shape)
    # From the least number of 64 bits to no bound: torch's way to say all 64 bits.
    words = torch.empty(-(-count // 4), dtype=torch.int64, device="cpu").random_(
        torch.iinfo(torch.int64).min, None
    )
    kept = words.numpy().view(np.uint16)[:count] >= round(p * STEPS)
    return torch.from_numpy(kept).view(shape)


def scale(p: float) -> float:
    """1 / (1 − p) for the p that `draw` rounds to."""
    return STEPS / (STEPS - round(p * STEPS))


def pack(kept: Bool[Tensor, ...]) -> UInt8[Tensor, " bytes"]:
    """Eight to a byte."""
    return torch.from_numpy(np.packbits(kept.numpy()))


def unpack(bits: UInt8[Tensor, " bytes"], shape: torch.Size) -> Bool[Tensor, ...]:
    """What `pack` was given."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=math.prod(shape)).view(bool)).view(shape)
