"""Advice without judgements: known items that are no giveaways, chances that follow the values."""

import numpy as np
import pytest

from paradigms.cli.advise import Measured, chance_of_each, drawn
from paradigms.cli.arguments import main
from paradigms.data import Corpus, Split

CORPUS = Corpus(
    ["a", "b", "c", "d"],
    ["Ships Sails are wide. Oars are long.", "Cats sleep. They wake.", "Cats eat. They drink.", "alone"],
    ["Ships", "Cats", "Cats", ""],
)


def test_known_items_are_titles_of_one_document_or_first_sentences():
    corpus, split = drawn(CORPUS, None, True, 10, 10)
    texts = dict(zip(corpus.ids, corpus, strict=True))
    assert split.queries == {"a": "Ships", "b": "sleep", "c": "eat"}
    assert texts == {"a": "Sails are wide. Oars are long.", "b": "They wake.", "c": "They drink.", "d": ""}
    assert split.judgements["b"] == {"b": 1}


def test_judged_queries_keep_their_relevant_documents():
    judged = Split({"q": "wide", "r": "none"}, {"q": {"a": 1, "b": 0}, "r": {"b": 0}})
    corpus, split = drawn(CORPUS, judged, True, 2, 10)
    assert list(split.queries) == ["q"]
    assert corpus.ids[0] == "a"
    assert len(corpus) == 2


def test_chances_follow_values():
    base = np.random.default_rng(0).random(50)
    found = {
        "x": Measured(base, 0, 0),
        "y": Measured(base + 0.1, 0, 0),
        "z": Measured(base[::-1] + 0.1, 0, 0),
    }
    chances = chance_of_each(found)
    assert chances["x"] < chances["y"]
    assert chances["y"] + chances["z"] > 0.99
    assert sum(chances.values()) == pytest.approx(1)


def test_too_few_documents_are_told(tmp_path):
    (tmp_path / "notes.txt").write_text("A cat sleeps. It wakes.")
    with pytest.raises(SystemExit, match="1 queries can be made of its documents, and 20 are needed"):
        main(["advise", str(tmp_path)])
