"""Choosing a strategy from a few queries: folds, ties, the exact test, and the cost of a wrong choice."""

from itertools import product

import numpy as np
import pytest

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.adaptation import adapt, best, evidence, folds


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_the_default_wins_ties_then_the_earlier_strategy():
    assert best(rows([0.25, 0.75], [0.5, 0.5], [1.0, 0.0])) == 0
    assert best(rows([0.2, 0.2], [0.1, 0.1], [0.4, 0.4], [0.8, 0.0])) == 2
    assert best(rows([0.2, 0.2], [0.1, 0.1], [0.4, 0.4], [0.8, 0.1])) == 3
    # The same measures in another order: a sum that differs in its last bit is no better.
    a, b = [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]
    assert np.mean(a) != np.mean(b)
    assert best(rows(a, b)) == best(rows(b, a)) == 0


def test_the_evidence_is_corrected_by_the_best_of_all_rivals(monkeypatch):
    """Against the definition, pattern by pattern."""
    values = np.random.default_rng(1).normal(size=(5, 6))[[2, 0, 1, 3, 4]]  # the default is worse than all
    d = [[values[s, q] - values[0, q] for q in range(6)] for s in range(1, 5)]

    def t(row: list[float], signs: tuple[int, ...]) -> float:
        return sum(g * x for g, x in zip(signs, row, strict=True)) / sum(x * x for x in row) ** 0.5

    patterns = list(product((1, -1), repeat=6))
    largest = [max(t(row, signs) for row in d) for signs in patterns]
    expected = [np.mean([m >= t(row, (1,) * 6) - 1e-9 for m in largest]) for row in d]
    results = evidence(values)
    assert results[1:] == pytest.approx(expected)
    assert results[0] == 1
    alone = [evidence(values[[0, s]])[1] for s in range(1, 5)]
    assert all(c >= a for c, a in zip(expected, alone, strict=True))
    assert any(c > a for c, a in zip(expected, alone, strict=True))
    monkeypatch.setattr("paradigms.evaluate.adaptation.EXACT_SHOTS", 5)
    sampled = evidence(values)
    assert not np.array_equal(sampled, results)
    assert np.abs(sampled - results).max() < 0.06


def test_adaptation_measures_each_choice_on_the_other_queries():
    values = np.random.default_rng(4).random((4, 30))
    results = adapt(values, 8, best, seed=5)
    first = results.adapted[:3], results.default[:3], results.chosen[:3]  # of the first partition
    for part, adapted, default, chosen in zip(folds(30, 8, seed=[5, 0]), *first, strict=True):
        rest = [q for q in range(30) if q not in part]
        assert chosen == values[:, part].mean(axis=1).argmax()
        assert adapted == pytest.approx(values[chosen, rest].mean())
        assert default == pytest.approx(values[0, rest].mean())
    assert results.gain.mean() == pytest.approx((results.adapted - results.default).mean(), abs=0.01)
    with pytest.raises(ValueError, match="NaN"):
        adapt(np.full((2, 9), np.nan), 2)


def test_intervals_of_the_gain_cover_as_they_say():
    """With all strategies equal, intervals over queries and seeds hold the gain of 0 in about 95% of the
    draws; with folds as a sample they would not."""
    covered, by_folds, draws, shots, seeds = 0, 0, 120, 8, 2
    for n in range(draws):
        random = np.random.default_rng([n, shots])
        values = random.normal(size=(5, 80)) + 0.5 * random.normal(size=(seeds, 5, 80))
        results = [adapt(of_seed, shots) for of_seed in values]
        interval = seeds_interval(np.stack([of.gain for of in results]), resamples=1000)
        covered += interval.low <= 0 <= interval.high
        gains = (results[0].adapted - results[0].default)[: 80 // shots]
        by_folds += abs(gains.mean()) < 1.96 * gains.std(ddof=1) / len(gains) ** 0.5
    assert 0.88 < covered / draws < 0.99
    assert by_folds / draws < 0.75
