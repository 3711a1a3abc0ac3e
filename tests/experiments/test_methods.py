"""experiments/methods.py: each method against a slow twin, and a run on tiny encoders."""

import json
from pathlib import Path

import numpy as np
import pytest
from methods import CONTROLS, Candidates, largest, soft
from transformers import BertForMaskedLM

from tests.experiments import scripts
from tests.near import assert_same
from tests.tiny import write_headed


@pytest.fixture
def candidates() -> Candidates:
    """Forty documents of 1 to 5 tokens, and a query of 6."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 40)
    starts = np.cumsum(lengths) - lengths
    S = random.uniform(-1, 1, (6, lengths.sum()))
    return Candidates(np.arange(40), np.arange(6), np.arange(lengths.sum()), starts, S)


def documents(each: Candidates) -> list[np.ndarray]:
    return np.split(each.S, each.starts[1:], axis=1)


def test_the_soft_maximum_is_a_softmax_within_each_document(candidates: Candidates) -> None:
    weights = [np.exp(S / 0.1) / np.exp(S / 0.1).sum(1, keepdims=True) for S in documents(candidates)]
    expected = [(w * S).sum(1).mean() for w, S in zip(weights, documents(candidates), strict=True)]
    assert_same(soft(candidates, 0.1), np.array(expected))
    assert_same(soft(candidates, 1e-6), candidates.maxima().mean(0))


def test_the_largest_tokens_of_each_document_stay() -> None:
    offsets = np.array([0, 3, 3, 4, 8])
    stays = largest(np.array([0.1, 0.9, 0.5, 0.0, 4.0, 1.0, 3.0, 2.0]), offsets, 2)
    assert stays.tolist() == [False, True, True, True, True, False, True, False]


@pytest.mark.slow
def test_the_script_measures_every_method(tiny_bert: Path, tmp_path: Path) -> None:
    words = scripts.write_words(tmp_path)
    headed = write_headed(BertForMaskedLM, tmp_path / "headed")
    options = {
        "backbone": tiny_bert,
        "output": tmp_path / "out",
        "collections": f"[{words}]",
        "splade": headed,
    }
    scripts.run("methods", **options, precision="no", tracker="none", depth=20)
    stages, table = sorted(scripts.published(tmp_path / "out"))
    recall, first, reranked = json.loads((tmp_path / "out" / f"{stages}.json").read_text())
    rows = json.loads((tmp_path / "out" / f"{table}.json").read_text())
    assert reranked["measure"] == "nDCG@10 by MaxSim"
    assert reranked["BM25"] == rows[0]["nDCG@10"] != first["BM25"]
    assert recall["SPLADE"] != recall["BM25"]
    assert [row["method"] for row in rows] == list(CONTROLS)
    assert {row["vectors/document"] for row in rows[:4]} == {rows[0]["vectors/document"]}
    half = next(row for row in rows if row["method"] == "half of the tokens, rare")
    assert half["vectors/document"] < rows[0]["vectors/document"]
