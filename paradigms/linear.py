"""x Wᵀ + b in float32 by oneDNN, on processors where it multiplies faster than MKL.

PyTorch gives float32 products on x86 to MKL, which on AMD processors with AVX-512 uses half of their width:
95 GFLOP/s on a core where oneDNN, which PyTorch brings along, reaches 200 (torch 2.13, Zen 5).
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TypeVar

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
            and x.dtype == self.weight.dtype == torch.float32
            and torch.backends.mkldnn.enabled
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()  # which traces no tensor in oneDNN's layout
        )
        if not applies:
            return super().forward(x)
        return nn.functional.linear(x.to_mkldnn(), self.weight, self.bias).to_dense()


def _onednn_is_faster() -> bool:
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return there and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _processor()


def _processor() -> str:
    linux = Path("/proc/cpuinfo")
    return linux.read_text() if linux.is_file() else platform.processor()
