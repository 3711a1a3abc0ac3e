"""Buckets: exact laws against enumeration, and the expectation under independence against its definition."""

import numpy as np
import pytest

from theory.buckets import expected_recall


def test_expected_recall_is_that_of_normal_scores() -> None:
    rng = np.random.default_rng(0)
    means, variances = rng.standard_normal(30), rng.uniform(0.5, 2, 30)
    best = np.argsort(-means)[:5]
    for repetitions, candidates in ((1, 5), (4, 8), (100, 5)):
        scores = means + rng.standard_normal((20_000, 30)) * np.sqrt(variances / repetitions)
        first = np.argsort(-scores, 1)[:, :candidates]
        wanted = np.isin(first, best).sum(1).mean() / 5
        assert expected_recall(means, variances, repetitions, best, candidates) == pytest.approx(
            wanted, abs=0.01
        )
