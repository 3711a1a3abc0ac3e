"""XTR's scores by hand and by loops, and errors; its theorems are checked by experiments/theory_checks.py."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory import token_retrieval as xtr

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


@given(st.integers(2, 5000), st.floats(0.01, 0.999))
def test_largest_temperature_inverts_the_limit(batch, probability):
    temperature = xtr.largest_temperature(batch, probability)
    if math.isfinite(temperature):
        assert xtr.positive_probability_limit(batch, temperature) == pytest.approx(probability, rel=1e-9)
    else:
        assert probability <= 1 / batch + 1e-12


def test_a_loss_far_above_one_is_finite():
    assert xtr.level_loss(128, 0.2, 0.8, 1e-4) == pytest.approx(6000 + np.log(127))
