"""Folders of transformers by their heads: SPLADE, rerankers, and what is no encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
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
from paradigms.evaluate.reranking import rerank
from tests.tiny import write_checkpoint, write_headed

QUERIES = ["the fish in the sea", "fire, and warm wood?"]
DOCUMENTS = ["the fish, is (in) the sea. and more words", "cold snow", "fire in a house! a home; fox"]


def test_a_masked_language_model_is_splade_unless_it_is_to_be_plain(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_headed(BertForMaskedLM, tmp_path / "bert")
    model = paradigms.load(folder)
    assert isinstance(model, Paradigm)
    assert model.name == "splade"
    assert "read as SPLADE" in caplog.text
    tokenizer, reference = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder)
    weights = []
    for texts in (DOCUMENTS, QUERIES):
        rows = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            logits = reference(**rows).logits.relu().log1p() * rows["attention_mask"][..., None]
        weights.append(logits.amax(1))
    found = model.score(model.encode_documents(DOCUMENTS), model.encode_queries(QUERIES))
    torch.testing.assert_close(found, weights[1] @ weights[0].T, atol=1e-4, rtol=1e-5)
    assert paradigms.load(folder, layout="plain").name == "dpr"


def test_a_sequence_classifier_is_a_reranker(tmp_path: Path) -> None:
    model = paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "bert", num_labels=1))
    assert isinstance(model, SequenceClassifier)
    assert isinstance(model, CrossAttention)
    queries, corpus = {"q": QUERIES[0]}, Corpus(list("abc"), DOCUMENTS)
    run = rerank(model, queries, corpus, {"q": dict.fromkeys("abc", 0.0)})
    reference = BertForSequenceClassification.from_pretrained(tmp_path / "bert").eval()
    rows = AutoTokenizer.from_pretrained(tmp_path / "bert")(
        [QUERIES[0]] * 3, DOCUMENTS, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        wanted = dict(zip("abc", reference(**rows).logits[:, 0].tolist(), strict=True))
    assert run["q"] == pytest.approx(wanted, abs=1e-5)
    model.save_pretrained(tmp_path / "saved")
    again = paradigms.load(tmp_path / "saved")
    assert again.rerank(queries, corpus, run) == {"q": pytest.approx(run["q"], abs=1e-6)}


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertLMHeadModel])
def test_another_head_is_no_encoder(tmp_path: Path, kind: type) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} is no encoder of texts"):
        paradigms.load(write_headed(kind, tmp_path / "bert"))


def test_a_decoder_and_several_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 3 outputs; a reranker has one"):
        paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "three", num_labels=3))
    folder = write_checkpoint("bert", tmp_path / "gpt2")
    GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, n_positions=8, vocab_size=99)).save_pretrained(folder)
    with pytest.raises(ValueError, match="model_type gpt2 is no encoder"):
        paradigms.load(folder)


def test_sparse_modules_that_are_not_here_are_refused(tmp_path: Path) -> None:
    folder = write_headed(BertForMaskedLM, tmp_path / "bert")
    kinds = [("Transformer", ""), ("SpladePooling", "1_SpladePooling")]
    (folder / "modules.json").write_text(json.dumps([{"type": f"a.{kind}", "path": p} for kind, p in kinds]))
    (folder / "1_SpladePooling").mkdir()
    for pooling, config, message in (
        ({"pooling_strategy": "sum"}, {}, "SpladePooling by sum and relu"),
        ({"activation_function": "log1p_relu"}, {}, "by max and log1p_relu"),
        ({}, {"similarity_fn_name": "cosine"}, "the similarity cosine"),
    ):
        (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            paradigms.load(folder)
    model = paradigms.PARADIGMS["splade"](folder, query_terms="own")
    with pytest.raises(ValueError, match="no module for query_terms=own"):
        model.save_pretrained(tmp_path / "out", layout="sentence-transformers")
