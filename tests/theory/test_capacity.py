"""What single vectors, tokens and projections can answer: constructions, lower bounds, and their errors."""

import numpy as np
import pytest

from theory import capacity as C
from theory.projections import simulated_error


@pytest.mark.parametrize(("n", "k"), [(5, 1), (6, 2), (46, 2), (9, 3), (12, 4)])
def test_2k_numbers_answer_every_set(n, k):
    sets = C.all_sets(n, k)
    queries, documents = C.moment_queries(n, sets), C.moment_vectors(n, k)
    found = C.gaps(queries, documents, sets)
    assert found.min() > 0
    for vectors in (queries, documents):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1)
    if k == 2:
        assert found.min() == pytest.approx(C.moment_gap(n), rel=1e-6)
    assert found.min() <= C.packing_gap(n, k, 2 * k)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_fewer_numbers_leave_a_set_unanswered(k):
    """The hulls of a Radon partition meet: a point of one is a mean of the other's points."""
    points = np.random.default_rng(k).standard_normal((2 * k + 1, 2 * k - 1))
    part = C.unanswerable_set(points)
    assert 1 <= len(part) <= k
    others = np.setdiff1d(np.arange(2 * k + 1), part)
    queries = np.random.default_rng(0).standard_normal((20_000, 2 * k - 1))
    scores = queries @ points.T
    assert (scores[:, part].min(1) <= scores[:, others].max(1)).all()


def test_rounded_vectors_break():
    broken = C.first_broken_size(np.float16)
    assert 6 < broken < C.first_broken_size(np.float32) < 1000
    with pytest.raises(ValueError, match="loses no pair of up to 10"):
        C.first_broken_size(np.float32, 10)


def test_random_dimension_is_the_union_bound():
    n = 12
    h = C.random_dimension(n, failure=0.05)
    one_hot = np.eye(n)
    error, deviation = simulated_error(
        int(h) // 4, one_hot[0] + one_hot[1], one_hot[0], one_hot[2], ensemble="gaussian", samples=20_000
    )
    from theory.projections import pairwise_error

    assert abs(error - pairwise_error(int(h) // 4, 0.5)) < 4 * deviation
    assert pairwise_error(h, 0.5) <= 0.05 / (66 * 2 * 10) < pairwise_error(h - 1, 0.5)


def test_sign_rank_bounds():
    hadamard = np.array([[1.0]])
    for _ in range(4):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    assert C.forster_bound((hadamard + 1) / 2) == pytest.approx(4)
    relevance = np.zeros((66, 12))
    np.put_along_axis(relevance, C.all_sets(12), 1, 1)
    assert C.sign_change_bound(relevance) == 5
    assert C.forster_bound(relevance) < 5


def test_tokens_of_two_numbers_answer_any_relevance():
    relevance = np.random.default_rng(0).random((30, 8)) < 0.4
    ring = C.ring(30)
    scores = np.array([[np.max(ring[own] @ query) for own in relevance.T] for query in ring])
    assert scores[relevance].min() > 1 - 1e-12
    assert scores[~relevance].max() <= np.cos(2 * np.pi / 30) + 1e-12


def test_bits():
    assert C.pattern_bits(46, 1035) == pytest.approx(1035 / 46 * np.log2(1035))


def test_errors_name_the_argument():
    for call, message in (
        (lambda: C.moment_queries(5, [[0, 5]]), "relevant"),
        (lambda: C.unanswerable_set(np.eye(3)), r"allowed: \[h \+ 2, h\]"),
        (lambda: C.forster_bound([[0, 2]]), "other than 0 and 1"),
        (lambda: C.random_dimension(3), "documents = 3"),
        (lambda: C.moment_gap(5), "documents = 5"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
