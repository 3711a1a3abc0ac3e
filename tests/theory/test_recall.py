"""theory.recall: the sampled law, the bounds and their errors; golden values are theory_checks.py's."""

import math

import numpy as np
import pytest
from scipy import sparse

from theory import recall as R
from theory.projections import pairwise_error


def collection(documents=40, vocabulary=60, seed=0):
    """A query, its best document, and the documents below it: sparse, non-negative, like bags of words."""
    rng = np.random.default_rng(seed)
    matrix = rng.poisson(0.15, (documents + 1, vocabulary)) * rng.gamma(2.0, size=vocabulary)
    query = np.zeros(vocabulary)
    query[:4] = 1
    matrix[:, :4] += rng.gamma(1.0, size=(documents + 1, 4)) * 0.5
    best = np.argmax(matrix @ query)
    return query, matrix[best], np.delete(matrix, best, axis=0)


def orthogonal(margins):
    """Documents whose differences from the origin are orthogonal outside the query."""
    mu = np.asarray(margins)
    others = np.zeros((len(mu), len(mu) + 1))
    others[:, 0] = -mu
    others[np.arange(len(mu)), np.arange(len(mu)) + 1] = -np.sqrt(1 - mu**2)
    return np.eye(len(mu) + 1)[0], np.zeros(len(mu) + 1), others


def test_sampled_law_equals_quadrature():
    margins = [0.1, 0.2, 0.3]
    thresholds = R.recall_thresholds(*orthogonal(margins), [1, 2, 3], samples=20_000, seed=4)
    for r in (1, 2, 3):
        value, error = R.recall_failure(np.array([8, 32, 40]), thresholds[r - 1])
        exact = [R.orthogonal_recall_failure(k, margins, r) for k in (8, 32, 40)]
        assert np.all(np.abs(value - exact) < 4 * error)


def test_sparse_dense_and_blocks_agree(monkeypatch):
    query, better, others = collection(seed=3)
    dense = R.recall_thresholds(query, better, others, [1, 10], samples=50, seed=2)
    rows = [sparse.csr_array(np.atleast_2d(x)) for x in (query, better, others)]
    np.testing.assert_allclose(R.recall_thresholds(*rows, [1, 10], samples=50, seed=2), dense, rtol=1e-10)
    monkeypatch.setattr(R, "_BLOCK", 600)
    blocked = R.recall_thresholds(query, better, others, [1, 10], samples=4000, seed=2)
    full = R.recall_thresholds(query, better, others, [1, 10], samples=4000, seed=3)
    for r in range(2):
        (a, da), (b, db) = R.recall_failure(24, blocked[r]), R.recall_failure(24, full[r])
        assert abs(a - b) < 4 * math.hypot(da, db)


def test_markov_union_by_hand():
    """Equal margins are best taken all together (s = 0); one hopeless document is best set aside (s = 1)."""
    p = pairwise_error(64, 0.2)
    assert R.markov_union_bound(64, [0.2] * 30, 5) == pytest.approx(30 * p / 5, rel=1e-12)
    hopeless = pairwise_error(64, 1e-6)
    assert R.markov_union_bound(64, [0.2] * 3 + [1e-6], 2) == pytest.approx(
        min(3 * p, (3 * p + hopeless) / 2)
    )
    assert 3 * p < (3 * p + hopeless) / 2


def test_needed_dimensions_are_roots_of_their_bounds():
    """For dependent documents; `recall_dimensions` of theory_checks.py checks their order."""
    query, better, others = collection(documents=200, seed=5)
    delta = better - others
    margins = delta @ query / np.linalg.norm(query) / np.linalg.norm(delta, axis=1)
    for r, row in zip(
        (1, 10), R.recall_thresholds(query, better, others, [1, 10], samples=2000), strict=True
    ):
        k, error = R.required_dimension_recall_exact(row)
        assert R.recall_failure(k, row)[0] == pytest.approx(0.05, rel=1e-9)
        for name in ("t_union", "markov_union", "lemma1_sum"):
            needed = R.required_dimension_recall(margins, r, method=name)
            assert R.BOUNDS[name](needed, margins, r) == pytest.approx(0.05, rel=1e-9)
            assert needed > k - 4 * error


def test_too_few_samples_are_told_by_an_infinite_error():
    """One sample in twenty lies far above the rest: P stays at 1/20 over a wide range of k."""
    k, error = R.required_dimension_recall_exact(np.r_[np.ones(19), 1e4])
    assert math.isinf(error)
    assert R.recall_failure(k, np.r_[np.ones(19), 1e4])[0] == pytest.approx(0.05, rel=1e-9)
