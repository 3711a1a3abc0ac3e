"""The runner of the theorems: passes as shipped, fails when a statement of ours is broken, and only then."""

import json
import math

import numpy as np
import pytest
import theory_checks as checks

from tests.experiments.scripts import settings
from theory import (
    answerable,
    buckets,
    capacity,
    cells,
    cosine,
    entropic,
    low_rank,
    multivector,
    projections,
    recall,
    token_retrieval,
)

SHIPPED = {
    "false as printed": "lemma_5_2 low_rank_is_inherent separable_bound",
    "holds with correction": "dual_temperature few_iterations temperature cross_pairs web_scale "
    "exact_sparsity lemma_5_1",
    "holds": "lemma_1 lemma_2 corollary_1 distortion_is_not_ranking gradient_mass theorem_1 "
    "tight_up_to_a_constant recall_law_simulated entropic_solution atomic_identifiers sets_by_dimension",
}


def run(samples=100, **flags):
    return checks.main(settings("theory_checks", samples=samples, **flags))


def test_everything_holds_as_shipped_with_two_seeds(tmp_path):
    assert run(output=tmp_path, samples=25, seeds=2) == 0
    report = json.loads((tmp_path / "checks.json").read_text())
    assert report["summary"].startswith(f"{len(checks.THEOREMS)} claims, seeds 0 to 1: ")
    verdicts = {row["name"]: row["verdict"] for row in report["theorems"]}
    assert list(verdicts) == list(checks.THEOREMS)
    assert set(verdicts.values()) == {"holds", "holds with correction", "false as printed"}
    for verdict, names in SHIPPED.items():
        assert {verdicts[name] for name in names.split()} == {verdict}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"checks.json", "spent.json", "study.json", "theory_checks.html"}


BROKEN = [  # our statement, how to break it, and a theorem that must notice
    (projections, "pairwise_error", lambda value: 2 * np.asarray(value) + 0.5, "lemma_1"),
    (recall, "lemma2_bound", lambda value: 0.05 * np.asarray(value), "lemma_2"),
    (multivector, "segment_margins", lambda value: value[::-1], "theorem_1"),
    (entropic, "entropic_top_k", lambda value: 0.99 * value, "entropic_solution"),
    (token_retrieval, "imputed_scores", lambda value: value - 0.01, "imputation"),
    (low_rank, "row_bound", lambda value: 0.5 * np.asarray(value), "lemma_5_1"),
    (capacity, "moment_queries", lambda value: -value, "web_scale"),
    (answerable, "one_vector", lambda value: value._replace(answerable=True), "answerable_queries"),
    (cells, "log_patterns", lambda value: 0.5 * value, "cells_of_patterns"),
    (cosine, "cosine_error", lambda value: 0.6 * value + 0.4, "cosine_law"),
    (buckets, "expected_shares", lambda value: 0.5 * value, "bucket_shares_of_many"),
]


@pytest.mark.parametrize(("module", "function", "change", "theorem"), BROKEN)
def test_a_broken_statement_of_ours_fails(monkeypatch, tmp_path, module, function, change, theorem):
    original = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *a, **k: change(original(*a, **k)))
    assert run(output=tmp_path, only=theorem) == 1
    assert json.loads((tmp_path / "checks.json").read_text())["theorems"][0]["verdict"] == "FAILS"


@pytest.mark.parametrize(("tolerance", "verdict"), [(1.0, "holds"), (0.5, "FAILS")])
def test_of_several_seeds_the_worst_counts(monkeypatch, tmp_path, capsys, tolerance, verdict):
    drawn = []

    def once(rng, samples):
        drawn.append(float(rng.random()))
        return checks.Evidence(drawn[-1], samples, tolerance=tolerance)

    monkeypatch.setitem(checks.THEOREMS, "lemma_1", checks.Theorem("s", "source", "none", "", once))
    assert run(output=tmp_path, only="lemma_1", seed=7, seeds=3) == (verdict == "FAILS")
    assert min(drawn) < 0.5 < max(drawn)
    report = json.loads((tmp_path / "checks.json").read_text())
    assert "1 claims, seeds 7 to 9: " in report["summary"]
    assert f"1 {verdict}" in report["summary"]
    (row,) = report["theorems"]
    worst = 7 + drawn.index(max(drawn))
    assert (row["violation"], row["samples"], row["seed"]) == (max(drawn), 300, worst)
    assert (f"off by {max(drawn):.3g} (seed {worst})" in capsys.readouterr().out) == (verdict == "FAILS")


def test_a_correction_needs_a_measured_difference():
    mended = checks.Theorem("s", "source", "none", "but", None, "as printed")

    def verdict(violation, printed, allowed=0.0):
        return checks.verdict(mended, checks.Evidence(violation, 1, printed=printed, allowed=allowed))

    assert verdict(0.0, 0.1) == "holds with correction"
    assert {verdict(0.0, None), verdict(0.0, 0.1, 0.2), verdict(0.0, 0.0)} == {"holds"}
    for violation in (0.1, math.inf, math.nan):
        assert verdict(violation, 0.1) == "FAILS"
