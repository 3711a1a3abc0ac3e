"""The entropic top-k: optimality, golden values, padding and edges; its theorems are theory_checks.py's."""

import numpy as np
import pytest
from hypothesis import given
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


@given(problems())
def test_padding_equals_truncation(problem):
    scores, k, epsilon = problem
    padded = np.append(scores, [-INF, -INF])
    for function in (
        entropic.entropic_top_k,
        entropic.budget_gradient,
        entropic.temperature_gradient,
        lambda *a: entropic.iterate(*a, 4).gates[-1],
        lambda s, k, _: entropic.hard_top_k(s, k),
    ):
        expected = np.append(function(scores, k, epsilon), [0, 0])
        np.testing.assert_allclose(function(padded, k, epsilon), expected, rtol=1e-9, atol=1e-9)
    J = entropic.jacobian(padded, k, epsilon)
    alone = entropic.jacobian(scores, k, epsilon)
    np.testing.assert_allclose(J[: len(scores), : len(scores)], alone, rtol=1e-9, atol=1e-9)
    assert not J[len(scores) :].any()


def test_batches_broadcast_scores_budget_and_temperature():
    rng = np.random.default_rng(0)
    scores, k, epsilon = rng.standard_normal((3, 1, 7)), np.array([1.5, 3.0]), 0.3
    batch = entropic.solve(scores, k, epsilon)
    assert batch.gates.shape == (3, 2, 7)
    assert entropic.jacobian(scores, k, epsilon).shape == (3, 2, 7, 7)
    assert entropic.iterate(scores, k, epsilon, 5).caps.shape == (5, 3, 2, 7)
    for i in range(3):
        for j in range(2):
            np.testing.assert_allclose(
                batch.gates[i, j], entropic.entropic_top_k(scores[i, 0], k[j], epsilon)
            )


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
