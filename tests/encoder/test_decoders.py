"""Decoders and long texts: real architectures with random weights, against what transformers gives."""

import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from paradigms import PARADIGMS
from paradigms.baselines.cross_attention import SequenceClassifier, cross_attention
from tests.near import assert_same
from tests.saving.test_read import cosines, hidden
from tests.tiny import DECODERS

INSTRUCTION = "Instruct: Find the answer to a question\nQuery: "
QUERIES, TEXTS = ["the fox", "a bird in winter?"], ["the fox is in the garden, and the sun", "", "snow"]


@pytest.mark.parametrize("family", DECODERS)
def test_the_last_token_under_an_instruction(checkpoints, family):
    """The states of the last token (Qwen3's appended one) are pooled, although it pads left."""
    model = PARADIGMS["dpr"](checkpoints[family], query_prompt=INSTRUCTION).double()
    assert model.encoder.settings.pooling == "last"
    texts = [INSTRUCTION + query for query in QUERIES] + [TEXTS[0], TEXTS[2]]
    last = torch.stack([hidden(checkpoints[family], [text], padding=False)[2][0, -1] for text in texts])
    scores = model.score(model.encode_documents(TEXTS), model.encode_queries(QUERIES))
    assert_same(scores[:, [0, 2]], cosines(last[2:], last[:2]))
    assert not scores[:, 1].any()
    batch = model.encoder.tokenize(TEXTS, "document")
    assert model.encoder.backbone(**batch.inputs()).past_key_values is None  # no keys or values are kept,
    assert model.encoder.backbone.config.use_cache  # but a saved checkpoint can generate


def test_empty_texts_without_special_tokens(checkpoints, tmp_path):
    folder = Path(shutil.copytree(checkpoints["llama"], tmp_path / "llama"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()
    tokenizer.save_pretrained(folder)
    assert not PARADIGMS["dpr"](folder).encode_documents(["", " "]).mask.any()
    for pooling in ("mean", "max"):  # an empty text gives no gradient that is not a number
        model = PARADIGMS["dpr"](folder, pooling=pooling)
        batch = model.encoder.tokenize(["snow", ""], "document")
        model.encoder(batch, "document").vectors[:, :1].sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_decoders_rerank(checkpoints, tmp_path):
    """The last token is pooled, and a tokenizer without a form for pairs separates them by its end token."""
    model = cross_attention(checkpoints["llama"])
    pairs = [("snow fell", "fox"), ("snow", "fell fox"), ("snow fell", "the sun"), ("", "")]
    assert len(set(model.score_texts(pairs))) == len(pairs)
    config = LlamaConfig.from_pretrained(checkpoints["llama"], num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    classifier = SequenceClassifier(tmp_path).double()
    for n, score in enumerate(classifier.score_texts(pairs[:2])):
        assert [score] == pytest.approx(classifier.score_texts(pairs[n : n + 1]), rel=1e-9)
