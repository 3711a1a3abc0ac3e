"""`scoring.fused` with kernels that run on the CPU, or that are compiled for a GPU that need not be there."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

import paradigms.scoring

OLDEST = (3, 7)  # the interpreters before fail with numpy 2.4; what they compile is the same
HAS = tuple(int(part) for part in version("triton").split(".")[:2]) if find_spec("triton") else (0, 0)
needs_triton = pytest.mark.skipif(
    HAS < OLDEST, reason="needs Triton 3.7: pip install triton, for Linux; it comes with torch's CUDA builds"
)
SMALL = {"ROWS": 16, "TOKENS": 16}  # tiles, so that small batches have many


@contextmanager
def imported(interpret: bool) -> Iterator[ModuleType]:
    """Import the module again for the test, then restore it: Triton reads its environment on import."""

    def names() -> list[str]:
        python = [n for n in sys.modules if n.split(".")[0] == "triton" and not n.startswith("triton._C")]
        return [*python, *(n for n in sys.modules if n == "paradigms.scoring.fused")]

    before = {name: sys.modules.pop(name) for name in names()}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", str(int(interpret)))
            patch.setattr(paradigms.scoring, "fused", None, raising=False)  # an import sets it on its package
            module = importlib.import_module("paradigms.scoring.fused")
            assert interpret == module.INTERPRETED
            yield module
    finally:
        for name in names():
            del sys.modules[name]
        sys.modules.update(before)


def counted(fused: ModuleType, patch: pytest.MonkeyPatch) -> list[Any]:
    """An item for each call of `best_tokens` from now on."""
    calls: list[Any] = []
    best_tokens = fused.best_tokens
    patch.setattr(fused, "best_tokens", lambda *given: (calls.append(given), best_tokens(*given))[1])
    return calls


def small(fused: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Tiles of 16, and each program takes as many documents as it may."""
    triton = sys.modules["triton"]
    for name in ("_maxima_kernel", "_to_queries", "_to_documents"):
        kernel = getattr(fused, name)
        own = {axis: size for axis, size in SMALL.items() if axis in kernel.arg_names}
        patch.setattr(kernel, "configs", [triton.Config(own)])
    patch.setattr(fused, "PROGRAMS", 1)
    patch.setattr(fused, "FEATURES_HELD", 16)
