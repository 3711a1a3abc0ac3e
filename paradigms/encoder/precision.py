"""Choose the precision in which encoders compute, in one place for queries and documents.

| precision | matrix products | everything else |
|---|---|---|
| no | the weights' own type, float32 | the weights' own type |
| bf16, fp16 | 16 bits, sums in float32 | as in torch's autocast; plain BERT on a CPU: bf16 throughout |

"auto" is the precision of the surrounding `autocast`. Outside `autocast`, "auto" is the precision set by
`choose_precision`. Without either, "auto" is bf16 if the device multiplies bf16 natively, and otherwise no.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor, nn

from paradigms.core import at_least_float32

# precision -> the type of matrix products under torch's autocast
PRECISIONS: dict[str, torch.dtype | None] = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
AUTO = "auto"
VARIABLE = "ACCELERATE_MIXED_PRECISION"  # accelerate reads it, too
_chosen: ContextVar[str] = ContextVar("precision", default=AUTO)  # set by the innermost `autocast`


def native_precision(device: torch.device) -> str:
    """Return "bf16" if a device multiplies matrices in bfloat16 natively, else "no"."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    return "bf16" if device.type == "cpu" and _native_on_cpu() else "no"


@cache
def _native_on_cpu() -> bool:
    # Other CPUs, and all CPUs under an older ATEN_CPU_CAPABILITY, emulate bfloat16 more slowly than float32.
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def autocast(device: torch.device, precision: str, *, copies: bool = True) -> Iterator[None]:
    """Context in which encoders compute in `precision`, a key of `PRECISIONS` or "auto" (`resolved`).

    copies: whether, in training, a weight's 16-bit copy is kept until the context ends.
    """
    precision = resolved(device, precision)
    kind = PRECISIONS[precision]
    cached = None if copies else False  # None: as around
    token = _chosen.set(precision)
    try:
        with torch.autocast(device.type, kind, enabled=kind is not None, cache_enabled=cached):
            yield
    finally:
        _chosen.reset(token)


def choose_precision(precision: str) -> None:
    """Set the meaning of "auto" in this process and its child processes; passing "auto" changes nothing."""
    if precision != AUTO:
        os.environ[VARIABLE] = precision


def resolved(device: torch.device, precision: str) -> str:
    """Replace "auto" with the precision of the context, the process or, if neither is set, the device.

    Raises ValueError if the name is unknown, and for fp16 on a CPU.
    """
    if precision == AUTO:
        around = product_precision(device) if torch.is_autocast_enabled(device.type) else _chosen.get()
        around = os.environ.get(VARIABLE, AUTO) if around == AUTO else around
        precision = around if around in PRECISIONS else native_precision(device)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join([AUTO, *PRECISIONS])}, got {precision!r}")
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision fp16 needs a GPU; a CPU has bf16")
    return precision


def product_precision(device: torch.device) -> str:
    """Return the precision that is currently in effect, including torch's own autocast."""
    if torch.is_autocast_enabled(device.type):
        kind = torch.get_autocast_dtype(device.type)
        return next((name for name, dtype in PRECISIONS.items() if dtype == kind), "no")
    return "no"


def scores_of(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply the last layer of a score in float32 or wider, even under autocast: 16 bits tie close scores."""
    with torch.autocast(x.device.type, enabled=False):
        x = at_least_float32(x)
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return nn.functional.linear(x, layer.weight.to(x.dtype), bias)
