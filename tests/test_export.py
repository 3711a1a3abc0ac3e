"""Checkpoints out: the layout of sentence-transformers 6, its card, and the hub.

That sentence-transformers scores the same is tested in test_sentence_transformers.py, where it is installed.
"""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest
import torch

import paradigms
from paradigms.formats.card import model_card, results_of
from paradigms.formats.export import export_sentence_transformers
from paradigms.terminal.commands import main

QUERIES = ["the fish in the sea", "fire, and warm wood?"]
DOCUMENTS = ["the fish, is (in) the sea. and more words", "cold snow", "fire in a house! a fox"]
LENGTHS = {"query_length": 12, "document_length": 16}
EXPORTED = {
    "single": ("dpr", {"pooling": "mean", "dim": 8, "projection_bias": True, "activation": "tanh"}),
    "inner products": ("dpr", {"pooling": "max", "normalize": False, "query_marker": "read: "}),
    "tokens": ("colbert", {"dim": 8}),
    "exact skips": ("colbert", {"dim": 8, "skip": string.punctuation, "skip_exact": True}),
    "markers": (
        "colbert",
        {"dim": None, "query_marker": "fish", "query_augmentation": True, "attend_augmentation": True},
    ),
}


def scores_of(model):
    with torch.inference_mode():
        return model.score(model.encode_documents(DOCUMENTS), model.encode_queries(QUERIES))


@pytest.mark.parametrize("what", EXPORTED)
def test_what_goes_out_comes_back(tiny_bert, tmp_path, what):
    name, settings = EXPORTED[what]
    torch.manual_seed(0)
    model = paradigms.PARADIGMS[name](tiny_bert, **LENGTHS, **settings)
    export_sentence_transformers(model, tmp_path / "out")
    back = paradigms.load(tmp_path / "out")
    # The tiny vocabulary has every character once, so that both skip lists are the same tokens.
    exact = replace(model.encoder.settings, skip_exact=bool(model.encoder.settings.skip))
    assert back.encoder.settings == exact
    torch.testing.assert_close(scores_of(back), scores_of(model), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("xtr", {}, "knows that of ColBERT alone: model.with_alignment"),
        ("aligner", {}, "knows that of ColBERT alone"),
        ("coil", {}, "knows that of ColBERT alone"),
        ("me_bert", {}, "queries become pooled and documents first vectors"),
        ("dpr", {"dim": 8, "layer_norm": True}, "no module for layer_norm"),
        ("colbert", {"special_tokens": False}, "no module for special_tokens=False"),
    ],
)
def test_what_it_has_no_module_for_is_refused(tiny_bert, tmp_path, name, settings, message):
    model = paradigms.PARADIGMS[name](tiny_bert, **LENGTHS, **settings)
    with pytest.raises(ValueError, match=message):
        export_sentence_transformers(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_xtr_goes_out_as_colbert_when_asked(tiny_bert, tmp_path):
    model = paradigms.PARADIGMS["xtr"](tiny_bert, **LENGTHS)
    model = model.with_alignment("query_to_document", "query_tokens")
    export_sentence_transformers(model, tmp_path / "out")
    torch.testing.assert_close(scores_of(paradigms.load(tmp_path / "out")), scores_of(model))


@pytest.fixture
def results(tiny_bert, tmp_path):
    """A results folder as the scripts write it."""
    folder = tmp_path / "results" / "compare-x"
    model = paradigms.PARADIGMS["colbert"](tiny_bert, dim=8, **LENGTHS)
    model.save_pretrained(folder / "colbert" / "checkpoint")
    (folder / "config.json").write_text(json.dumps({"collection": "pydocs", "steps": 30, "tracker": "none"}))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.0"}))
    (folder / "table.md").write_text("| system | nDCG@10 |\n")
    return folder


def test_the_card_tells_data_settings_and_measures(results):
    model = paradigms.load(results / "colbert" / "checkpoint")
    assert results_of(results / "colbert" / "checkpoint") == results
    card = model_card(model, results)
    for told in ("pydocs: its training", "| steps | 30 |", '| torch | "2.0" |', "| system | nDCG@10 |"):
        assert told in card
    assert '| align | "query_to_document" |' in card
    assert "tracker" not in card
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    bare = model_card(model)
    assert "Not recorded." in bare
    assert "None recorded." in bare


def test_export_from_the_terminal(results, tmp_path, monkeypatch, capsys):
    done = []

    class HfApi:
        def create_repo(self, name, private, exist_ok):
            done.append((name, private))

        def upload_folder(self, repo_id, folder_path):
            done.append((repo_id, folder_path))

    monkeypatch.setattr("huggingface_hub.HfApi", HfApi)
    checkpoint, out = str(results / "colbert" / "checkpoint"), str(tmp_path / "out")
    main(["export", checkpoint, out, "--push", "me/mine"])
    assert "pydocs" in (tmp_path / "out" / "README.md").read_text()
    assert done == [("me/mine", True), ("me/mine", out)]
    assert paradigms.load(out).name == "colbert"
