"""Folders of transformers by their heads: SPLADE, rerankers, and what is no encoder."""

from __future__ import annotations

import json
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
from paradigms import CrossAttention, Paradigm
from paradigms.baselines.cross_attention import SequenceClassifier
from paradigms.data import Corpus
from paradigms.retrieve import Reranking
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
    assert isinstance(model, CrossAttention)
    queries, corpus = {"q": QUERIES[0]}, Corpus(list("abc"), DOCUMENTS)
    run = Reranking(model, corpus).rerank(queries, {"q": dict.fromkeys("abc", 0.0)})
    assert run == Reranking(SequenceClassifier(tmp_path / "bert"), corpus).rerank(queries, run)
    model.save_pretrained(tmp_path / "saved")
    again = paradigms.load(tmp_path / "saved")
    assert Reranking(again, corpus).rerank(queries, run) == run
    (tmp_path / "bert" / "config_sentence_transformers.json").write_text('{"default_prompt_name": "rank"}')
    with pytest.raises(ValueError, match="a prompt before every pair"):
        paradigms.load(tmp_path / "bert")


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertLMHeadModel])
def test_another_head_is_no_encoder(tmp_path: Path, kind: type) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} is not a text encoder"):
        paradigms.load(write_headed(kind, tmp_path / "bert"))


def test_a_decoder_and_several_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 3 outputs; a reranker has one"):
        paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "three", num_labels=3))
    folder = write_checkpoint("bert", tmp_path / "gpt2")
    GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, n_positions=8, vocab_size=99)).save_pretrained(folder)
    with pytest.raises(ValueError, match="model_type gpt2 is not a text encoder"):
        paradigms.load(folder)


def test_sparse_modules_that_are_not_here_are_refused(tmp_path: Path) -> None:
    folder = write_headed(BertForMaskedLM, tmp_path / "bert")
    kinds = [("Transformer", ""), ("SpladePooling", "1_SpladePooling")]
    (folder / "modules.json").write_text(json.dumps([{"type": f"a.{kind}", "path": p} for kind, p in kinds]))
    (folder / "1_SpladePooling").mkdir()
    for pooling, config, message in (
        ({"pooling_strategy": "sum"}, {}, "SpladePooling by sum and relu"),
        ({"activation_function": "log1p_relu"}, {}, "by max and log1p_relu"),
        ({}, {"similarity_fn_name": "cosine"}, "similarity is cosine"),
    ):
        (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            paradigms.load(folder)
    model = paradigms.PARADIGMS["splade"](folder, query_terms="own")
    with pytest.raises(ValueError, match="no module for query_terms=own"):
        model.save_pretrained(tmp_path / "out", layout="sentence-transformers")
