"""The entropic top-k: optimality, golden values, padding and edges; its theorems are theory_checks.py's."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from theory import entropic

INF = np.inf
CASE1 = ((0.9, 0.5, 0.4, 0.1), 2, 0.1)
GOLDEN = [
    (*CASE1, (1, 0.721399184, 0.265387929, 0.013212887)),
    ((0.3, 0.1, 0.1, -0.2, 0.05), 2, 0.5, (0.603309116, 0.404410194, 0.404410194, 0.221945020, 0.365925476)),
    ((0.5, 0, 0, 0, 0), 3, 0.002, (1, 0.5, 0.5, 0.5, 0.5)),
    ((0.9, 0.5, 0.4, 0.1), 1.5, 0.1, (1, 0.360699592, 0.132693964, 0.00660644348)),
]


@st.composite
def problems(draw):
    """Scores, a budget strictly between 0 and the length, ε."""
    m = draw(st.integers(1, 12))
    scores = draw(arrays(np.float64, m, elements=st.floats(-3, 3, width=32)))
    return scores, draw(st.floats(0.01, 0.99)) * m, draw(st.sampled_from([0.002, 0.05, 0.5, 5.0]))


@pytest.mark.parametrize(("scores", "k", "epsilon", "expected"), GOLDEN)
def test_golden_gates(scores, k, epsilon, expected):
    np.testing.assert_allclose(entropic.entropic_top_k(scores, k, epsilon), expected, rtol=1e-7)


def test_edges():
    scores = [0.5, 0.2, 0.2, 0.1]
    np.testing.assert_array_equal(entropic.hard_top_k(scores, 2), [1, 0.5, 0.5, 0])
    np.testing.assert_array_equal(entropic.hard_top_k([3, 1, 2], 2), [1, 0, 1])
    np.testing.assert_array_equal(entropic.entropic_top_k(scores, 0, 0.1), np.zeros(4))
    np.testing.assert_array_equal(entropic.entropic_top_k(scores, 4, 0.1), np.ones(4))
    np.testing.assert_array_equal(entropic.entropic_top_k([-INF, -INF], 1, 0.1), [0, 0])
    np.testing.assert_allclose(entropic.entropic_top_k(scores, 2, 1e6), np.full(4, 0.5), rtol=1e-5)
    for k in (4, 4.5, 9):
        np.testing.assert_array_equal(entropic.entropic_top_k([*scores, -INF], k, 0.1), [1, 1, 1, 1, 0])
        assert entropic.solve(scores, k, 0.1).capped == 4
        assert not entropic.jacobian(scores, k, 0.1).any()
        assert not entropic.budget_gradient(scores, k, 0.1).any()
    assert entropic.budget_gradient(scores, 0, 0.1).sum() == pytest.approx(1)
