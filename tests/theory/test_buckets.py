"""Buckets: exact laws against enumeration, and the expectation under independence against its definition."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from theory.buckets import expected_recall, expected_shares


def by_enumeration(angles: list[float], planes: int, fill: bool) -> np.ndarray:
    """E[A] over all Hamming distances of independent tokens."""
    law = [stats.binom.pmf(range(planes + 1), planes, angle / np.pi) for angle in angles]
    found = np.zeros(len(angles))
    for distances in product(range(planes + 1), repeat=len(angles)):
        least = min(distances) if fill else 0
        chosen = np.array(distances) == least
        chance = np.prod([of[h] for of, h in zip(law, distances, strict=True)])
        found += chance * chosen / max(1, chosen.sum())
    return found


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("angles", [[0.3], [0.0, 1.0, 3.0], [1.5] * 4, [0.2, 0.9, np.pi]])
def test_expected_shares_are_those_of_independent_distances(angles: list[float], fill: bool) -> None:
    for planes in (0, 1, 3):
        found = expected_shares(np.array(angles), planes, fill=fill)
        np.testing.assert_allclose(found, by_enumeration(angles, planes, fill), atol=1e-9)
        if fill:
            assert found.sum() == pytest.approx(1)


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
