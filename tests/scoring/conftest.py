"""The GPU's kernels, interpreted on the CPU."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from paradigms.scoring import in_batch
from tests.scoring.interpreted import imported


@pytest.fixture(scope="module")
def fused() -> Iterator[ModuleType]:
    """`scoring.fused` interpreted, and taken by `in_batch_rel`."""
    with imported(interpret=True) as module, pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_batch, "FUSED", {"cpu"})
        yield module
