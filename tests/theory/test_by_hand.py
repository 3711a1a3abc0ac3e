"""What theory_checks.py does not hold: numbers by hand, by loops, by mpmath and by simulation."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from theory import entropic, kernels
from theory import projections as P
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
SCORES = np.array([[0.9, 0.1, 0.7, 0.3, 0.2], [-0.5, -0.1, -0.8, -0.3, -0.2]])
OWNERS = np.array([0, 0, 1, 2, 2])


def test_scores_by_hand():
    assert xtr.retrieved(SCORES, 2).nonzero()[1].tolist() == [0, 2, 1, 4]
    np.testing.assert_allclose(xtr.colbert_scores(SCORES, OWNERS), [0.4, -0.05, 0.05])
    np.testing.assert_allclose(xtr.xtr_scores(SCORES, OWNERS, 2), [0.4, 0.7, -0.2])
    np.testing.assert_allclose(xtr.imputed_similarities(SCORES, 2), [0.7, -0.2])
    np.testing.assert_allclose(xtr.imputed_scores(SCORES, OWNERS, 2), [0.4, 0.25, 0.25])
    np.testing.assert_allclose(xtr.imputation_gap(SCORES, OWNERS, 2), [0, 0.3, 0.2], atol=1e-15)
    assert xtr.candidates(SCORES, OWNERS, 2).all()
    assert xtr.candidates(SCORES, OWNERS, 1).tolist() == [True, False, False]


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


# --- random projections ---------------------------------------------------------------------------------


def reference_log_error(k: float, margin: float) -> float:
    """ln of ½ I_{1−ε²}(k/2, ½) to 40 digits."""
    with mpmath.workdps(40):
        sine2 = 1 - mpmath.mpf(margin) ** 2
        return float(mpmath.log(mpmath.betainc(mpmath.mpf(k) / 2, 0.5, 0, sine2, regularized=True) / 2))


def test_margins_have_values_and_shapes():
    assert P.normalized_margin([1, 0], [1, 0], [0, 1]) == pytest.approx(1 / math.sqrt(2), rel=1e-14)
    assert isinstance(P.normalized_margin([1, 0], [1, 0], [0, 1]), float)
    rng = np.random.default_rng(0)
    q, better, worse = rng.normal(size=(5, 1, 7)), rng.normal(size=(5, 1, 7)), rng.normal(size=(1, 4, 7))
    margins = P.normalized_margin(q, better, worse)
    assert margins.shape == (5, 4)
    delta = better[2, 0] - worse[0, 3]
    expected = q[2, 0] @ delta / np.linalg.norm(q[2, 0]) / np.linalg.norm(delta)
    assert margins[2, 3] == pytest.approx(expected, rel=1e-12)


NORMAL = [(1, 0.5), (1.5, 1e-9), (3, 0.999999), (200, 0.99), (4000, 0.4), (1000, 0.7), (1e4, 0.01)]
TINY = [(1e4, 0.9), (31_000, 0.2), (64, 1 - 1e-12), (2e5, 0.1), (9000, 0.4)]  # below the smallest number


@pytest.mark.parametrize(("k", "margin"), [*NORMAL, (300, 0.3), (7900, 0.4), *TINY])
def test_errors_against_mpmath(k, margin):
    reference = reference_log_error(k, margin)
    assert P.log_pairwise_error(k, margin) == pytest.approx(reference, rel=1e-11, abs=1e-12)
    if reference > -695:
        assert P.pairwise_error(k, margin) == pytest.approx(math.exp(reference), rel=1e-9)


def test_large_margins_never_err():
    assert P.pairwise_error(5, 1.0) == 0
    assert P.log_pairwise_error(5, 1.0) == -math.inf
    assert P.required_dimension(1.0) == P.required_dimension(1.0, method="exact_real") == 1
    assert P.rademacher_error_two_sparse(1, 0.8) == P.rademacher_error_two_sparse(4, 1.0) == 0
    assert P.rademacher_required_dimension(0.9) == 1


# --- the entropic top-k ---------------------------------------------------------------------------------

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
    np.testing.assert_array_equal(entropic.entropic_top_k([-np.inf, -np.inf], 1, 0.1), [0, 0])
    np.testing.assert_allclose(entropic.entropic_top_k(scores, 2, 1e6), np.full(4, 0.5), rtol=1e-5)
    for k in (4, 4.5, 9):
        np.testing.assert_array_equal(entropic.entropic_top_k([*scores, -np.inf], k, 0.1), [1, 1, 1, 1, 0])
        assert entropic.solve(scores, k, 0.1).capped == 4
        assert not entropic.jacobian(scores, k, 0.1).any()
        assert not entropic.budget_gradient(scores, k, 0.1).any()
    assert entropic.budget_gradient(scores, 0, 0.1).sum() == pytest.approx(1)
