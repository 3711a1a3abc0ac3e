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


@st.composite
def pools(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(2, 6))
    owners = np.concatenate([np.arange(count), rng.integers(0, count, draw(st.integers(0, 15)))])
    similarities = rng.normal(
        draw(st.sampled_from([-2.0, 0.0, 1.0])), 1, (draw(st.integers(1, 5)), owners.size)
    )
    return similarities, rng.permutation(owners), draw(st.integers(1, owners.size + 2))


def test_scores_by_hand():
    assert xtr.retrieved(P, 2).nonzero()[1].tolist() == [0, 2, 1, 4]
    np.testing.assert_allclose(xtr.colbert_scores(P, OWNERS), [0.4, -0.05, 0.05])
    np.testing.assert_allclose(xtr.xtr_scores(P, OWNERS, 2), [0.4, 0.7, -0.2])
    np.testing.assert_allclose(xtr.imputed_similarities(P, 2), [0.7, -0.2])
    np.testing.assert_allclose(xtr.imputed_scores(P, OWNERS, 2), [0.4, 0.25, 0.25])
    np.testing.assert_allclose(xtr.imputation_gap(P, OWNERS, 2), [0, 0.3, 0.2], atol=1e-15)
    assert xtr.candidates(P, OWNERS, 2).all()
    assert xtr.candidates(P, OWNERS, 1).tolist() == [True, False, False]


@given(pools())
def test_scores_equal_loops(pool):
    similarities, owners, k = pool
    count, n = owners.max() + 1, len(similarities)
    colbert, full, imputed = np.zeros(count), np.zeros(count), np.zeros(count)
    for document in range(count):
        z = 0
        for row in similarities:
            top = sorted(range(row.size), key=lambda j: -row[j])[:k]
            mine = [row[j] for j in top if owners[j] == document]
            colbert[document] += max(row[j] for j in range(row.size) if owners[j] == document) / n
            full[document] += max(mine, default=0)
            imputed[document] += max(mine, default=row[top[-1]]) / n
            z += bool(mine)
        full[document] /= max(z, 1e-6)
    np.testing.assert_allclose(xtr.colbert_scores(similarities, owners), colbert, atol=1e-12)
    np.testing.assert_allclose(xtr.xtr_scores(similarities, owners, k), full, atol=1e-12)
    np.testing.assert_allclose(xtr.imputed_scores(similarities, owners, k), imputed, atol=1e-12)
    for shift in (-10, 0, 10):  # m_i of either sign: the condition that Eq. 4 puts on it is not needed
        printed = xtr.imputed_scores_as_printed(similarities + shift, owners, k)
        np.testing.assert_allclose(printed, xtr.imputed_scores(similarities + shift, owners, k), atol=1e-12)


@given(st.integers(2, 5000), st.floats(0.01, 0.999))
def test_largest_temperature_inverts_the_limit(batch, probability):
    temperature = xtr.largest_temperature(batch, probability)
    if math.isfinite(temperature):
        assert xtr.positive_probability_limit(batch, temperature) == pytest.approx(probability, rel=1e-9)
    else:
        assert probability <= 1 / batch + 1e-12


def test_a_loss_far_above_one_is_finite():
    assert xtr.level_loss(128, 0.2, 0.8, 1e-4) == pytest.approx(6000 + np.log(127))
