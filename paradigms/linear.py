"""x Wᵀ + b in float32 by oneDNN, on processors where it multiplies faster than MKL.

PyTorch gives float32 products on x86 to MKL, which on AMD processors with AVX-512 uses half of their width:
95 GFLOP/s on a core where oneDNN, which PyTorch brings along, reaches 200 (torch 2.13, Zen 5).
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

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
            and not torch.compiler.is_compiling()  # which traces no tensor in oneDNN's layout
        )
        return _Linear.apply(x, self.weight, self.bias) if applies else super().forward(x)


class _Linear(torch.autograd.Function):
    """Keeps x and W alone: autograd's own would keep both layouts of x and of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return nn.functional.linear(x.to_mkldnn(), weight, bias).to_dense()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient, (of_x, of_weight, of_bias) = gradient.to_mkldnn(), ctx.needs_input_grad
        to_x = to_weight = to_bias = None
        if of_x:
            to_x = torch.ops.aten.mkldnn_linear_backward_input(x.shape, gradient, weight).to_dense()
        if of_weight or of_bias:
            product = torch.ops.aten.mkldnn_linear_backward_weights
            to_weight, to_bias = product(gradient, x.to_mkldnn(), weight, of_bias)
        return to_x, to_weight if of_weight else None, to_bias if of_bias else None


def _onednn_is_faster() -> bool:
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return there and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _processor()


def _processor() -> str:
    linux = Path("/proc/cpuinfo")
    return linux.read_text() if linux.is_file() else platform.processor()
