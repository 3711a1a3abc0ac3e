"""Verdicts on claims: what a sample shows, refutes or leaves open."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from paradigms.evaluate import claims, measures, seeds_interval, significance
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


def claim(mean, seeds=3, queries=200, **settings):
    values = np.random.default_rng(0).normal(size=(seeds, queries))
    values = (values - values.mean()) * 0.1 + mean
    return Claim("Paper 2020, §1", "it is better", "nDCG@10, a − b", values, **settings)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (claim(0.1), REPRODUCED),
        (claim(-0.1), CONTRADICTED),
        (claim(0.001), UNDECIDED),
        (claim(-0.01, least=-0.1), REPRODUCED),
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
    verdict = "not decided here: training did not move ColBERT on dev queries"
    assert judge([still])[0].row["verdict"] == verdict
    assert judge([replace(still, unmoved="")])[0].word == REPRODUCED
    readout = judge([replace(still, about=READOUT)])[0]
    assert readout.word == REPRODUCED
    assert readout.row["claim"] == "it is better [about a readout]"


def test_claims_of_a_study_are_one_family():
    alone = claim(0.08, seeds=1, queries=60)
    family = [alone] * 40
    assert judge([alone])[0].word == REPRODUCED
    assert {v.word for v in judge(family)} == {UNDECIDED}
    assert judge(family)[0].reason == "a mean of this size needs about 135 queries", "of each of 40 claims"
    still = replace(alone, about=TRAINING, unmoved="DPR")
    assert judge([alone, *[still] * 39])[0].word == REPRODUCED, "39 are open whatever test queries say"
    for by_test_queries in (replace(still, by_measure=True), replace(alone, unlearned="DPR")):
        assert judge([alone, *[by_test_queries] * 39])[0].word == UNDECIDED


def test_the_queries_that_would_decide_decide():
    few = judge([claim(0.01, seeds=1, queries=50)])[0]
    needed = int(few.reason.split()[-2].replace(",", ""))
    assert few.word == UNDECIDED
    assert judge([claim(0.01, seeds=1, queries=2 * needed)])[0].word == REPRODUCED


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


def test_seeds_that_differ_leave_a_claim_open():
    """Two seeds of +.30 and +.10: their mean is +.20, and a third seed may well be below 0."""
    two = np.array([[0.3], [0.1]]) + np.random.default_rng(0).normal(0, 0.01, (2, 400))
    verdict = judge([Claim("P", "s", "q", two, least=0.01)])[0]
    reason = "its training seeds differ too much: it needs more of them"
    assert (verdict.word, verdict.reason) == (UNDECIDED, reason)
    assert seeds_interval(two).low > 0.05, "their bootstrap does not show it"


@pytest.mark.parametrize(("seeds", "resampled"), [(2, 0.72), (3, 0.83), (5, 0.89)])  # on the page of verdicts
def test_intervals_of_few_seeds_hold_the_mean(monkeypatch, seeds, resampled):
    """Standard deviations: seeds .1, queries .3, and .02 between seeds on a query; 100 queries."""
    draw = np.random.default_rng(0).standard_normal
    studies = 0.1 * draw((STUDIES, seeds, 1)) + 0.3 * draw((STUDIES, 1, 100))
    studies += 0.02 * draw((STUDIES, seeds, 100))
    few = partial(seeds_interval, resamples=300)
    bootstrap = np.mean([low < 0 < high for _, low, high in map(few, studies)])
    assert abs(bootstrap - resampled) < 0.01
    monkeypatch.setattr(claims, "seeds_interval", few)
    missed = sum(not low < 0 < high for _, low, high in map(claims.claim_interval, studies))
    assert missed <= binom.isf(0.001, STUDIES, 0.05)


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
# Differences of queries, and their mean: few, discrete, skewed.
DRAWS: dict[str, tuple[float, Draw]] = {
    "rare losses": (-0.02, lambda g, size: -(g.random(size) < 0.02).astype(float)),
    "losses": (-0.3, lambda g, size: -(g.random(size) < 0.3).astype(float)),
    "gains": (0.3, lambda g, size: (g.random(size) < 0.3).astype(float)),
    "losses and gains": (-0.05, lambda g, size: g.choice([-1.0, 0.0, 1.0], size, p=[0.1, 0.85, 0.05])),
    "mostly ties": (-0.02, lambda g, size: -g.random(size) * (g.random(size) < 0.04)),
    "small gains": (-0.02, lambda g, size: np.where(g.random(size) < 0.05, -0.59, 0.01)),
    "small losses": (0.02, lambda g, size: np.where(g.random(size) < 0.05, 0.59, -0.01)),
    "no ties": (-0.02, lambda g, size: 0.1 * g.standard_normal(size) - 0.02),
    "skewed around 0": (0.0, lambda g, size: np.where(g.random(size) < 0.1, -0.9, 0.1)),
}
STUDIES = 500


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_p_at_the_bound_is_rarely_small(monkeypatch, name, clustered):
    """Of studies whose true mean is the bound, at most a share α has p ≤ α, half on each side, up to chance.

    clustered: four queries of each cluster have the same difference.
    """
    monkeypatch.setattr(significance, "RESAMPLES", 399)
    mean, draw = DRAWS[name]
    copies = 4 if clustered else 1
    studies = np.repeat(draw(np.random.default_rng(1), (STUDIES, 60)), copies, axis=1)
    clusters = [f"{n // copies:02}" for n in range(60 * copies)] if clustered else None
    p = np.array([mean_test(study, mean, clusters) for study in studies])
    for side in (studies.mean(1) > mean, studies.mean(1) < mean):
        for level in (0.05, 0.2, 0.5):
            assert (p[side] <= level).sum() <= binom.isf(0.001, STUDIES, level / 2), level


def test_draws_that_are_kept_are_those_of_a_first_call(monkeypatch):
    once, again = judge([claim(0.1)])[0], judge([claim(0.1)])[0]
    for module in (measures, significance):
        monkeypatch.setattr(module, "KEPT_QUERIES", 0)
    anew = judge([claim(0.1)])[0]
    assert (anew.p, anew.interval) == (once.p, once.interval) == (again.p, again.interval)


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
    (few,) = judge([replace(each, contrast=twenty[:, :10])])
    assert judge([half], articles)[0].interval == pytest.approx(few.interval)


def noise(generator: np.random.Generator, size: tuple[int, ...], mean: float = 0.0) -> np.ndarray:
    return 0.2 * generator.standard_normal(size) + mean


# Studies whose true mean is at a bound: settings, queries, values, and the shares of studies that are called
# reproduced and contradicted. A table on the page of verdicts has them in the same order.
RULES: list[tuple[dict[str, Any], int, Draw, tuple[float, float]]] = [
    ({}, 100, noise, (0.004, 0.0)),
    ({}, 100, DRAWS["skewed around 0"][1], (0.014, 0.006)),
    ({"least": 0.01}, 100, partial(noise, mean=0.01), (0.004, 0.0)),
    ({"least": -0.02}, 400, lambda g, size: -(g.random(size) < 0.02).astype(float), (0.012, 0.004)),
    ({"within": 0.02}, 400, partial(noise, mean=0.02), (0.0, 0.008)),
    ({"least": 0.01, "clusters": 4}, 400, partial(noise, mean=0.01), (0.004, 0.0)),
    ({"least": 0.01, "seeds": 3}, 100, partial(noise, mean=0.01), (0.01, 0.022)),
]


@pytest.mark.parametrize(("settings", "queries", "draw", "shares"), RULES)
def test_verdicts_at_a_bound_are_rarely_wrong(monkeypatch, settings, queries, draw, shares):
    """At most 2.5% of studies for each verdict, up to chance. seeds: they differ by a third as queries do."""
    monkeypatch.setattr(significance, "RESAMPLES", 399)
    monkeypatch.setattr(claims, "seeds_interval", partial(seeds_interval, resamples=400))
    more = dict(settings)
    copies = more.pop("clusters", 1)
    seeds = more.pop("seeds", 1)
    generator = np.random.default_rng(2)
    studies = np.repeat(draw(generator, (STUDIES, 1, queries // copies)), copies, axis=2)
    if seeds > 1:
        studies = studies + generator.normal(0, 0.2 / 3, (STUDIES, seeds, 1))
    clusters = [f"{n // copies:03}" for n in range(queries)] if copies > 1 else None
    words = [judge([Claim("P", "s", "q", study, **more)], clusters)[0].word for study in studies]
    for word, share in zip((REPRODUCED, CONTRADICTED), shares, strict=True):
        assert words.count(word) <= binom.isf(0.001, STUDIES, 0.025)
        assert abs(words.count(word) / STUDIES - share) <= 0.004


def test_the_page_has_the_shares_of_wrong_verdicts():
    page = (Path(__file__).parents[2] / "experiments/VERDICTS.md").read_text(encoding="utf-8")
    table = page.partition("| least effect; differences of queries |")[2].split("\n\n")[0]
    rows = [line.split("|")[2:4] for line in table.splitlines()[2:]]
    shares = [[float(cell.strip(" %")) / 100 for cell in row] for row in rows]
    assert shares == [pytest.approx(of_rule) for *_, of_rule in RULES]
