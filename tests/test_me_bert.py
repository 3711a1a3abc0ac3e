"""DE-BERT-k and ME-BERT: layer-normed inner products, and m = 1."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from paradigms import PARADIGMS, Paradigm
from tests.near import assert_same
from tests.tiny import WIDTH, built, randomised

DE_BERT = {"layer_norm": True, "normalize": False, "query_length": 16, "document_length": 32}
QUERIES = ["where is the quick fox", "stone", "a boat on the river"]
TEXTS = ["a quick fox ran in the garden; the dog was old", "stone", "the boat carried wheat and fish", ""]


def build(name: str, backbone: Path, **settings) -> Paradigm:
    torch.manual_seed(0)
    return randomised(PARADIGMS[name](backbone, **settings).eval(), 0.2)


def state(paradigm: Paradigm, text: str, side) -> Tensor:
    """[k]: the projected and layer-normed state of [CLS], by hand."""
    encoder = paradigm.encoder
    batch = encoder.tokenize([text], side)
    with torch.no_grad():
        hidden = encoder.backbone(batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state[0]
        if encoder.projection is not None:
            hidden = hidden @ encoder.projection.weight.T
        norm, centred = encoder.layer_norm, hidden[0] - hidden[0].mean()
        return centred / (hidden[0].var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias


def scores(paradigm: Paradigm, texts: list[str]) -> Tensor:
    return paradigm.score(paradigm.encode_documents(texts), paradigm.encode_queries(QUERIES))


@pytest.mark.parametrize("k", [8, None])
def test_de_bert_is_the_inner_product_of_projected_and_layer_normed_cls_states(tiny_bert, k):
    paradigm = build("dpr", tiny_bert, dim=k, **DE_BERT).double()
    documents = paradigm.encode_documents(TEXTS[:3])
    assert documents.vectors.shape == (1, 3, 1, k or WIDTH)
    D = torch.stack([state(paradigm, text, "document") for text in TEXTS[:3]])
    Q = torch.stack([state(paradigm, text, "query") for text in QUERIES])
    assert_same(documents.vectors[0, :, 0], D)
    assert_same(scores(paradigm, TEXTS[:3]), Q @ D.T)
    assert (Q.norm(dim=-1) - 1).abs().max() > 0.1  # no cosine
    assert paradigm.recipe.temperature == 1.0  # of inner products


@pytest.mark.parametrize("settings", [{}, {"dim": 8} | DE_BERT, {"dim": 8, "lora_rank": 2}])
def test_with_one_vector_it_is_de_bert(tiny_bert, settings):
    one = build("me_bert", tiny_bert, document_vectors="first", vectors=1, **settings).double()
    assert_same(scores(one, TEXTS), scores(build("dpr", tiny_bert, **settings).double(), TEXTS))


@pytest.mark.parametrize("vectors", ["spans", "learned"])
@pytest.mark.parametrize("settings", [{}, {"dim": 8} | DE_BERT, {"query_vectors": "spans"}])
def test_with_one_span_it_is_dpr_of_mean_pooling(tiny_bert, vectors, settings):
    options = {"pooling": "mean"} | settings
    one = built("me_bert", tiny_bert, document_vectors=vectors, vectors=1, **options).double().eval()
    expected = built("dpr", tiny_bert, **{"pooling": "mean"} | settings | {"query_vectors": "pooled"})
    expected.load_state_dict({n: t for n, t in one.state_dict().items() if "learned_pooling" not in n})
    assert_same(scores(one, TEXTS), scores(expected.double().eval(), TEXTS))
