"""Lemma 5.2's kernels by definition, and errors; its theorems are checked by experiments/theory_checks.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory import kernels


def random_features(h, m, seed):
    projections = kernels.orthogonal_projections(h, m, seed)
    return lambda x: kernels.positive_features(x, projections)


def test_relevance_equals_loops():
    rng = np.random.default_rng(0)
    D, Q = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    total = 0.0
    for d in D:
        weights = np.exp(Q @ d) / np.exp(Q @ d).sum()
        total += sum(weights[j] * (d @ q) for j, q in enumerate(Q))
    assert kernels.relevance(D, Q) == pytest.approx(total, rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([kernels.elu_plus_one, random_features(4, 16, 0)]))
def test_separated_form_equals_the_double_sum(seed, features):
    rng = np.random.default_rng(seed)
    D, Q = rng.normal(size=(6, 4)), rng.normal(size=(3, 4))
    weights = features(D) @ features(Q).T
    expected = ((D @ Q.T) * weights / weights.sum(1, keepdims=True)).sum()
    assert kernels.kernel_relevance(D, Q, features) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    terms = kernels.kernel_terms(D, Q, features)
    assert (terms / weights.sum(1, keepdims=True)).sum() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_projections_are_orthogonal_gaussian():
    W = kernels.orthogonal_projections(6, 20_000, 3)
    assert W.shape == (20_000, 6)
    gram = W[:6] @ W[:6].T
    np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-12)
    np.testing.assert_allclose(W.mean(0), 0, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(W.T @ W / len(W), np.eye(6), atol=4 * np.sqrt(2 / 20_000))
    np.testing.assert_array_equal(W, kernels.orthogonal_projections(6, 20_000, 3))


def test_positive_features_are_those_of_the_exponential_kernel():
    rng = np.random.default_rng(0)
    x, y = 0.3 * rng.standard_normal((2, 1, 4))
    features = random_features(4, 200_000, 0)
    assert (features(x) @ features(y).T).item() == pytest.approx(np.exp(x @ y.T).item(), rel=0.02)
