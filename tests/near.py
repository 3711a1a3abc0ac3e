"""What two ways to add up may differ by. Bits are compared only where one machine ran the same code twice."""

from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import Tensor

from paradigms.core import Tokens

# A sum of n float32 terms below 1 is off by up to n · 6e-8, in any order; tests add up some hundred.
TOLERANCE = 1e-5


def same_scores(found: Iterable[dict[str, float]], expected: Iterable[dict[str, float]]) -> None:
    """Two computations of the scores of each query: equal, each in its own order, so near ties may swap."""
    for scores, wanted in zip(found, expected, strict=True):
        assert scores == pytest.approx(wanted, rel=TOLERANCE, abs=TOLERANCE)
        assert list(scores) == sorted(scores, key=lambda id: (-scores[id], id))


def same_run(found: Mapping[str, dict[str, float]], expected: Mapping[str, dict[str, float]]) -> None:
    """Two computations of one run."""
    assert list(found) == list(expected)
    same_scores(found.values(), expected.values())


def placed(scores: Tensor, documents: Tokens) -> Tensor:
    """rel as an index has it: −∞ of documents without a token."""
    return scores.masked_fill(~documents.mask.any(-1), -torch.inf)
