"""theory.multivector: Theorem 1 holds under its conditions, and does not give max-scoring a smaller k."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from theory import multivector as M
from theory.projections import pairwise_error


def test_counterexample_numbers():
    assert M.broken_conditions(**M.COUNTEREXAMPLE, segment=0) == []
    same, single = M.segment_margins(**M.COUNTEREXAMPLE, segment=0)
    assert (same, single) == pytest.approx((1.0, 1 / math.sqrt(2)), rel=1e-14)
    assert pairwise_error(64, single) == pytest.approx(1.6118466e-11, rel=1e-7)
    np.testing.assert_allclose(
        M.cross_margins(**M.COUNTEREXAMPLE), [[1, 1 / math.sqrt(201)], [0, 0]], rtol=1e-14
    )
    assert M.maxscore_margin(**M.COUNTEREXAMPLE) == pytest.approx(1 / math.sqrt(201), rel=1e-14)


def test_counterexample_error_three_ways():
    """Quadrature (d1 loses exactly if z2 ≥ 0 and 10 z2 ≥ χ + 10 z1), the joint law, and explicit matrices."""
    exact, _ = integrate.dblquad(
        lambda x, z: stats.chi.pdf(x, 64) * stats.norm.pdf(z) * stats.norm.cdf(z - x / 10), 0, 8, 1, 16
    )
    assert exact == pytest.approx(0.2476, abs=0.003)
    estimate, error = M.simulated_maxscore_error(64, **M.COUNTEREXAMPLE, samples=200_000, seed=1)
    assert abs(estimate - exact) < 4 * error
    matrices = np.random.default_rng(2).normal(size=(20_000, 64, 3))
    q, better, worse = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
    projected = matrices @ q
    scores = [
        np.max(np.einsum("skv,mv,sk->sm", matrices, x, projected, optimize=True), axis=1)
        for x in (better, worse)
    ]
    lost = np.mean(scores[0] < scores[1])
    assert abs(lost - exact) < 4 * math.sqrt(exact * (1 - exact) / 20_000)
    assert exact <= M.maxscore_error_bound(64, **M.COUNTEREXAMPLE)


def test_printed_conclusion_fails_where_the_theorem_holds():
    """'A smaller k suffices for max-scoring' would need its error to be at most the single vector's."""
    _, single = M.segment_margins(**M.COUNTEREXAMPLE, segment=0)
    estimate, error = M.simulated_maxscore_error(64, **M.COUNTEREXAMPLE, samples=20_000)
    assert estimate - 4 * error > 1e9 * pairwise_error(64, single)


@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_theorem1(seed, segments):
    """Random non-negative documents cut by a partition of the vocabulary, the query inside one segment."""
    rng = np.random.default_rng(seed)
    width = 3
    cut = np.kron(np.eye(segments), np.ones(width))
    d1, d2 = rng.gamma(1.0, size=(2, segments * width))
    q = np.r_[rng.gamma(1.0, size=width), np.zeros((segments - 1) * width)]
    if q @ d1 < q @ d2:
        d1, d2 = d2, d1
    assert M.broken_conditions(q, cut * d1, cut * d2, 0) == []
    same, single = M.segment_margins(q, cut * d1, cut * d2, 0)
    assert same >= single - 1e-12
    assert M.maxscore_margin(q, cut * d1, cut * d2) <= same + 1e-12


@given(st.integers(0, 2**32 - 1), st.floats(1, 200))
def test_error_bound_over_cross_pairs(seed, k):
    rng = np.random.default_rng(seed)
    q, better, worse = np.array([1.0, 0, 0, 0, 0]), rng.normal(size=(2, 5)), rng.normal(size=(3, 5))
    better[0, 0] = 0.5 + worse[:, 0].max()
    bound = M.maxscore_error_bound(k, q, better, worse)
    estimate, error = M.simulated_maxscore_error(k, q, better, worse, samples=4000, seed=seed)
    assert estimate <= bound + 5 * error + 1e-3
    assert M.maxscore_margin(q, better, worse) > 0


def test_error_bound_takes_the_best_fixed_segment():
    query, better, worse = [1.0, 0, 0], [[1.0, 1, 0], [2.0, 0, 0]], [[0.0, 0, 1], [0.0, 1, 0]]
    by_segment = pairwise_error(16, M.cross_margins(query, better, worse)).sum(axis=1)
    assert by_segment[1] < by_segment[0]
    assert M.maxscore_error_bound(16, query, better, worse) == pytest.approx(by_segment[1], rel=1e-14)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_one_segment_is_the_pairwise_law(k):
    query, better, worse = [2.0, 1, 0], [[3.0, 1, 1]], [[1.0, 2, 3]]
    single = pairwise_error(k, M.cross_margins(query, better, worse)[0, 0])
    estimate, error = M.simulated_maxscore_error(k, query, better, worse, samples=400_000, seed=k)
    assert abs(estimate - single) < 4 * error


def test_conditions_are_named():
    q, better, worse = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
    slanted = better + np.array([[0, 0, 1], [0, 0, 0]])
    assert M.broken_conditions(q, slanted, worse, 0) == ["segments 0 and 1 are not orthogonal"]
    assert any("below" in line for line in M.broken_conditions(q, worse, better, 0))
    assert any("is not ⟨q, d1⟩" in line for line in M.broken_conditions(q, better, worse, 1))
    negative = np.array([[1.0, 0, 0], [0, -0.9, 0]]), np.array([[0.5, 0, 0], [0, -0.9, 0]])
    assert any("exceeds" in line for line in M.broken_conditions([1.0, 1, 0], *negative, 0))


def test_a_negative_margin_breaks_the_theorem():
    """Without ⟨q, d1⟩ ≥ ⟨q, d2⟩ a smaller denominator makes a negative margin worse."""
    q, better, worse = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
    same, single = M.segment_margins(q, worse, better, 0)
    assert same < single < 0


def test_edges_and_errors():
    q, better, worse = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
    assert np.all(M.cross_margins(q, better, better).diagonal() == 0)
    with pytest.raises(ValueError, match="no segment of better"):
        M.maxscore_error_bound(8, q, worse, better)
    with pytest.raises(ValueError, match="equally many"):
        M.broken_conditions(q, better, worse[:1], 0)
    with pytest.raises(ValueError, match="segment = 2"):
        M.broken_conditions(q, better, worse, 2)
    with pytest.raises(ValueError, match="query is a zero vector"):
        M.cross_margins(0 * q, better, worse)
    with pytest.raises(ValueError, match=r"query \(2,\)"):
        M.cross_margins(q[:2], better, worse)
    with pytest.raises(ValueError, match="k = 0"):
        M.simulated_maxscore_error(0, q, better, worse)
