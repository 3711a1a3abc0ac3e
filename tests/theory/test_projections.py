"""theory.projections: golden values, mpmath and simulation as ground truth, the paper's misprints."""

import math
import re

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from theory import projections as P
from theory.roots import decreasing_root

EPSILON = [0.02, 0.05, 0.1, 0.2, 0.4]
GOLDEN_ERROR = {
    32: [0.45530544, 0.38942497, 0.28682009, 0.12838173, 0.0095404359],
    64: [0.43667994, 0.34506071, 0.21217799, 0.053690575, 0.00043795761],
    128: [0.41065700, 0.28605891, 0.12881649, 0.011261566, 1.2083845e-6],
    256: [0.37459044, 0.21193667, 0.054527243, 0.00061988713, 1.2405777e-11],
    512: [0.32550026, 0.12891680, 0.011685252, 2.4441914e-6, 1.7995829e-21],
    1024: [0.26111628, 0.054731595, 0.0006700264, 5.1035272e-11, 5.2770832e-41],
}
SMALL = st.floats(1e-3, 0.999)
DIMENSION = st.integers(1, 5000)


def reference_log_error(k: float, margin: float) -> float:
    """ln of ½ I_{1−ε²}(k/2, ½) to 40 digits."""
    with mpmath.workdps(40):
        sine2 = 1 - mpmath.mpf(margin) ** 2
        return float(mpmath.log(mpmath.betainc(mpmath.mpf(k) / 2, 0.5, 0, sine2, regularized=True) / 2))


class TestMargin:
    def test_values_and_shapes(self):
        assert P.normalized_margin([1, 0], [1, 0], [0, 1]) == pytest.approx(1 / math.sqrt(2), rel=1e-14)
        assert isinstance(P.normalized_margin([1, 0], [1, 0], [0, 1]), float)
        rng = np.random.default_rng(0)
        q, better, worse = rng.normal(size=(5, 1, 7)), rng.normal(size=(5, 1, 7)), rng.normal(size=(1, 4, 7))
        margins = P.normalized_margin(q, better, worse)
        assert margins.shape == (5, 4)
        delta = better[2, 0] - worse[0, 3]
        expected = q[2, 0] @ delta / np.linalg.norm(q[2, 0]) / np.linalg.norm(delta)
        assert margins[2, 3] == pytest.approx(expected, rel=1e-12)

    def test_sparse_equals_dense(self):
        rng = np.random.default_rng(1)
        q, better, worse = (
            rng.poisson(0.5, 30) + 0.0,
            rng.poisson(0.5, 30) + 0.0,
            rng.poisson(0.5, (6, 30)) + 0.0,
        )
        rows = [sparse.csr_array(np.atleast_2d(x)) for x in (q, better, worse)]
        np.testing.assert_allclose(
            P.normalized_margin(*rows), P.normalized_margin(q, better, worse), rtol=1e-13
        )
        with pytest.raises(ValueError, match="d1 ≠ d2"):
            P.normalized_margin(rows[0], rows[1], rows[1])
        with pytest.raises(ValueError, match="query is a zero vector"):
            P.normalized_margin(0 * rows[0], rows[1], rows[2])
        with pytest.raises(ValueError, match="worse"):
            P.normalized_margin(rows[0], rows[1], rows[2] * np.nan)

    @given(st.floats(1e-200, 1e150), st.floats(1e-200, 1e150))
    def test_scale_free_in_query_and_difference(self, a, b):
        q, better, worse = np.array([1.0, 2, 0]), np.array([3.0, 1, 1]), np.array([0.0, 1, 2])
        expected = P.normalized_margin(q, better, worse)
        assert P.normalized_margin(a * q, b * better, b * worse) == pytest.approx(expected, rel=1e-12)

    def test_not_invariant_where_the_scores_are(self):
        q, better, worse, s = np.array([1.0, 1]), np.array([2.0, 0]), np.array([0.0, 1]), np.array([1.0, 5.0])
        assert (s * q) @ (better / s) == pytest.approx(q @ better)
        moved = P.normalized_margin(s * q, better / s, worse / s)
        assert abs(moved - P.normalized_margin(q, better, worse)) > 0.1


