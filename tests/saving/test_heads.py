"""Folders of transformers by their heads: SPLADE, rerankers, and what is no encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    GPT2Config,
    GPT2Model,
)

import paradigms
from paradigms import Paradigm
from paradigms.baselines.cross_attention import SequenceClassifier
from tests.near import assert_same
from tests.saving.test_read import DOCUMENTS, QUERIES, scores_of
from tests.test_splade import by_transformers
from tests.tiny import write_checkpoint, write_headed


def test_a_masked_language_model_is_splade_unless_it_is_to_be_plain(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_headed(BertForMaskedLM, tmp_path / "bert")
    model = paradigms.load(folder)
    assert isinstance(model, Paradigm)
    assert model.name == "splade"
    assert "read as SPLADE" in caplog.text
    expected = by_transformers(folder, QUERIES) @ by_transformers(folder, DOCUMENTS).T
    assert_same(scores_of(model), expected)
    assert paradigms.load(folder, layout="plain").name == "dpr"


def test_a_sequence_classifier_is_a_reranker(tmp_path: Path) -> None:
    model = paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "bert", num_labels=1))
    assert isinstance(model, SequenceClassifier)
    model.save_pretrained(tmp_path / "saved")
    again = paradigms.load(tmp_path / "saved")
    pairs = [(QUERIES[0], text) for text in DOCUMENTS]
    assert again.score_texts(pairs) == model.score_texts(pairs)
    (tmp_path / "bert" / "config_sentence_transformers.json").write_text('{"default_prompt_name": "rank"}')
    with pytest.raises(ValueError, match="a prompt before every pair"):
        paradigms.load(tmp_path / "bert")


def test_another_head_a_decoder_and_several_outputs_are_refused(tmp_path: Path) -> None:
    for kind in (BertForTokenClassification, BertLMHeadModel):
        with pytest.raises(ValueError, match=f"{kind.__name__} is not a text encoder"):
            paradigms.load(write_headed(kind, tmp_path / "bert"))
    with pytest.raises(ValueError, match="has 3 outputs; a reranker has one"):
        paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "three", num_labels=3))
    folder = write_checkpoint("bert", tmp_path / "gpt2")
    GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, n_positions=8, vocab_size=99)).save_pretrained(folder)
    with pytest.raises(ValueError, match="model_type gpt2 is not a text encoder"):
        paradigms.load(folder)
