"""experiments/limit.py: the collection has every set, free vectors learn, each claim is measured."""

import json
import re
from itertools import product

import limit
import numpy as np
import pytest
from limit import Settings
from papers.weller2025 import free_vectors

from tests.experiments.scripts import published, run, unmeasured


@pytest.mark.parametrize(("dislikes", "distractors"), [(False, 0), (True, 0), (True, 3)])
def test_every_set_is_asked_for_once(dislikes, distractors):
    made = limit.collection(Settings(documents=8, dislikes=dislikes, distractors=distractors))
    judged = [frozenset(grades) for split in made.splits.values() for grades in split.judgements.values()]
    assert len(judged) == len(set(judged)) == 28
    assert {len(documents) for documents in judged} == {2}
    assert len(made.corpus) == (8 + distractors) * (1 + dislikes)
    assert len({len(re.findall(r"\w+", text)) for text in made.corpus}) == 1
    texts = dict(zip(made.corpus.ids, made.corpus, strict=True))
    for split in made.splits.values():
        for query, grades in split.judgements.items():
            word = split.queries[query].removeprefix("Who likes ").removesuffix("?")
            liked = {
                id for id, text in texts.items() if word in re.findall(r"\w+", text.split(" likes ")[-1])
            }
            assert {id for id in liked if " likes " in texts[id]} == set(grades)
            assert len(liked) == 2 * (1 + dislikes)


@pytest.mark.parametrize("name", free_vectors.FREE)
def test_free_vectors_answer_few_sets_and_not_many(name):
    settings = Settings(free_steps=300, seeds=2)
    tokens = 2 if "M" in free_vectors.FREE[name][1] else 1
    assert free_vectors.optimised(name, tokens, 4, 6, settings).all()
    if tokens == 1:  # three numbers answer not all pairs of six documents, however they are trained
        assert not free_vectors.optimised(name, 1, 3, 7, settings).any()


def test_a_run_reports_both_parts(tiny_bert, tmp_path):
    few = {"documents": 6, "steps": 1, "batch_size": 2, "free_steps": 60, "largest": 5, "seeds": 1}
    atomic = {"paradigm": "dsi", "options": {"identifiers": "atomic", "softmax": "place"}}
    atomic["training"] = {"batch_size": 2}
    systems = {"dpr": {}, "dsi-atomic": atomic}
    lists = {"systems": json.dumps(systems), "dimensions": "[2, 4]", "tokens": "[2]"}
    run("limit", backbone=tiny_bert, output=tmp_path / "limit", tracker="none", **few, **lists)
    tables = {"claims", "training", "paradigms", "free", "laws", "paradigms.svg", "free.svg"}
    assert published(tmp_path / "limit") == tables
    first = json.loads((tmp_path / "limit/paradigms.json").read_text())[0]
    assert first["R@2"].startswith("1.000")  # BM25
    assert "searching all documents" in (tmp_path / "limit/report.html").read_text()
    assert (tmp_path / "limit/collection/corpus.jsonl").is_file()


def test_every_contrast_of_the_claims_is_measured():
    names = [("bm25", "–"), *product(Settings().systems, ("untrained", "trained"))]
    rows = [{"system": system, "training": training, "R@2": np.ones((1, 3))} for system, training in names]
    assert unmeasured(limit.study(rows, "R@2", [], {}), "weller2025", "limit") == []
