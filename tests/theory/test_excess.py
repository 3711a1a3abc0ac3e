"""The excess by hand, floors by counting, and errors; the laws are in theory/claims/imputation.py."""

import numpy as np

from theory import excess


def test_excess_by_hand():
    maxima = np.array([[0.9, 0.4], [0.2, 0.6]])
    np.testing.assert_allclose(excess.excess(maxima, [0.5, 0.3]), [0.2, 0.15])


def test_the_floor_of_a_mixture_leaves_the_share_above_it():
    rng = np.random.default_rng(0)
    shares, locations, scales = [0.05, 0.15, 0.8], [0.6, 0.5, 0.0], [0.1, 0.05, 0.1]
    component = rng.choice(3, 400_000, p=shares)
    drawn = np.take(locations, component) + np.take(scales, component) * rng.exponential(size=component.size)
    for share in (0.001, 0.02, 0.3):
        floor = excess.mixture_floor(share, shares, locations, scales)
        error = np.sqrt(share * (1 - share) / drawn.size)
        assert abs((drawn > floor).mean() - share) < 4.5 * error
