"""theory.projections: golden values and mpmath; its theorems are checked by experiments/theory_checks.py."""

import math

import mpmath
import numpy as np
import pytest

from theory import projections as P


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
