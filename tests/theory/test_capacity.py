"""theory.capacity beyond what experiments/theory_checks.py holds: sizes, bits and errors."""

import numpy as np
import pytest

from theory import capacity as C
from theory.projections import pairwise_error, simulated_error


def test_random_dimension_is_the_union_bound():
    n = 12
    h = C.random_dimension(n, failure=0.05)
    one_hot = np.eye(n)
    error, deviation = simulated_error(
        int(h) // 4, one_hot[0] + one_hot[1], one_hot[0], one_hot[2], ensemble="gaussian", samples=20_000
    )
    assert abs(error - pairwise_error(int(h) // 4, 0.5)) < 4 * deviation
    assert pairwise_error(h, 0.5) <= 0.05 / (66 * 2 * 10) < pairwise_error(h - 1, 0.5)


def test_bits():
    assert C.pattern_bits(46, 1035) == pytest.approx(1035 / 46 * np.log2(1035))
