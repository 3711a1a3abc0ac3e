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
