"""experiments/kernel.py: fast forms against theory/kernels.py, hand-made cases, verdicts that can turn."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import kernel
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from studies import attention_heads, kernel_report
from studies.attention_heads import Seen
from studies.kernel_report import BALANCED, POSITIVE, Measured, claims

from paradigms.io.settings import from_command_line
from tests.tiny_attention import heads, write_collection
from theory import kernels

FEATURES, DRAWS = [8, 64], [0, 1]


def vectors(rng: np.random.Generator, count: int, length: float) -> np.ndarray:
    x = rng.standard_normal((count, 4))
    return length * x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def views() -> list[Seen]:
    """Four candidates of one query, short enough for few features."""
    rng = np.random.default_rng(0)
    Q = vectors(rng, 5, 1.0)
    return [heads(vectors(rng, m, 0.9), Q, layers=1, count=2) for m in (3, 1, 4, 2)]


@pytest.fixture(scope="module")
def found(views: list[Seen]) -> dict[str, dict[str, np.ndarray]]:
    return kernel.query_measures(views, FEATURES, DRAWS)


def twin(views: list[Seen], features: kernels.FeatureMap) -> tuple[float, float]:
    """Median error and τ by theory/kernels.py; both heads of `views` are the same."""
    pairs = [(view.states[0], view.memory) for view in views]
    exact = np.array([kernels.relevance(D, Q) for D, Q in pairs])
    other = np.array([kernels.kernel_relevance(D, Q, features) for D, Q in pairs])
    return float(np.median(np.abs(other / exact - 1))), float(stats.kendalltau(exact, other).statistic)


@pytest.mark.parametrize(("name", "features"), [("elu", kernels.elu), ("elu + 1", kernels.elu_plus_one)])
def test_maps_without_chance_are_the_theorys(
    views: list[Seen], found: dict[str, dict[str, np.ndarray]], name: str, features: kernels.FeatureMap
) -> None:
    error, tau = twin(views, features)
    assert found[name]["error"] == pytest.approx([error])
    assert found[name]["tau"] == pytest.approx([tau])


def test_positive_features_are_the_theorys(
    views: list[Seen], found: dict[str, dict[str, np.ndarray]]
) -> None:
    for m in FEATURES:
        for row, draw in enumerate(DRAWS):
            projections = kernels.orthogonal_projections(4, max(FEATURES), draw)[:m]
            error, tau = twin(views, lambda X, W=projections: kernels.positive_features(X, W))  # type: ignore[misc]
            assert found[f"{POSITIVE}, {m}"]["error"][row] == pytest.approx(error)
            assert found[f"{POSITIVE}, {m}"]["tau"][row] == pytest.approx(tau)


def test_the_printed_forms_by_hand() -> None:
    """d = (1, −ln 2), q = (1, 2): φ(d)ᵀφ(q) = 1·1 − ½·2 = 0, so no p restores dᵀq = 1 − 2 ln 2."""
    D, Q = np.array([[1.0, -np.log(2)]]), np.array([[1.0, 2.0], [0.5, 0.5]])
    seen = heads(D, Q)
    found = kernel.query_measures([seen, seen], [4], [0])
    assert found["elu"]["no weight"] == 0.5  # the other is 1·.5 − ½·.5 > 0
    S = D @ Q.T
    exact = float((S * softmax(S)).sum())
    assert found["elu"]["error"] == pytest.approx(abs(S[0, 1] / exact - 1))  # all weight is the second's
    assert found["elu, softmax's p"]["error"] == pytest.approx(
        abs(S[0, 1] * 0.25 / np.exp(S).sum() / exact - 1)
    )
    assert found["uniform"]["error"] == pytest.approx(abs(S.mean() / exact - 1))
    assert found["uniform"]["tau"] == 0  # two equal candidates have no order


def test_the_separable_bound_is_the_theorys(
    views: list[Seen], found: dict[str, dict[str, np.ndarray]]
) -> None:
    factor = [kernels.separable_factor(view.states[0], kernels.elu) for view in views]
    exact = [kernels.relevance(view.states[0], view.memory) for view in views]
    assert found["separable bound"]["tau"] == pytest.approx([stats.kendalltau(factor, exact).statistic])


def test_many_features_of_short_vectors_are_nearly_exact(views: list[Seen]) -> None:
    found = kernel.query_measures(views, [16, 8192], [0, 1, 2])
    for name in (POSITIVE, BALANCED):
        few, many = (found[f"{name}, {m}"] for m in (16, 8192))
        assert many["error"].mean() < min(0.05, few["error"].mean() / 3)
        assert many["kernel"].mean() < few["kernel"].mean() / 3
        assert many["predicted"] == pytest.approx(few["predicted"] - np.log10(8192 / 16) / 2)


def test_the_predicted_deviation_is_the_theorys() -> None:
    x, y = np.array([0.3, 0.4]), np.array([0.5, -0.1])
    squared = np.array(((x + y) ** 2).sum())
    expected = np.log10(kernels.kernel_relative_deviation(x, y, 32))
    assert kernel.log_deviation(squared, 32) == pytest.approx(expected)
    assert kernel.log_deviation(np.array(4000.0), 100) == pytest.approx(2000 / np.log(10) - 1)


def test_the_kernel_of_long_vectors_neither_overflows_nor_vanishes() -> None:
    rng = np.random.default_rng(5)
    W = kernels.orthogonal_projections(4, 64, 0)
    short = vectors(rng, 3, 1.0), vectors(rng, 2, 1.5)
    direct = np.log(kernels.positive_features(short[0], W) @ kernels.positive_features(short[1], W).T)
    assert kernel.log_kernel(*short, W) == pytest.approx(direct)
    x, y = vectors(rng, 3, 50.0), vectors(rng, 2, 40.0)
    sums = x[:, None] + y[None]
    logs = sums @ W.T
    expected = np.logaddexp.reduce(logs, axis=-1) - np.log(64)
    expected -= ((x**2).sum(1)[:, None] + (y**2).sum(1)[None]) / 2
    assert (kernels.positive_features(x, W) == 0).any()
    assert kernel.log_kernel(x, y, W) == pytest.approx(expected)


def test_balancing_keeps_the_softmax_and_shortens_the_sums() -> None:
    rng = np.random.default_rng(6)
    D, Q = rng.standard_normal((2, 3, 5, 4)), 9 + 6 * rng.standard_normal((2, 3, 7, 4))
    x, y = kernel.balanced(D, Q)
    before, after = (a @ np.swapaxes(b, -1, -2) for a, b in ((D, Q), (x, y)))
    assert softmax(after, -1) == pytest.approx(softmax(before, -1), abs=1e-9)
    lengths = [np.linalg.norm(z, axis=-1).mean(-1) for z in (x, y)]
    assert lengths[0] == pytest.approx(lengths[1])
    assert (x**2).sum(-1).mean() + (y**2).sum(-1).mean() < 0.5 * (
        (D**2).sum(-1).mean() + (Q**2).sum(-1).mean()
    )


def test_kendall_is_scipys() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.integers(4, size=(2, 20, 6)).astype(float)
    expected = [stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert kernel.kendall(a, b) == pytest.approx(np.nan_to_num(expected))


# --- verdicts ---------------------------------------------------------------------------------------


def planted(**changes: dict[str, float]) -> list[Measured]:
    """Two models of which every statement holds, but for the changes: map (spaces as _) -> measures."""
    maps = {
        "elu": {"error": 0.05, "tau": 0.95, "no weight": 0.0},
        "elu, softmax's p": {"error": 0.9, "tau": 0.1},
        "elu + 1": {"error": 0.3, "tau": 0.5},
        "uniform": {"error": 0.4, "tau": 0.3},
        "separable bound": {"tau": 0.95},
    }
    for name in (POSITIVE, BALANCED):
        for m, error in zip(FEATURES, (0.3, 0.02), strict=True):
            maps[f"{name}, {m}"] = {"error": error, "tau": 0.95, "kernel": 0.5, "predicted": 2.0}
    for name, values in changes.items():
        maps[name.replace("_", " ")] |= values
    full = {
        name: {key: np.full((2 if "predicted" in one else 1, 5), value) for key, value in one.items()}
        for name, one in maps.items()
    }
    return [Measured(name, [f"q{n}" for n in range(5)], 11.0, full) for name in "ab"]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"elu": {"error": 0.2}}, [0]),
        ({"elu": {"tau": 0.5}}, [0]),
        ({"elu": {"no weight": 0.01}}, [1]),
        ({"uniform": {"error": 0.01}}, [2]),
        ({f"{POSITIVE}, 64": {"tau": 0.5}}, []),
        ({f"{POSITIVE}, 64": {"error": 0.5}, f"{BALANCED}, 64": {"error": 0.2}}, [3]),
        ({f"{BALANCED}, 64": {"error": 0.31}}, [4]),
        ({"separable bound": {"tau": -0.1}}, [5]),
    ],
)
def test_each_verdict_turns_with_its_number(changes: dict[str, dict[str, float]], wrong: list[int]) -> None:
    rows = claims(planted(**changes), FEATURES)
    assert [n for n, row in enumerate(rows) if row["verdict"] != "reproduced"] == wrong
    assert rows[0][kernel_report.COUNTED] == "2 × 5 × 11.0"


# --- the script -------------------------------------------------------------------------------------


def test_a_run_writes_its_tables_and_reads_checkpoints(
    seq2seq: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, collection = tmp_path / "kernel", write_collection(tmp_path / "tiny")
    settings = {
        "collection": collection,
        "backbone": seq2seq["t5-v1.1"],
        "steps": 1,
        "batch_size": 4,
        "seeds": "[3]",
        "candidates": 4,
        "features": "[32,8]",
        "draws": "[0,1]",
        "tracker": "none",
    }

    def run(**more: object) -> None:
        arguments = [f"--{name}={value}" for name, value in (settings | more).items()]
        kernel.main(from_command_line(kernel.Settings, kernel.__doc__ or "", arguments))

    run(output=output)
    names = {f"{name}.{kind}" for name in ("claims", "maps") for kind in ("csv", "json", "md")}
    assert {file.name for file in output.iterdir()} >= names | {"kernel.png", "report.html"}
    with (output / "maps.csv").open() as stream:
        rows = {row["φ"]: row for row in csv.DictReader(stream)}
    assert list(rows) == [
        *("elu", "elu, softmax's p", "elu + 1", "uniform", "separable bound"),
        *(f"{name}, {m}" for name in (POSITIVE, BALANCED) for m in (8, 32)),
    ]
    monkeypatch.setattr(attention_heads, "fit_generative", lambda *_: pytest.fail("the checkpoint was there"))
    checkpoints = json.dumps([str(output / "models" / "seed-3" / "checkpoint")])
    run(output=tmp_path / "read", checkpoints=checkpoints)
    assert (tmp_path / "read" / "maps.csv").read_text() == (output / "maps.csv").read_text()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SystemExit, match="two candidates"):
        kernel.Settings(candidates=1)
    with pytest.raises(SystemExit, match="at least 1"):
        kernel.Settings(features=[0, 4])
    assert kernel.Settings(features=[64, 8, 8]).features == [8, 64]
    assert kernel_report.SMALL == 0.1
