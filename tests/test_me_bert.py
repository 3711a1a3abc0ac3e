"""DE-BERT-k and ME-BERT: layer-normed inner products, m vectors where there are so many, m = 1, search."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paradigms import PARADIGMS, Paradigm, load
from tests.tiny import WIDTH

DE_BERT = {"layer_norm": True, "normalize": False, "query_length": 16, "document_length": 32}
QUERIES = {"q0": "where is the quick fox", "q1": "stone", "q2": "a boat on the river"}
TEXTS = {
    "d0": "a quick fox ran in the garden; the dog was old",
    "d1": "stone",
    "d2": "the boat carried wheat and fish over the river to the market",
    "d3": "",
    "d4": "snow fell",
    "d5": "the stone story of a zebra, of water and of stone",
}


def build(name: str, backbone: Path, **settings) -> Paradigm:
    """Every weight differs from what building gives: a gain of 1 and a bias of 0 would hide themselves."""
    torch.manual_seed(0)
    paradigm = PARADIGMS[name](backbone, **settings).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in paradigm.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return paradigm


def states(paradigm: Paradigm, text: str, side) -> Tensor:
    """[l, k]: projected and layer-normed states of one text, by hand."""
    encoder = paradigm.encoder
    batch = encoder.tokenize([text], side)
    with torch.no_grad():
        hidden = encoder.backbone(batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state[0]
        if encoder.projection is not None:
            hidden = hidden @ encoder.projection.weight.T
        norm = encoder.layer_norm
        assert norm is not None
        centred = hidden - hidden.mean(-1, keepdim=True)
        variance = hidden.var(-1, correction=0, keepdim=True)
        return centred / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def vectors(paradigm: Paradigm, text: str) -> Tensor:
    """[l, h]: the vectors of one text alone, real ones only."""
    tokens = paradigm.encode_documents([text])
    return tokens.vectors[0, 0][tokens.mask[0, 0]]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("k", [8, None])
def test_de_bert_is_the_inner_product_of_projected_and_layer_normed_cls_states(tiny_bert, k):
    paradigm = build("dpr", tiny_bert, dim=k, **DE_BERT)
    documents, queries = (
        paradigm.encode_documents(list(TEXTS.values())[:3]),
        paradigm.encode_queries(list(QUERIES.values())),
    )
    assert documents.vectors.shape == (1, 3, 1, k or WIDTH)
    D = torch.stack([states(paradigm, text, "document")[0] for text in list(TEXTS.values())[:3]])
    Q = torch.stack([states(paradigm, text, "query")[0] for text in QUERIES.values()])
    close(documents.vectors[0, :, 0], D)
    close(paradigm.score(documents, queries), Q @ D.T)
    assert not torch.allclose(Q.norm(dim=-1), torch.ones(3), atol=0.1)  # no cosine


def test_the_temperature_of_inner_products_is_one(tiny_bert):
    for name in ("dpr", "me_bert"):
        assert PARADIGMS[name](tiny_bert, **DE_BERT).recipe.temperature == 1.0
        assert PARADIGMS[name](tiny_bert).recipe.temperature == 0.05


@pytest.mark.parametrize("name", ["dpr", "me_bert"])
def test_the_layer_norm_learns_and_is_saved(tiny_bert, tmp_path, name):
    paradigm = build(name, tiny_bert, dim=8, **DE_BERT)
    tokenize = paradigm.encoder.tokenize
    queries, documents = paradigm(tokenize(["fox"], "query"), tokenize(["a fox", "snow"], "document"))
    paradigm.score(documents, queries).logsumexp(-1).sum().backward()
    norm = paradigm.encoder.layer_norm
    assert isinstance(norm, nn.LayerNorm)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in norm.parameters())
    paradigm.save_pretrained(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert isinstance(loaded, Paradigm)
    assert loaded.description() == paradigm.description()
    texts = list(TEXTS.values())
    assert torch.equal(loaded.encode_documents(texts).vectors, paradigm.encode_documents(texts).vectors)


@pytest.mark.parametrize("m", [1, 3, 8])
def test_a_document_is_its_first_m_states_or_as_many_as_it_has(tiny_bert, m):
    paradigm = build("me_bert", tiny_bert, first=m, dim=8, **DE_BERT)
    tokens = paradigm.encode_documents(list(TEXTS.values()))
    for n, text in enumerate(TEXTS.values()):
        own = states(paradigm, text, "document")
        count = min(m, len(own)) if text else 0  # "stone" is [CLS] stone [SEP]; an empty text is nothing
        assert tokens.mask[0, n].sum() == count
        close(tokens.vectors[0, n, :count], own[:count])
    scores = paradigm.score(tokens, paradigm.encode_queries(list(QUERIES.values())))
    for b, query in enumerate(QUERIES.values()):
        q = states(paradigm, query, "query")[0]
        for n, text in enumerate(TEXTS.values()):
            expected = (states(paradigm, text, "document")[:m] @ q).max() if text else torch.tensor(0.0)
            close(scores[b, n], expected)


@pytest.mark.parametrize("settings", [{}, {"dim": 8} | DE_BERT, {"dim": 8, "lora_rank": 2}])
def test_with_one_vector_it_is_de_bert(tiny_bert, settings):
    one, dense = (
        build(name, tiny_bert, **own, **settings) for name, own in (("me_bert", {"first": 1}), ("dpr", {}))
    )
    texts, queries = list(TEXTS.values()), list(QUERIES.values())
    found, expected = (p.score(p.encode_documents(texts), p.encode_queries(queries)) for p in (one, dense))
    close(found, expected)
