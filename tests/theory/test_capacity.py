"""theory.capacity beyond what experiments/theory_checks.py holds: sizes, bits and errors."""

import numpy as np
import pytest

from theory import capacity as C
from theory.projections import pairwise_error


def test_random_dimension_is_the_union_bound():
    h = C.random_dimension(12, failure=0.05)
    assert pairwise_error(h, 0.5) <= 0.05 / (66 * 2 * 10) < pairwise_error(h - 1, 0.5)


def test_bits():
    assert C.pattern_bits(46, 1035) == pytest.approx(1035 / 46 * np.log2(1035))
    # LIMIT asks every pair once: 1035! patterns, which take 13 numbers of float16.
    assert C.pattern_bits(46, 1035, distinct=True) == pytest.approx(193.02, abs=0.01)
    assert C.pattern_bits(4, 2, distinct=True) == pytest.approx(np.log2(6 * 5) / 4)
