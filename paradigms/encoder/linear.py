"""x Wᵀ + b in float32 by oneDNN, on processors where it multiplies faster than MKL.

PyTorch gives float32 products on x86 to MKL, which on AMD processors with AVX-512 uses half of their width:
95 GFLOP/s on a core where oneDNN, which PyTorch brings along, reaches 200 (torch 2.13, Zen 5).
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Module = TypeVar("Module", bound=nn.Module)


def with_fast_linear(module: Module) -> Module:
    """The same module and weights; its linear layers use oneDNN where that is the faster one."""
    if _onednn_is_faster():
        for layer in module.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = OneDNNLinear
    return module


class OneDNNLinear(nn.Linear):
    """nn.Linear, equal up to rounding in values and gradients."""

    def forward(self, x: Tensor) -> Tensor:
        applies = (
            x.device.type == "cpu"
            and x.ndim > 1
            and x.dtype == self.weight.dtype == torch.float32
            and torch.backends.mkldnn.enabled
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()  # which chooses by itself
        )
        return _Linear.apply(x, self.weight, self.bias) if applies else super().forward(x)


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
    """x Wᵀ + b: what torch.compile calls, the one way to oneDNN that copies neither x nor the result."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _onednn_is_faster() -> bool:
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return there and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _processor()


def _processor() -> str:
    linux = Path("/proc/cpuinfo")
    return linux.read_text() if linux.is_file() else platform.processor()
