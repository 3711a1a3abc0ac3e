"""The law of cosine ranking under projection, compared with simulation, limits and its own inverse."""

import numpy as np
import pytest

from theory.collection import cosine_lost
from theory.cosine import (
    cosine_error,
    cosine_recall_bound,
    cosines,
    log_cosine_error,
    required_cosine_dimension,
)
from theory.projections import pairwise_error


def test_special_cases_are_known():
    assert cosine_error(2, 1.0, 0.3, 0.3) == 0  # d1 = q is never swapped
    assert cosine_error(17, 0.3, -0.3, -1.0) == pytest.approx(pairwise_error(17, 0.3))  # d2 = −d1: a sign
    # ρ₁ → ρ₂: a fair coin
    assert cosine_error([2, 7, 400], 0.3 + 1e-12, 0.3, 0.1) == pytest.approx(0.5, abs=1e-9)


def test_the_deep_tail_is_finite_and_steady():
    k = np.array([10, 100, 1000, 10_000])
    logs = log_cosine_error(k, 0.9, 0.2, 0.3)
    rate = np.diff(logs) / np.diff(k)
    assert np.all(rate < 0)
    assert rate[-1] == pytest.approx(rate[-2], rel=0.01)  # a large deviation
    assert np.all(np.isfinite(log_cosine_error(64, 0.999, -0.999, [-0.9979, -0.998])))


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


def test_the_bound_of_recall_holds_and_the_mean_rank_is_exact():
    rng, ks = np.random.default_rng(1), [4, 16, 48]
    D, q = rng.standard_normal((12, 6)) + 1, rng.standard_normal(6) + 1
    rho, best = cosines(q, D, D).better, int(np.argmax(cosines(q, D, D).better))
    others = np.delete(np.arange(12), best)
    given = rho[best], rho[others], cosines(D[best], D[others], q).better
    ranks = np.array([cosine_lost(D, q[None], ks, r, samples=4000).mean((0, 2)) for r in range(1, 12)])
    for r in (1, 3, 11):
        bound = cosine_recall_bound(ks, *given, r)
        assert np.all(ranks[r - 1] <= bound + 4.5 * np.sqrt(bound / 4000))
    # Σ_r P(R ≥ r) = E R, the sum of the errors, which bounds P(R ≥ 1)
    assert ranks.sum(0) == pytest.approx(cosine_recall_bound(ks, *given, 1), rel=0.05)
    assert cosine_recall_bound(9, given[0], given[1][:1], given[2][:1], 1) == cosine_error(
        9, given[0], given[1][0], given[2][0]
    )
    with pytest.raises(ValueError, match="r = 12"):
        cosine_recall_bound(9, *given, 12)
