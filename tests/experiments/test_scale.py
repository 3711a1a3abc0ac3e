"""The scale benchmark end to end on a tiny collection, and the law by which it composes documents."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
import scale
from parts import composed, stages, systems


@pytest.mark.slow
def test_every_stage_is_measured_once(
    words: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def worker(name, job, threads, python, limit):
        measured.append((job["stage"], job["form"], job["documents"]))
        return json.loads(json.dumps(systems.measure(json.loads(json.dumps(job)))))

    monkeypatch.setattr(stages, "in_worker", worker)
    settings = scale.Settings(
        collections={str(words): 0}, sizes=[40, 1100], queries=6, tokens=8, splade=0,
        backbone=str(tiny_bert), most={"exact": 40, "XTR, exact": 40},
        systems=["compressed", "exact", "XTR", "one vector", "BM25", "LEMUR, 256"],
        output=str(tmp_path / "out"),
    )  # fmt: skip
    scale.main(settings)
    once = list(measured)
    scale.main(settings)
    assert measured == once  # a second start measures nothing again
    scale.main(replace(settings, report=True, sizes=[40, 1100, 2000]))
    assert measured == once
    study = json.loads((tmp_path / "out" / "study.json").read_text())
    searches = study["sections"]["searches"]["rows"]
    exact = [row for row in searches if row["system"].endswith("exact")]
    assert len(exact) == 6
    assert all(row["recall@10"].startswith("1.000") for row in exact)  # XTR's too: it retrieves every token
    coded = [row["of XTR's"] for row in searches if row["system"] == "XTR, 4 bits"]
    assert all(float(found[:5]) > 0.8 for found in coded[:4])
    assert coded[4:] == ["–"] * 4
    laws = study["sections"]["law"]["rows"]
    bytes = next(row for row in laws if (row["system"], row["quantity"]) == ("compressed", "MB"))
    grown = bytes["10,000,000"] * 100 ** float(bytes["exponent"])
    assert bytes["1,000,000,000"] == pytest.approx(grown, rel=0.05)  # of an exponent with two decimals
    assert not list((tmp_path / "out" / "indexes").iterdir())


@pytest.fixture
def real(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, 600)
    values = random.standard_normal((lengths.sum(), 8)) + 3 * random.standard_normal(8)
    values = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)
    queries = values[:6].astype(np.float32), np.array([2, 4])
    composed.write(tmp_path, "tokens", (values, lengths), np.arange(600) % 3, queries, 0)
    return tmp_path


def test_documents_do_not_depend_on_the_range_they_are_drawn_in(real: Path) -> None:
    documents = composed.Composed(str(real), "tokens")
    whole = list(documents.parts(0, 3000))
    assert [id for names, _ in whole for id in names] == [str(n) for n in range(3000)]
    [(names, tokens)] = documents.parts(2100, 2104)
    assert names == whole[2][0][52:56]
    there = tokens.mask[0]
    assert (tokens.vectors[0][there] == whole[2][1].vectors[0, 52:56, : there.shape[1]][there]).all()


def test_composed_tokens_keep_the_moments_of_their_cells(real: Path) -> None:
    """Mean and covariance of all tokens agree with those of the real ones, up to the drawing."""
    documents = composed.Composed(str(real), "tokens", real=0)
    drawn = np.concatenate([values for _, (values, _) in documents.blocks(0, 20_000)]).astype(np.float64)
    values = np.load(real / "tokens.values.npy").astype(np.float64)
    assert np.abs(np.linalg.norm(drawn, axis=1) - 1).max() < 2e-3  # in float16
    assert np.abs(drawn.mean(0) - values.mean(0)).max() < 0.02
    assert np.abs(np.cov(drawn.T) - np.cov(values.T)).max() < 0.02