class TestExactError:
    def test_golden(self):
        for k, row in GOLDEN_ERROR.items():
            np.testing.assert_allclose(P.pairwise_error(k, EPSILON), row, rtol=1e-7)

    def test_lemma1_golden_and_empty_cells(self):
        for k, epsilon, value in ((128, 0.4, 0.093633008), (256, 0.2, 0.43501607), (1024, 0.1, 0.36676316)):
            assert P.pairwise_error_bound(k, epsilon) == pytest.approx(value, rel=1e-7)
        grid = P.pairwise_error_bound(np.array(list(GOLDEN_ERROR))[:, None], EPSILON)
        assert np.sum(grid > 1) == 21

    @pytest.mark.parametrize(
        ("k", "margin"),
        [
            (1, 0.5),
            (1.5, 1e-9),
            (3, 0.999999),
            (200, 0.99),
            (4000, 0.4),
            (1000, 0.7),
            (7900, 0.4),
            (1e4, 0.01),
            (300, 0.3),
        ],
    )
    def test_against_mpmath_down_to_1e_300(self, k, margin):
        reference = reference_log_error(k, margin)
        assert reference > -695
        assert P.pairwise_error(k, margin) == pytest.approx(math.exp(reference), rel=1e-9)
        assert P.log_pairwise_error(k, margin) == pytest.approx(reference, rel=1e-11, abs=1e-12)

    @pytest.mark.parametrize(
        ("k", "margin"), [(1e4, 0.9), (31_000, 0.2), (64, 1 - 1e-12), (2e5, 0.1), (9000, 0.4)]
    )
    def test_log_form_below_the_smallest_number(self, k, margin):
        assert P.log_pairwise_error(k, margin) == pytest.approx(reference_log_error(k, margin), rel=1e-11)

    def test_log_form_is_continuous_where_the_method_changes(self):
        k = np.linspace(7000, 9000, 400)
        second = np.diff(P.log_pairwise_error(k, 0.4), 2)
        assert np.all(np.abs(second) < 1e-3)

    @given(DIMENSION, SMALL)
    def test_second_closed_form_and_bounds(self, k, margin):
        from scipy.special import betainc

        error = P.pairwise_error(k, margin)
        assert error == pytest.approx(betainc(k / 2, k / 2, (1 - margin) / 2), rel=1e-8, abs=1e-300)
        assert error <= 0.5 * (1 - margin**2) ** (k / 2) * (1 + 1e-9) + 1e-300
        assert error <= P.pairwise_error_bound(k, margin, constant=2) * (1 + 1e-9)
        assert P.pairwise_error_bound(k, margin) == 2 * P.pairwise_error_bound(k, margin, constant=2)

    def test_explicit_matrices_agree(self):
        q, better, worse = [1.0, 2, 0, 1], [1.0, 1, 0, 0], [0.0, 1, 2, 0]
        margin = P.normalized_margin(q, better, worse)
        estimate, error = P.simulated_error(6, q, better, worse, ensemble="gaussian", samples=40_000, seed=3)
        assert abs(estimate - P.pairwise_error(6, margin)) < 4 * error

    def test_margin_one_never_errs(self):
        assert P.pairwise_error(5, 1.0) == 0
        assert P.log_pairwise_error(5, 1.0) == -math.inf
        assert P.required_dimension(1.0) == 1
        assert P.required_dimension(1.0, method="exact_real") == 1


