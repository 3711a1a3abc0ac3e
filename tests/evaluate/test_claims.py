"""Verdicts on claims: what a sample shows, refutes or leaves open."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from paradigms.evaluate import claims, seeds_interval, significance
from paradigms.evaluate.claims import (
    CONTRADICTED,
    NO,
    READOUT,
    REPRODUCED,
    TRAINING,
    UNDECIDED,
    YES,
    Claim,
    judge,
)
from paradigms.evaluate.significance import mean_test


def claim(mean, spread=0.1, seeds=2, queries=200, **settings):
    values = np.random.default_rng(0).normal(size=(seeds, queries))
    values = (values - values.mean()) * spread + mean
    return Claim("Paper 2020, §1", "it is better", "nDCG@10, a − b", values, **settings)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (claim(0.1), REPRODUCED),
        (claim(-0.1), CONTRADICTED),
        (claim(0.001), UNDECIDED),
        (claim(-0.01, least=-0.1), REPRODUCED),
        (claim(-0.2, least=-0.1), CONTRADICTED),
        (claim(0.2, least=0.1), REPRODUCED),
        (claim(0.01, least=0.1), CONTRADICTED),  # an effect, but too small to matter
        (claim(0.0, within=0.05), REPRODUCED),
        (claim(0.1, within=0.05), CONTRADICTED),
        (claim(0.05, within=0.05), UNDECIDED),
        (claim(0.1, unlearned="DPR"), UNDECIDED),
        (claim(0.1, lacking="a second coefficient"), UNDECIDED),
    ],
)
def test_verdict(made, word):
    assert judge([made])[0].word == word


@pytest.mark.parametrize(("mean", "word"), [(0.1, YES), (-0.1, NO), (0.001, UNDECIDED)])
def test_a_control_is_no_claim_of_a_paper(mean, word):
    verdict = judge([replace(claim(mean), place="")])[0]
    assert verdict.word == word
    assert (verdict.row["claim"], verdict.row["place"]) == ("Control: it is better", "–")


def test_what_training_does_is_judged_of_models_that_it_moved():
    still = claim(0.1, unmoved="ColBERT", about=TRAINING)
    assert (
        judge([still])[0].row["verdict"] == "not decided here: training did not move ColBERT on dev queries"
    )
    assert judge([replace(still, unmoved="")])[0].word == REPRODUCED
    readout = judge([replace(still, about=READOUT)])[0]
    assert readout.word == REPRODUCED
    assert readout.row["claim"] == "it is better [about a readout]"


def test_claims_of_a_study_are_one_family():
    alone, family = claim(0.025, queries=60), [claim(0.025, queries=60)] * 40
    assert judge([alone])[0].word == REPRODUCED
    assert {v.word for v in judge(family)} == {UNDECIDED}
    assert "after Holm's correction" in judge(family)[0].reason  # no number of queries: the interval decides


def test_the_queries_that_would_decide_decide():
    few = judge([claim(0.01, queries=50)])[0]
    needed = int(few.reason.split()[-2].replace(",", ""))
    assert few.word == UNDECIDED
    assert judge([claim(0.01, queries=2 * needed)])[0].word == REPRODUCED


def test_equal_results_exclude_only_what_so_many_queries_can():
    """n queries without a loss leave room for losses of probability 1 − .025^(1/n)."""
    zeros = claim(0.0, spread=0.0, seeds=1, queries=100)
    for small, large in (({"least": -0.01}, {"least": -0.04}), ({"within": 0.01}, {"within": 0.04})):
        few = judge([replace(zeros, **small)])[0]
        assert few.row["verdict"] == "not decided here: a mean of this size needs about 369 queries"
        more = judge([replace(zeros, contrast=np.zeros((1, 400)), **small)])[0]
        assert (more.word, judge([replace(zeros, **large)])[0].word) == (REPRODUCED,) * 2


@pytest.mark.parametrize(("n", "losses"), [(100, 0), (100, 3), (30, 9)])
def test_bounds_of_zeros_and_ones_are_exact(n, losses):
    """Above the margin, a loss of 1 is the worst; below it, so is a gain of 1, and the bound is not exact."""
    lost = -np.repeat([1.0, 0.0], [losses, n - losses])
    for margin in (0.02, 0.1, 0.2, 0.5):
        p = 2 * binomtest(losses, n, margin, alternative="less").pvalue
        if p < 0.9:
            assert mean_test(lost, -margin) == pytest.approx(p, abs=0.02)
            four = np.repeat(lost, 4), -margin, [f"{c:02}" for c in np.repeat(np.arange(n), 4)]
            assert mean_test(*four) == mean_test(lost, -margin)


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
# Differences of queries, and their mean: few, discrete, skewed, clustered.
DRAWS: dict[str, tuple[float, Draw]] = {
    "rare losses": (-0.02, lambda g, size: -(g.random(size) < 0.02).astype(float)),
    "rare gains": (0.02, lambda g, size: (g.random(size) < 0.02).astype(float)),
    "losses and gains": (-0.05, lambda g, size: g.choice([-1.0, 0.0, 1.0], size, p=[0.1, 0.85, 0.05])),
    "mostly ties": (-0.02, lambda g, size: -g.random(size) * (g.random(size) < 0.04)),
    "small gains": (-0.02, lambda g, size: np.where(g.random(size) < 0.05, -0.59, 0.01)),
    "small losses": (0.02, lambda g, size: np.where(g.random(size) < 0.05, 0.59, -0.01)),
    "no ties": (-0.02, lambda g, size: 0.1 * g.standard_normal(size) - 0.02),
    "no difference": (0.0, lambda g, size: g.choice([-1.0, 0.0, 1.0], size, p=[0.05, 0.9, 0.05])),
}
# Every rule, with the true mean at its bound: a claim above it, a claim of equality, clusters of queries.
RULES = [
    *((name, {"least": mean}, False) for name, (mean, _) in DRAWS.items()),
    *((name, {"within": 0.02}, False) for name in ("rare losses", "small losses", "no ties")),
    *((name, {"least": DRAWS[name][0]}, True) for name in ("rare losses", "small gains", "no difference")),
]
STUDIES = 250


@pytest.mark.parametrize(("name", "bounds", "clustered"), RULES)
def test_a_mean_at_the_bound_is_rarely_decided(
    monkeypatch: pytest.MonkeyPatch, name: str, bounds: dict[str, float], clustered: bool
) -> None:
    """Of studies whose true mean lies at the bound, 2.5% may be reproduced, 2.5% contradicted, and a few more
    by chance. clustered: 60 articles, each with two queries of the same difference."""
    monkeypatch.setattr(significance, "RESAMPLES", 399)
    monkeypatch.setattr(claims, "seeds_interval", partial(seeds_interval, resamples=300))
    queries = 60 if clustered else 100
    studies = DRAWS[name][1](np.random.default_rng(1), (STUDIES, 1, queries))
    clusters = None
    if clustered:
        studies = np.repeat(studies, 2, axis=2)
        clusters = [f"{n // 2:02}" for n in range(2 * queries)]
    words = [judge([Claim("P", "s", "q", study, **bounds)], clusters)[0].word for study in studies]
    most = binom.isf(0.001, STUDIES, 0.025)
    assert words.count(REPRODUCED) <= most
    assert words.count(CONTRADICTED) <= most


def test_row_reads_alone():
    row = judge([claim(0.001, printed="+2.1")])[0].row
    assert (row["claim"], row["place"]) == ("it is better", "Paper 2020, §1")
    assert row["sample"] == "200 queries, 2 seeds"
    assert row["verdict"].startswith("not decided here: a mean of this size needs about ")


def test_queries_of_one_cluster_count_as_one():
    """Ten queries of each of 20 articles, with the article's value: as certain as 20 queries."""
    twenty = np.random.default_rng(0).normal(0.35, 1, size=(1, 20))
    each = Claim("Paper 2020, §1", "it is better", "nDCG@10, a − b", np.repeat(twenty, 10, axis=1))
    articles = [f"article {n // 10:02}" for n in range(200)]
    (apart,), (together,) = judge([each]), judge([each], articles)
    (few,) = judge([replace(each, contrast=twenty)])
    assert together.p == few.p > apart.p
    assert together.interval == pytest.approx(few.interval)
    assert (apart.word, together.word) == (REPRODUCED, UNDECIDED)
    half = replace(each, contrast=each.contrast[:, :100])
    assert judge([half], articles)[0].interval == pytest.approx(
        judge([replace(each, contrast=twenty[:, :10])])[0].interval
    )
