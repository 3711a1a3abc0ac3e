"""theory.collection on dense arrays of any size: the exact truncated SVD, copies, and tiny collections."""

import numpy as np
import pytest

from theory.collection import (
    Problem,
    exact_thresholds,
    least_dimension,
    left_vectors,
    projected_dimension,
    truncated,
)


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


def test_six_documents_have_an_answer():
    rng = np.random.default_rng(0)
    problem = Problem.of(rng.random((6, 9)), rng.random((4, 9)))
    assert np.isnan(least_dimension(*truncated(problem, 10, 512))).all()
    assert least_dimension(*truncated(problem, 1, 512)).k <= 6


def test_near_copies_of_the_best_document_have_a_margin():
    rng = np.random.default_rng(0)
    D = rng.random((12, 30))
    query = 3 * D[:1]
    D[0] *= 2
    D[1] = D[0]
    D[2] = D[0] - 1e-8 * rng.random(30) * D[0]
    best, below, margins = Problem.of(D, query).margins(-1, 0)
    assert 1 not in below
    (near,) = margins[below == 2]
    delta = D[best] - D[2]
    assert near == pytest.approx(
        float(query[0] @ delta / np.linalg.norm(query) / np.linalg.norm(delta)), rel=1e-6
    )


def test_an_interval_holds_the_noise_of_few_gaussian_vectors():
    rng = np.random.default_rng(0)
    problem = Problem.of(rng.random((200, 50)), rng.random((40, 50)))
    few, many = (projected_dimension(exact_thresholds(problem, [10], n, 0)[0, 0]) for n in (4, 400))
    same = exact_thresholds(problem, [10], 400, 0)[0, 0][:, :4]
    assert few.low < many.k < few.high
    assert np.ptp(np.log(projected_dimension(same)[1:])) > np.ptp(np.log(many[1:]))


def test_an_interval_holds_the_noise_of_few_shared_maps():
    ks, needed = np.arange(1, 11), np.random.default_rng(0).uniform(1, 10, 20)
    lost = np.repeat((ks[:, None] < needed)[None], 5, axis=0).astype(float)
    alike = least_dimension(ks, lost.mean(2), 0.5)  # a map loses all queries or none
    assert alike.low == alike.high
    drawn = least_dimension(ks, lost, 0.5)
    assert drawn.k == alike.k
    assert drawn.low < drawn.k < drawn.high