class TestProjectedMargin:
    def test_closed_forms(self):
        """One dimension leaves a sign only; ε = 1 stays; the loss is (1 − ε²)/(2k) to first order."""
        margin = np.array([0.01, 0.3, 0.99])
        np.testing.assert_allclose(
            P.projected_margin(1, margin), 1 - 2 * P.pairwise_error(1, margin), rtol=1e-9
        )
        np.testing.assert_allclose(P.projected_margin([1, 10, 20, 1e6], 1.0), 1, rtol=1e-9)
        np.testing.assert_allclose(P.projected_margin(1e5, margin) / margin, 1, atol=1e-5)
        shrunk = 1 - (1 - margin**2) / (2 * 400)
        np.testing.assert_allclose(P.projected_margin(400, margin) / margin, shrunk, atol=1e-5)
        below, above = P.projected_margin([[20 - 1e-9], [20]], margin)  # where the method changes
        np.testing.assert_allclose(below, above, rtol=1e-9)

    @given(DIMENSION, SMALL)
    def test_a_projection_costs_margin_but_never_all_of_it(self, k, margin):
        assert 0 < P.projected_margin(k, margin) <= margin * (1 + 1e-10)

    def test_explicit_matrices_agree(self):
        rng = np.random.default_rng(6)
        q, better, worse = [1.0, 2, 0, 1], [1.0, 1, 0, 0], [0.0, 1, 2, 0]
        matrices = rng.standard_normal((20_000, 5, 4))
        found = P.normalized_margin(*(matrices @ np.array(x) for x in (q, better, worse)))
        expected = P.projected_margin(5, P.normalized_margin(q, better, worse))
        assert abs(found.mean() - expected) < 4 * found.std() / math.sqrt(20_000)


class TestRequiredDimension:
    def test_golden(self):
        assert P.required_dimension(EPSILON).tolist() == [6764, 1082, 270, 67, 17]
        assert P.required_dimension(EPSILON, 0.01).tolist() == [13528, 2163, 539, 134, 32]
        real = P.required_dimension(EPSILON, method="exact_real")
        lemma = P.required_dimension(EPSILON, method="lemma1")
        np.testing.assert_allclose(real, [6763.0057, 1081.3638, 269.69842, 66.773025, 16.002295], rtol=1e-7)
        np.testing.assert_allclose(lemma, [44412.432, 7253.0096, 1878.0114, 505.61846, 149.38727], rtol=1e-7)
        np.testing.assert_allclose(
            lemma / real, [6.566966, 6.707280, 6.963376, 7.572196, 9.335365], rtol=1e-6
        )

    def test_limits_that_the_figure_should_show(self):
        tiny = 1e-5
        ratio = P.required_dimension(tiny, method="lemma1") / P.required_dimension(tiny, method="exact_real")
        assert ratio == pytest.approx(6.4785899, rel=1e-4)
        assert P.required_dimension(tiny, method="lemma1") * P.distortion(tiny) == pytest.approx(
            8.7640533, rel=1e-7
        )
        slope = P.required_dimension(tiny, method="exact_real") * P.distortion(tiny)
        assert slope == pytest.approx(1.3528, rel=1e-4)

    def test_solver_solves(self):
        margin = np.geomspace(1e-6, 0.99, 200)
        for beta in (1e-200, 1e-6, 0.05, 0.3):
            k = P.required_dimension(margin, beta, "exact_real")
            inside = k > 1
            np.testing.assert_allclose(P.log_pairwise_error(k, margin)[inside], math.log(beta), rtol=1e-9)

    @given(st.floats(0.003, 1), st.floats(1e-12, 0.999))
    def test_whole_k_is_the_smallest(self, margin, beta):
        k = P.required_dimension(margin, beta)
        assert k == int(k)
        assert P.pairwise_error(k, margin) <= beta
        assert k == 1 or P.pairwise_error(k - 1, margin) > beta

    def test_a_bound_is_not_the_minimum(self):
        """'Any k ≥ k* suffices, lower may do as well' is true of the bound; below k* nothing does."""
        bound, star = P.required_dimension(0.1, method="lemma1"), P.required_dimension(0.1)
        assert P.pairwise_error(bound / 2, 0.1) < 0.05
        assert P.pairwise_error(star - 1, 0.1) > 0.05

    def test_approximation(self):
        for margin in (0.01, 0.05, 0.1):
            gap = P.required_dimension(margin, method="approximation")
            assert abs(gap - P.required_dimension(margin, method="exact_real")) < 0.01
        gap = P.required_dimension(0.4, method="approximation") - P.required_dimension(
            0.4, method="exact_real"
        )
        assert abs(gap) == pytest.approx(0.06, abs=0.01)

    def test_corollary1_and_its_printed_rearrangement(self):
        """A.2 ends in ln β ≤ ln 4 − ε²k/12, rearranged with the sign the wrong way round: k = 1 would do."""
        margin, beta = 0.2, 0.05
        k = P.required_dimension(margin, beta, "corollary1")
        assert k > P.required_dimension(margin, beta, "lemma1")
        # With equality in k, hence the printed strictness is not needed.
        assert 4 * math.exp(-(k * margin**2) / 12) == pytest.approx(beta)
        assert P.pairwise_error_bound(k, margin) <= beta

        def printed(k):
            return math.log(beta) <= math.log(4) - margin**2 * k / 12

        assert printed(1)
        assert P.pairwise_error(1, margin) > beta
        assert not printed(2 * k)
        assert P.pairwise_error(2 * k, margin) < beta

    def test_a_limit_on_distortion_is_none_on_ranking(self):
        """§2.2: Ω(ε⁻²) dimensions for inner products within ε; two rank n orthonormal documents, any n."""
        angles = 2 * np.pi * np.arange(500) / 500
        scores = np.cos(angles[:, None] - angles)
        assert np.all(scores.argmax(axis=1) == np.arange(500))
        assert np.abs(scores - np.eye(500)).max() > 0.99

    def test_projection_is_k_by_v(self):
        """Lemma 1 prints A in R^{k×d}; d names documents, and the matrix acts on the vocabulary."""
        estimate, _ = P.simulated_error(3, np.eye(5)[0], np.eye(5)[0], np.eye(5)[1], samples=10)
        assert 0 <= estimate <= 1

    def test_two_beats_four_for_rademacher_too(self):
        k = np.arange(1, 400)
        for margin in (0.1, 0.2, 0.5, 0.7):
            exact = P.rademacher_error_two_sparse(k, margin)
            assert np.all(exact <= P.pairwise_error_bound(k, margin, constant=2) + 1e-15)


