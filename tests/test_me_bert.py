"""DE-BERT-k and ME-BERT: layer-normed inner products, and m = 1."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from paradigms import PARADIGMS, Paradigm, load
from tests.near import assert_same
from tests.tiny import WIDTH, built

DE_BERT = {"layer_norm": True, "normalize": False, "query_length": 16, "document_length": 32}
QUERIES = ["where is the quick fox", "stone", "a boat on the river"]
TEXTS = ["a quick fox ran in the garden; the dog was old", "stone", "the boat carried wheat and fish", ""]


def build(name: str, backbone: Path, **settings) -> Paradigm:
    """Change every weight from its initial value: a gain of 1 or a bias of 0 would go unnoticed."""
    torch.manual_seed(0)
    paradigm = PARADIGMS[name](backbone, **settings).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in paradigm.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return paradigm


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


@pytest.mark.parametrize("name", ["dpr", "me_bert"])
def test_the_layer_norm_learns_and_is_saved(tiny_bert, tmp_path, name):
    assert PARADIGMS[name](tiny_bert).recipe.temperature == 0.05
    paradigm = build(name, tiny_bert, dim=8, **DE_BERT)
    assert paradigm.recipe.temperature == 1.0  # of inner products
    tokenize = paradigm.encoder.tokenize
    queries, documents = paradigm(tokenize(["fox"], "query"), tokenize(["a fox", "snow"], "document"))
    paradigm.score(documents, queries).logsumexp(-1).sum().backward()
    norm = paradigm.encoder.layer_norm
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in norm.parameters())
    paradigm.save_pretrained(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert loaded.description() == paradigm.description()
    assert torch.equal(loaded.encode_documents(TEXTS).vectors, paradigm.encode_documents(TEXTS).vectors)


@pytest.mark.parametrize("settings", [{}, {"dim": 8} | DE_BERT, {"dim": 8, "lora_rank": 2}])
def test_with_one_vector_it_is_de_bert(tiny_bert, settings):
    one = build("me_bert", tiny_bert, document_vectors="first", vectors=1, **settings).double()
    assert_same(scores(one, TEXTS), scores(build("dpr", tiny_bert, **settings).double(), TEXTS))


@pytest.mark.parametrize("vectors", ["spans", "learned"])
@pytest.mark.parametrize("settings", [{}, {"dim": 8} | DE_BERT, {"query_vectors": "spans"}])
def test_with_one_span_it_is_dpr_of_mean_pooling(tiny_bert, vectors, settings):
    how = {"pooling": "mean"} | settings
    one = built("me_bert", tiny_bert, document_vectors=vectors, vectors=1, **how).double().eval()
    expected = built("dpr", tiny_bert, **{"pooling": "mean"} | settings | {"query_vectors": "pooled"})
    expected.load_state_dict({n: t for n, t in one.state_dict().items() if "learned_pooling" not in n})
    assert_same(scores(one, TEXTS), scores(expected.double().eval(), TEXTS))
