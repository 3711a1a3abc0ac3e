"""experiments/low_rank.py: heads as the decoder has them, hand-made cases, and verdicts that can turn."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import low_rank
import numpy as np
import pytest
import torch
from studies import attention_heads, low_rank_report
from studies.attention_heads import best_names, chosen_pairs, seen
from studies.low_rank_report import COUNTED, LOW, Measured, absolute_share, claims, correlation, r_squared

from paradigms.data import load
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.generative.targets import Targets
from paradigms.io.settings import from_command_line
from tests.tiny_attention import heads, write_collection
from tests.tiny_generative import generative, named, texts
from theory import low_rank as lemma

QUERY, NAMES = "the quick red fox", [[20, 21, 22], [20, 23], [24, 25, 26, 27, 28]]
FILES = {
    f"{name}.{kind}" for name in ("claims", "layers", "shares", "heads") for kind in ("csv", "json", "md")
}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("data") / "tiny")


def run(collection: Path, backbone: Path, output: Path, **changes: object) -> None:
    settings: dict[str, object] = {
        "collection": collection,
        "backbone": backbone,
        "paradigm": "genre",
        "steps": 2,
        "batch_size": 4,
        "seeds": "[0,1]",
        "output": output,
        "tracker": "none",
    } | changes
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    low_rank.main(from_command_line(low_rank.Settings, low_rank.__doc__ or "", arguments))


@pytest.fixture(scope="module")
def results(collection: Path, seq2seq: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "low-rank"
    run(collection, seq2seq["t5-v1.1"], output)
    return output


# --- what the heads see -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["t5", "t5-v1.1", "mt5"])
def test_scores_of_the_factors_are_the_decoders_own(seq2seq: dict[str, Path], family: str) -> None:
    model = generative(seq2seq[family], named(NAMES))
    targets = [model.target(n) for n in range(3)]
    views = seen(model, QUERY, targets)
    sources = model.tokenize([QUERY])
    for view, target in zip(views, targets, strict=True):
        assert view.scores.shape == (2, 2, len(target), 5)  # layers, heads, the name and its end, the query
        W = np.einsum("lhkx,lhky->lhxy", *view.read)
        S = lemma.attention_scores(view.states[:, None], view.memory, W)
        assert view.scores == pytest.approx(S, abs=1e-9)
        interaction = decompose(model, sources, Targets.pad([[target]]), "logit")[-1]
        own = interaction.alignment.reshape(view.scores.shape).numpy()
        assert lemma.alignment(view.scores) == pytest.approx(own, abs=1e-9)
        assert view.attention == pytest.approx(own, abs=1e-9)
    assert not any(
        a.q._forward_pre_hooks for a in (b.layer[1].EncDecAttention for b in model.backbone.decoder.block)
    )


def test_the_best_name_is_that_of_the_largest_rel(seq2seq: dict[str, Path]) -> None:
    model = generative(seq2seq["t5"], texts([list(range(20, 29)), [30, 31]]), decode="spans", span=4)
    windows = [list(range(first, first + 4)) for first in (20, 24, 25)]
    with torch.no_grad():
        rel = [
            float(
                model.token_scores(model.tokenize([QUERY]), Targets.pad([[window]]), "log_probability").sum()
            )
            for window in windows
        ]
    assert best_names(model, QUERY, ["d1", "d0"]) == [[30, 31], windows[int(np.argmax(rel))]]
    with pytest.raises(SystemExit, match="'d7'"):
        best_names(model, QUERY, ["d0", "d7"])


def test_pairs_are_judged_queries_with_their_most_relevant(collection: Path) -> None:
    split = load(collection).split("test")
    pairs = chosen_pairs(split, 3)
    assert [(pair.query_id, pair.document_id) for pair in pairs] == [
        ("q12", "d12"),
        ("q14", "d14"),
        ("q16", "d16"),
    ]
    split.judgements["q12"] |= {"d3": 2, "d2": 2, "d1": 0}
    assert chosen_pairs(split, 3)[0].document_id == "d2"


# --- numbers ----------------------------------------------------------------------------------------


def measured(documents: np.ndarray, queries: np.ndarray, **more: Any) -> dict[str, np.ndarray]:
    view = heads(documents, queries, **more)
    return low_rank.head_measures(view, low_rank.weight_norms(view), np.random.default_rng(0))


def test_the_golden_case() -> None:
    """D = Q = W = 1: A = ((e, 1), (1, e))/(1 + e), R = ((1, 1), (1, 1))/2."""
    found = {key: float(value[0, 0]) for key, value in measured(np.eye(2), np.eye(2)).items()}
    e = float(np.e)
    assert found["row_error"] == pytest.approx((e - 1) / (e + 1))
    assert found["row_bound"] == pytest.approx(2 * np.tanh(0.25))
    assert found["second"] == pytest.approx((e - 1) / (e + 1))  # singular values 1 and (e − 1)/(e + 1)
    assert found["spectral_error"] == pytest.approx(found["second"])
    assert found["best_error"] == pytest.approx(found["second"] / np.hypot(1, found["second"]))
    assert found["norm_bound"] == pytest.approx(0.5 * np.sqrt(0.5) * np.sqrt(2))
    assert found["weight"] == found["weight_rows"] == 1
    assert found["gamma"] == pytest.approx(found["row_error"] / 4)
    assert found["printed_row_error"] == pytest.approx((e - 1) / (e + 1))  # here r = (1, 1)/2, as softmax(r)
    assert found["uniform_error"] == pytest.approx(0, abs=1e-7)


def test_the_measures_are_the_theorys_own() -> None:
    rng = np.random.default_rng(1)
    D, Q = 2 * rng.standard_normal((5, 4)), rng.standard_normal((6, 4))
    found = measured(D, Q, layers=2, count=3)
    S = lemma.attention_scores(D, Q)
    A = lemma.alignment(S)
    best, error = lemma.best_rank_one(A)
    expected = {
        "best_error": error,
        "second": np.linalg.norm(A - best, 2),
        "norm_bound": lemma.norm_bound(D, Q),
        "printed_row_error": lemma.row_norm(A - lemma.rank_one_as_printed(S)),
        "printed_error": np.linalg.norm(A - lemma.rank_one_as_printed(S)) / np.linalg.norm(A),
        "gamma": lemma.gamma_as_printed(A, lemma.rank_one(S), np.eye(4)),
        "stable_rank": lemma.stable_rank(A),
        "tokens": 5,
        "query_tokens": 6,
    }
    for key, value in expected.items():
        assert found[key].shape == (2, 3)
        assert found[key] == pytest.approx(np.full((2, 3), value), rel=1e-9), key


def test_equal_rows_are_of_rank_one_and_shuffled_ones_are_not() -> None:
    found = measured(np.tile([[1.0, 2.0, -1.0]], (6, 1)), np.random.default_rng(2).standard_normal((8, 3)))
    for key in ("best_error", "softmax_error", "second", "row_error"):
        assert found[key] == pytest.approx(0, abs=1e-7)
    assert found["stable_rank"] == pytest.approx(1)
    assert found["shuffled_error"] > 0.3
    assert found["unrelated_error"] > 0.3


def test_unrelated_rows_have_the_entropy_of_those_they_replace() -> None:
    rng = np.random.default_rng(3)
    A = lemma.alignment(rng.standard_normal((2, 3, 5, 7)) * np.geomspace(0.01, 30, 5)[:, None])
    B = low_rank.same_entropy(A, rng)
    assert low_rank.row_entropy(B) == pytest.approx(low_rank.row_entropy(A), abs=1e-6)
    assert B.sum(-1) == pytest.approx(1)
    assert np.abs(B - A).max() > 0.1
    certain = low_rank.same_entropy(np.eye(4)[None], rng)
    assert certain.max(-1) == pytest.approx(1)


def test_one_token_is_of_rank_one() -> None:
    found = measured(np.ones((1, 3)), np.random.default_rng(4).standard_normal((5, 3)))
    assert found["best_error"] == found["second"] == found["shuffled_second"] == 0


def test_parts_of_rel(seq2seq: dict[str, Path]) -> None:
    model = generative(seq2seq["t5-v1.1"], named(NAMES))
    pairs = [
        attention_heads.Pair(f"q{n}", f"{QUERY} {word}", f"d{n}")
        for n, word in enumerate(["river", "is", ""])
    ]
    names = [model.target(n) for n in range(3)]
    found = low_rank.parts(model, pairs, names)
    assert set(found) == {
        (scorer, form)
        for scorer in ("log_probability", "logit", "centred_logit")
        for form in low_rank_report.FORMS
    }
    for n, pair in enumerate(pairs):
        sources, targets = model.tokenize([pair.query]), Targets.pad([[names[n]]])
        with torch.no_grad():
            rel = float(model.token_scores(sources, targets, "centred_logit").sum())
        D, Q, interaction = decompose(model, sources, targets, "centred_logit", "direct")
        part = ((D.vectors[0, 0] @ Q.vectors[0, 0].T) * interaction.alignment[0, 0]).sum()
        assert found["centred_logit", "direct"][0][n] == pytest.approx(rel, abs=1e-9)
        assert found["centred_logit", "direct"][1][n] == pytest.approx(float(part), abs=1e-9)


def test_shares_by_hand() -> None:
    rel, part = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 5.0])
    assert r_squared(rel, rel) == 1
    assert r_squared(rel, part) == pytest.approx(1 - 2 / 14)
    assert r_squared(rel, np.full(3, 3.0)) == 0
    assert correlation(rel, 2 * rel - 1) == pytest.approx(1)
    assert np.isnan(correlation(rel, np.zeros(3)))
    assert absolute_share(rel, part) == pytest.approx([2 / 3, 1, 5 / 6])
    assert absolute_share(np.zeros(1), np.zeros(1)) == 0


# --- verdicts ---------------------------------------------------------------------------------------


def planted(**changes: float) -> list[Measured]:
    """Two models of which every statement of the paper holds, but for the changes."""
    numbers = {
        "best_error": 0.2,
        "softmax_error": 0.3,
        "spectral_error": 0.2,
        "stable_rank": 1.1,
        "spread": 1.0,
        "row_error": 0.2,
        "row_bound": 0.5,
        "norm_bound": 3.0,
        "shuffled_error": 0.6,
        "unrelated_error": 0.7,
        "uniform_error": 0.0,
        "printed_error": 0.3,
        "printed_row_error": 0.4,
        "second": 0.1,
        "shuffled_second": 0.4,
        "weight": 0.49,
        "weight_rows": 0.45,
        "gamma": 0.1,
        "entropy": 0.5,
        "tokens": 5.0,
        "query_tokens": 9.0,
    } | changes
    shape = (6, 2, 2)
    values = {key: np.full(shape, value) for key, value in numbers.items()}
    parts = {("logit", form): (np.arange(6.0), np.arange(6.0)) for form in low_rank_report.FORMS}
    return [Measured(name, [f"q{n}" for n in range(6)], values, parts) for name in "ab"]


def verdicts(models: list[Measured]) -> list[bool]:
    rows = claims(models)
    assert [row["verdict"] for row in rows[-1:]] == ["out of reach at this scale"]
    assert {row[COUNTED] for row in rows} == {f"{len(models)} × 6 × 4", "–"}
    return [row["verdict"] == "reproduced" for row in rows[:-1]]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"second": 0.3}, [0, 1]),
        ({"row_error": 0.4}, [0, 1]),
        ({"shuffled_second": 0.2}, [1]),
        ({"best_error": 0.55}, [2, 5]),
        ({"shuffled_error": 0.2}, [3]),
        ({"unrelated_error": 0.1}, [4]),
        ({"printed_error": 4.0}, [6]),
        ({"printed_row_error": 2.0}, [7]),
        ({"weight_rows": 0.6}, [8]),
        ({"row_bound": 0.19}, [9]),
    ],
)
def test_each_verdict_turns_with_its_number(changes: dict[str, float], wrong: list[int]) -> None:
    assert LOW == 0.5
    assert [n for n, holds in enumerate(verdicts(planted(**changes))) if not holds] == wrong


def test_low_in_most_heads_is_not_inherent() -> None:
    models = planted()
    models[0].values["best_error"][:, 1, 1] = 0.9
    assert [n for n, holds in enumerate(verdicts(models)) if not holds] == [5]
    assert "worst head on average: 0.900" in claims(models)[5]["we measured"]


# --- the script -------------------------------------------------------------------------------------


def test_a_run_writes_every_table(results: Path, collection: Path) -> None:
    assert {file.name for file in results.iterdir()} >= FILES | {"figure4.png", "report.html", "config.json"}
    with (results / "heads.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["model"], row["layer"], row["head"]) for row in rows] == [
        (f"seed {seed}", layer, head) for seed in (0, 1) for layer in "12" for head in "12"
    ]
    model = Generative.from_pretrained(results / "models" / "seed-1" / "checkpoint")
    errors = []
    for pair in chosen_pairs(load(collection).split("test"), 100):
        (view,) = seen(model, pair.query, best_names(model, pair.query, [pair.document_id]))
        errors.append(lemma.report(view.scores)["best_error"][1, 0])  # type: ignore[index]
    assert float(rows[6]["best_error"]) == pytest.approx(np.mean(errors), abs=1e-6)
    assert len(json.loads((results / "shares.json").read_text())) == 9
    table = (results / "claims.md").read_text().splitlines()
    assert len(table) == 2 + len(json.loads((results / "claims.json").read_text()))
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_what_is_trained_is_not_trained_again(
    results: Path, collection: Path, seq2seq: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "again"
    shutil.copytree(results, output)
    before = (output / "heads.csv").read_text()
    monkeypatch.setattr(attention_heads, "fit_generative", lambda *_: pytest.fail("the checkpoint was there"))
    run(collection, seq2seq["t5-v1.1"], output)
    assert (output / "heads.csv").read_text() == before
    with pytest.raises(SystemExit, match="steps: 2 then, 3 now"):
        run(collection, seq2seq["t5-v1.1"], output, steps=3)
    one = json.dumps([str(output / "models" / "seed-1" / "checkpoint")])
    run(collection, seq2seq["t5-v1.1"], tmp_path / "read", checkpoints=one)
    lines = (tmp_path / "read" / "heads.csv").read_text().splitlines()
    assert len(lines) == 5


def test_wrong_settings_are_named(collection: Path, seq2seq: dict[str, Path], tmp_path: Path) -> None:
    backbone = seq2seq["t5-v1.1"]
    with pytest.raises(SystemExit, match="unknown paradigm colbert"):
        run(collection, backbone, tmp_path / "a", paradigm="colbert")
    with pytest.raises(SystemExit, match="--checkpoints: nowhere"):
        run(collection, backbone, tmp_path / "b", checkpoints='["nowhere"]')
    assert low_rank.Settings(backbone=str(backbone), steps=0).seeds == [0]
