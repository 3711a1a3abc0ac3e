"""What two ways to add up may differ by. Bits are compared only where one machine ran the same code twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

# A sum of n float32 terms below 1 is off by up to n · 6e-8, in any order; tests add up some hundred.
TOLERANCE = 1e-5


def same_run(found: Mapping[str, dict[str, float]], expected: Mapping[str, dict[str, float]]) -> None:
    """Two computations of one run: equal scores, in the order of its own, so near ties may swap."""
    assert list(found) == list(expected)
    for query, scores in found.items():
        assert scores == pytest.approx(expected[query], rel=TOLERANCE, abs=TOLERANCE), query
        assert list(scores) == sorted(scores, key=lambda id: (-scores[id], id)), query