class TestBoolean:
    def test_golden(self):
        assert P.boolean_required_dimension(8, 100) == 4329
        assert P.boolean_required_dimension(8, 100, method="corollary2") == pytest.approx(84134.911, rel=1e-7)

    def test_worst_margin_is_attained_and_never_passed(self):
        q = np.r_[np.ones(3), np.zeros(9)]
        better, worse = np.zeros(12), np.zeros(12)
        better[[0, 3, 4, 5]], worse[[6, 7, 8, 9]] = 1, 1
        assert P.normalized_margin(q, better, worse) == pytest.approx(P.boolean_margin(3, 4), rel=1e-14)
        rng = np.random.default_rng(0)
        for _ in range(300):
            q, better, worse = (rng.integers(0, 2, 12) for _ in range(3))
            terms = max(better.sum(), worse.sum())
            if q @ better > q @ worse:
                assert P.normalized_margin(q, better, worse) >= P.boolean_margin(q.sum(), terms) - 1e-12

    def test_per_pair_only(self):
        """Read as a statement about all pairs at once, the k of one pair fails."""
        from theory.recall import orthogonal_recall_failure

        k = P.required_dimension(0.2)
        assert P.pairwise_error(k, 0.2) <= 0.05
        assert orthogonal_recall_failure(k, [0.2] * 100, 1) > 0.9


