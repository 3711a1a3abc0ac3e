"""The examples, run as a reader would, on a tiny encoder."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import compare
import numpy as np
import pytest

from paradigms import PARADIGMS
from paradigms.align import ALIGNMENTS
from paradigms.data import load, write_folder
from paradigms.data.collection import Collection
from tests import test_laws as laws
from tests.tiny import WORDS

EXAMPLES = Path(__file__).parents[2] / "experiments" / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_on_own_pairs(tiny_bert, tmp_path, capsys):
    words = WORDS.split()
    rows = [{"query": " ".join(words[n : n + 2]), "document": " ".join(words[n : n + 6])} for n in range(12)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    main = example("train_on_own_pairs").main
    main(str(tmp_path / "pairs.jsonl"), str(tiny_bert), str(tmp_path / "out"), steps=2)
    assert (tmp_path / "out" / "checkpoint" / "paradigm.json").is_file()
    assert capsys.readouterr().out.count("\n  ") == 9  # three documents of three queries


def test_search_with_a_checkpoint(tiny_bert):
    found = example("search_with_a_checkpoint").main(str(tiny_bert), "bread rises")
    assert set(found) == {"iron", "bread", "tides"}


def test_compare_two_systems(tiny_bert, capsys):
    example("compare_two_systems").main(str(tiny_bert), documents=100)
    out = capsys.readouterr().out
    assert "nDCG@10" in out
    assert "paired permutation test" in " ".join(out.split())


def test_explain_a_result(tiny_bert, tmp_path, capsys):
    page = tmp_path / "explained.html"
    example("explain_a_result").main("fish in the sea", "the sea has fish", str(tiny_bert), str(page))
    assert "colbert: fish in the sea" in capsys.readouterr().out
    assert page.read_text().count('"system":') == 3


@pytest.mark.parametrize("own", [False, True])
def test_check_a_bound(tmp_path, capsys, own):
    file = ""
    if own:
        rows = np.eye(5)[[0, 0, 1, 2, 0]] + 0.1 * np.random.default_rng(1).standard_normal((5, 5))
        np.save(tmp_path / "rows.npy", rows)
        file = str(tmp_path / "rows.npy")
    example("check_a_bound").main(file, draws=1000)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    told = [[float(value) for value in row] for row in rows if len(row) == 6]
    assert len(told) >= 2
    for _, bound, exact, drawn, needed, lemma in told:
        assert exact <= bound
        assert abs(drawn - exact) <= 4 * (max(exact, 1e-3) / 1000) ** 0.5 + 1e-4
        assert needed < lemma


@pytest.fixture
def added() -> Iterator[ModuleType]:
    """The example's paradigm, registered for one test."""
    before = dict(ALIGNMENTS), dict(PARADIGMS)
    yield example("add_a_paradigm")
    for registry, names in zip((ALIGNMENTS, PARADIGMS), before, strict=True):
        for name in registry.keys() - names.keys():
            del registry[name]


def test_add_a_paradigm(added, tiny_bert, tmp_path):
    """The new alignment obeys the laws, is trained, and stands in the report."""
    case = laws.Case("softmax", "query_tokens", {"tau": 0.5})
    for law in (
        laws.test_padding_changes_nothing,
        laws.test_negative_similarities_lose_to_no_padding,
        laws.test_order_of_candidates_and_tokens_does_not_matter,
        laws.test_slices_of_queries_and_candidates_score_the_same,
        laws.test_empty_texts_score_zero_and_harm_nothing,
        laws.test_one_token_on_each_side_is_the_inner_product,
    ):
        law(case)
    laws.test_in_batch_scoring_equals_rel(case, 1)
    collection = load("pydocs", documents=60)
    folder = tmp_path / "pydocs-60"
    write_folder(Collection("x", collection.corpus, collection.splits, collection.problems, ""), folder)
    settings = compare.Settings(
        collection=str(folder),
        paradigms=["soft_colbert"],
        backbone=str(tiny_bert),
        output=str(tmp_path / "results"),
        steps=1,
        batch_size=4,
        dev_queries=4,
        query_length=16,
        document_length=24,
        tracker="none",
        precision="no",
    )
    compare.main(settings)
    page = (tmp_path / "results" / "report.html").read_text()
    assert re.search(r'"system":\s*"soft_colbert"', page)
    lines = len((EXAMPLES / "add_a_paradigm.py").read_text().splitlines())
    assert lines <= 60
