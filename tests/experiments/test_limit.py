"""experiments/limit.py: the collection has every set, each claim is measured."""

import json
import os
import re
from itertools import product

import limit
import numpy as np
import pytest
from limit import Settings

from tests.experiments.scripts import published, run, unmeasured


@pytest.mark.parametrize(("dislikes", "distractors"), [(False, 0), (True, 0), (True, 3)])
def test_every_set_is_asked_for_once(dislikes, distractors):
    built = limit.collection(Settings(documents=8, dislikes=dislikes, distractors=distractors))
    judged = [frozenset(grades) for split in built.splits.values() for grades in split.judgements.values()]
    assert len(judged) == len(set(judged)) == 28
    assert {len(documents) for documents in judged} == {2}
    assert len(built.corpus) == (8 + distractors) * (1 + dislikes)
    assert len({len(re.findall(r"\w+", text)) for text in built.corpus}) == 1
    texts = dict(zip(built.corpus.ids, built.corpus, strict=True))
    for split in built.splits.values():
        for query, grades in split.judgements.items():
            word = split.queries[query].removeprefix("Who likes ").removesuffix("?")
            liked = {
                id for id, text in texts.items() if word in re.findall(r"\w+", text.split(" likes ")[-1])
            }
            assert {id for id in liked if " likes " in texts[id]} == set(grades)
            assert len(liked) == 2 * (1 + dislikes)


def test_the_fewest_documents_have_queries_of_each_split():
    splits = limit.collection(Settings(documents=4)).splits
    assert {name: len(split.queries) for name, split in splits.items()} == {"dev": 1, "train": 2, "test": 3}


def test_a_run_reports(tiny_bert, tmp_path):
    few = {"documents": 6, "steps": 1, "batch_size": 2}
    atomic = {"paradigm": "dsi", "options": {"identifiers": "atomic", "softmax": "place"}}
    atomic["training"] = {"batch_size": 2}
    systems = {"dpr": {}, "dsi-atomic": atomic}
    few |= {"systems": json.dumps(systems), "tracker": "none"}
    run("limit", backbone=tiny_bert, output=tmp_path / "limit", **few)
    assert published(tmp_path / "limit") == {"claims", "training", "paradigms", "paradigms.svg"}
    first = json.loads((tmp_path / "limit/paradigms.json").read_text())[0]
    assert first["R@2"].startswith("1.000")  # BM25
    assert "searching all documents" in (tmp_path / "limit/report.html").read_text()
    assert (tmp_path / "limit/collection/corpus.jsonl").is_file()


def test_a_comparison_that_pauses_ends_the_script_with_its_status(tmp_path, monkeypatch):
    monkeypatch.setattr(limit.compare, "main", lambda settings: os.EX_TEMPFAIL)
    with pytest.raises(SystemExit) as ended:
        run("limit", output=tmp_path, documents=6, steps=1, tracker="none")
    assert ended.value.code == os.EX_TEMPFAIL


def test_every_contrast_of_the_claims_is_measured():
    names = [("bm25", "–"), *product(Settings().systems, ("untrained", "trained"))]
    ones = {measure: np.ones((1, 3)) for measure in ("R@2", "R@10")}
    rows = [{"system": system, "training": training} | ones for system, training in names]
    assert unmeasured(limit.study(rows, "R@2", [], {}), "weller2025", "limit") == []