class TestRademacher:
    def test_two_sparse_golden(self):
        error = P.rademacher_error_two_sparse(np.arange(1, 120), 0.2)
        assert np.argmax(error <= 0.05) + 1 == 60
        assert np.flatnonzero(error > 0.05)[-1] + 1 == 73
        assert P.rademacher_required_dimension(0.2, definition="first") == 60
        assert P.rademacher_required_dimension(0.2) == 74
        assert P.required_dimension(0.2) == 67
        assert np.any(np.diff(error) > 0)

    def test_two_sparse_is_what_matrices_do(self):
        for k, margin in ((7, 0.3), (40, 0.2), (8, 0.6)):
            pair = [1.0, 0.0], [margin, math.sqrt(1 - margin**2)], [0.0, 0.0]
            if margin == 0.6:  # ratio ¾: ties, decided exactly by whole numbers
                pair = [1.0, 0.0], [3.0, 4.0], [0.0, 0.0]
            for ties in (True, False):
                estimate, error = P.simulated_error(k, *pair, ties=ties, samples=40_000, seed=k)
                exact = P.rademacher_error_two_sparse(k, margin, ties=ties)
                assert abs(estimate - exact) < 4 * error
        tie = P.rademacher_error_two_sparse(8, 0.6) - P.rademacher_error_two_sparse(8, 0.6, ties=False)
        assert tie == pytest.approx(8 / 256, rel=1e-12)

    def test_variance_needs_kappa(self):
        """(k, ε) alone, which serves the Gaussian, misses; the corrected variance holds."""
        rng = np.random.default_rng(5)
        q = np.ones(6)
        worse = -np.array([1.0, 1, 1, -0.5, -0.5, -0.5])
        margin, kappa = P.normalized_margin(q, [0] * 6, worse), P.concentration(q, [0] * 6, worse)
        signs = 2.0 * rng.integers(0, 2, (400_000, 6)) - 1
        row = (signs @ q / math.sqrt(6)) * (signs @ -worse / np.linalg.norm(worse))
        assert row.mean() == pytest.approx(margin, abs=4 * row.std() / 632)
        assert row.var() == pytest.approx(1 + margin**2 - 2 * kappa, rel=0.02)
        q, better = np.array([3.0, 1, 1]), np.array([1.0, -1, -1])
        margin, kappa = P.normalized_margin(q, better, [0] * 3), P.concentration(q, better, [0] * 3)
        estimate, _ = P.simulated_error(20, q, better, [0] * 3, samples=60_000, seed=1)
        assert abs(estimate - P.rademacher_error_normal(20, margin, kappa)) < 0.01
        assert abs(estimate - P.pairwise_error(20, margin)) > 0.02

    def test_large_margins_never_err(self):
        assert P.rademacher_error_two_sparse(1, 0.8) == 0
        assert P.rademacher_error_two_sparse(4, 1.0) == 0
        assert P.rademacher_required_dimension(0.9) == 1
        assert P.rademacher_error_normal(3, 1.0, 1.0) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: P.pairwise_error(8, 0.0), "margin = 0; allowed: in (0, 1]"),
        (lambda: P.pairwise_error(8, [0.1, 1.5]), "margin contains 1.5"),
        (lambda: P.pairwise_error(8, math.nan), "margin = nan"),
        (lambda: P.pairwise_error(0, 0.5), "k = 0; allowed: finite and at least 1"),
        (lambda: P.log_pairwise_error(math.inf, 0.5), "k = inf"),
        (lambda: P.pairwise_error_bound(8, 0.5, constant=0), "constant = 0"),
        (lambda: P.required_dimension(0.5, 0.0), "beta = 0; allowed: in (0, 1)"),
        (lambda: P.required_dimension(0.5, 1.0), "beta = 1"),
        (lambda: P.required_dimension(0.5, 0.6, "approximation"), "(0, 0.5)"),
        (lambda: P.required_dimension(0.5, 0.05, "guess"), "allowed: exact, exact_real"),
        (lambda: P.normalized_margin([0, 0], [1, 0], [0, 1]), "query is a zero vector"),
        (lambda: P.normalized_margin([1, 0], [1, 1], [1, 1]), "d1 ≠ d2"),
        (lambda: P.normalized_margin([1, 0], [1, 0, 0], [0, 1]), "query (2,), better (3,) and worse (2,)"),
        (lambda: P.concentration([1, 0], [1, 1], [1, 1]), "d1 ≠ d2"),
        (lambda: P.projected_margin(0, 0.5), "k = 0"),
        (lambda: P.normalized_margin([1, math.nan], [1, 1], [1, 0]), "query contains nan"),
        (lambda: P.boolean_margin(0, 5), "query_terms = 0"),
        (lambda: P.rademacher_error_normal(8, 0.5, 0.9), "kappa"),
        (lambda: P.rademacher_error_two_sparse(2.5, 0.5), "k = 2.5; allowed: a whole number"),
        (lambda: P.rademacher_required_dimension(0.5, definition="last"), "allowed: first, stable"),
        (lambda: P.rademacher_required_dimension(1e-5), "needs a scan"),
        (lambda: P.simulated_error(2, [1, 0], [1, 0], [0, 1], ensemble="sparse"), "gaussian, rademacher"),
        (lambda: decreasing_root(lambda x: 1 + 0 * x, 0, 1), "contains its root"),
    ],
)
def test_bad_arguments_say_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
