"""What theory_checks.py does not hold: numbers by hand, by loops and by simulation."""

import numpy as np
import pytest

from theory import kernels
from theory import token_retrieval as xtr
from theory.collection import Problem, cosine_lost, least_dimension, left_vectors, truncated
from theory.cosine import cosine_error, cosines, required_cosine_dimension
from theory.projections import pairwise_error


def test_relevance_equals_loops():
    rng = np.random.default_rng(0)
    D, Q = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    total = 0.0
    for d in D:
        weights = np.exp(Q @ d) / np.exp(Q @ d).sum()
        total += sum(weights[j] * (d @ q) for j, q in enumerate(Q))
    assert kernels.relevance(D, Q) == pytest.approx(total, rel=1e-12)


# Two query tokens, three documents of 2, 1 and 2 tokens; top 2 of each row are columns (0, 2) and (1, 4).
P = np.array([[0.9, 0.1, 0.7, 0.3, 0.2], [-0.5, -0.1, -0.8, -0.3, -0.2]])
OWNERS = np.array([0, 0, 1, 2, 2])


def test_scores_by_hand():
    assert xtr.retrieved(P, 2).nonzero()[1].tolist() == [0, 2, 1, 4]
    np.testing.assert_allclose(xtr.colbert_scores(P, OWNERS), [0.4, -0.05, 0.05])
    np.testing.assert_allclose(xtr.xtr_scores(P, OWNERS, 2), [0.4, 0.7, -0.2])
    np.testing.assert_allclose(xtr.imputed_similarities(P, 2), [0.7, -0.2])
    np.testing.assert_allclose(xtr.imputed_scores(P, OWNERS, 2), [0.4, 0.25, 0.25])
    np.testing.assert_allclose(xtr.imputation_gap(P, OWNERS, 2), [0, 0.3, 0.2], atol=1e-15)
    assert xtr.candidates(P, OWNERS, 2).all()
    assert xtr.candidates(P, OWNERS, 1).tolist() == [True, False, False]


@pytest.mark.parametrize(("documents", "terms", "dense"), [(60, 90, 2000), (90, 60, 2000), (90, 120, 1)])
def test_a_truncated_svd_is_exact_at_every_k(documents, terms, dense, monkeypatch):
    monkeypatch.setattr("theory.collection._DENSE", dense)
    rng = np.random.default_rng(0)
    D, Q = rng.standard_normal((documents, terms)), rng.standard_normal((7, terms))
    problem = Problem.of(D, Q)
    ks, lost = truncated(problem, 3, 25)
    assert ks.tolist() == list(range(1, 26))
    right = np.linalg.svd(D)[2]
    for k in ks:
        scores = (D @ right[:k].T) @ (right[:k] @ Q.T)
        best = (D @ Q.T).argmax(0)
        ahead = (scores >= scores[best, np.arange(7)]).sum(0) - 1
        np.testing.assert_array_equal(lost[:, k - 1], ahead >= 3)
    left = left_vectors(problem.documents, 25)
    np.testing.assert_allclose(left.T @ left, np.eye(25), atol=1e-9)


def test_special_cases_are_known():
    assert cosine_error(2, 1.0, 0.3, 0.3) == 0  # d1 = q is never swapped
    assert cosine_error(17, 0.3, -0.3, -1.0) == pytest.approx(pairwise_error(17, 0.3))  # d2 = −d1: a sign
    # ρ₁ → ρ₂: a fair coin
    assert cosine_error([2, 7, 400], 0.3 + 1e-12, 0.3, 0.1) == pytest.approx(0.5, abs=1e-9)


def test_the_inverse_is_the_least_k():
    rng = np.random.default_rng(3)
    better, worse = np.sort(rng.uniform(-0.8, 0.95, (2, 12)), axis=0)[::-1]
    width = np.sqrt((1 - better**2) * (1 - worse**2))
    between, beta = better * worse + width * rng.uniform(-0.9, 0.9, 12), rng.uniform(0.01, 0.3, 12)
    k = required_cosine_dimension(better, worse, between, beta)
    assert np.all(cosine_error(k, better, worse, between) <= beta)
    before = k > 2
    assert np.all(cosine_error(np.maximum(k - 1, 2), better, worse, between)[before] > beta[before])
    assert required_cosine_dimension(0.9, 0.85, 0.8) == 69  # inner products ask for 433


def test_lost_documents_are_those_of_pairs_and_of_explicit_maps():
    rng = np.random.default_rng(0)
    pair, query = rng.standard_normal((2, 6)), rng.standard_normal((1, 6))
    a, b, between = cosines(query[0], *pair)
    share = cosine_lost(pair, query, [2, 5], 1, samples=4000)[0].mean(1)
    law = cosine_error([2, 5], max(a, b), min(a, b), between)
    assert np.all(np.abs(share - law) < 4.5 * np.sqrt(law * (1 - law) / 4000))
    D, Q = rng.standard_normal((30, 8)), rng.standard_normal((3, 8))
    first, again = (cosine_lost(D, Q, [2, 4, 8, 64], 3, samples=300, seed=s).mean(2) for s in (0, 1))
    assert np.all(np.diff(first.mean(0)) < 0)
    assert np.abs(first - again).max() < 0.15


def test_an_interval_holds_the_noise_of_few_shared_maps():
    ks, needed = np.arange(1, 11), np.random.default_rng(0).uniform(1, 10, 20)
    lost = np.repeat((ks[:, None] < needed)[None], 5, axis=0).astype(float)
    alike = least_dimension(ks, lost.mean(2), 0.5)  # a map loses all queries or none
    assert alike.low == alike.high
    drawn = least_dimension(ks, lost, 0.5)
    assert drawn.k == alike.k
    assert drawn.low < drawn.k < drawn.high
