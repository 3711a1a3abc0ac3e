"""Calls that people try first: each is answered, or refused by one sentence that names the remedy."""

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch

import paradigms
from paradigms import GENERATIVE, PARADIGMS, RERANKERS, Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus
from paradigms.data.pieces import Pieces
from paradigms.find import INDEXES
from paradigms.generative.genre import genre
from paradigms.retrieve import Fused, Indexed, Passages, Reranking, retriever_of
from tests.near import assert_within_rounding
from tests.tiny import TERMS, built

TEXTS = {"b": "a cat is an animal", "a": "the bank of a river", "sea": "a bird flew over the sea"}
LIST = list(TEXTS.values())
ENCODED = ["dpr", "colbert", "aligner", "coil"]
LENGTHS = {"query_length": 12, "document_length": 16}


@pytest.fixture(autouse=True, scope="module")
def untyped(shapes: None) -> None:
    """What is tested is our own sentence, and not beartype's."""
    jaxtyping.config.update("jaxtyping_disable", True)


@pytest.fixture(scope="module")
def models(tiny_bert) -> dict[str, Paradigm]:
    torch.manual_seed(0)
    return {name: built(name, tiny_bert, **LENGTHS).eval() for name in ENCODED}


@pytest.fixture(scope="module")
def retrievers(models, seq2seq) -> dict[str, Any]:
    corpus = Corpus.of(TEXTS)
    index, bm25, pieces = Indexed.build(models["colbert"], corpus), BM25(corpus), Pieces(corpus, 3)
    return {
        "index": index,
        "bm25": bm25,
        "generative": retriever_of(genre(seq2seq["t5"], corpus), corpus),
        "reranking": Reranking(models["dpr"], corpus, bm25),
        "fused": Fused([bm25, index]),
        "passages": Passages(BM25(pieces.corpus), pieces),
    }


def refused(call: Callable[[], object], remedy: str, kind: type[Exception] = TypeError) -> None:
    with pytest.raises(kind) as caught:
        call()
    sentence = str(caught.value)
    assert re.search(remedy, sentence), sentence
    assert "\n" not in sentence


LISTS: dict[str, Callable[[], Any]] = {
    "generator": lambda: (text for text in LIST),
    "array": lambda: np.array(LIST, dtype=object),
    "dict's values": TEXTS.values,
    "series, sorted": lambda: pd.Series(LIST, index=[2, 0, 1]),
    "series, filtered": lambda: pd.Series(LIST, index=[0, 2, 5]),
    "series of names": lambda: pd.Series(LIST, index=["x", "y", "z"]),
}


@pytest.mark.parametrize("made", LISTS.values(), ids=LISTS)
def test_texts_are_taken_in_the_order_of_iteration(models, made):
    """By number, a Series would look up labels: the texts of other rows."""
    for model in models.values():
        for got, wanted in zip(model.encode(made()), model.encode(LIST), strict=True):
            assert np.array_equal(got, wanted)
    model = models["colbert"]
    assert torch.equal(model.encode_documents(made()).vectors, model.encode_documents(LIST).vectors)
    assert model.count_cut(made()) == model.count_cut(LIST)
    assert model.read_part(made()) == model.read_part(LIST)
    assert model.count_corpus(made()).documents == 3
    corpus = Corpus(pd.Series(list(TEXTS), index=[2, 0, 1]), made())
    assert [(id, corpus[corpus.position(id)]) for id in corpus.ids] == list(TEXTS.items())


@pytest.mark.parametrize("name", ENCODED)
def test_no_texts_are_no_rows(models, name):
    model = models[name]
    documents, queries = model.encode_documents([]), model.encode_queries(iter([]))
    assert documents.mask.shape[:2] == (1, 0)
    assert queries.mask.shape[:2] == (0, 1)
    assert model.score(documents, model.encode_queries(LIST)).shape == (3, 0)
    assert model.score(model.encode_documents(LIST), queries).shape == (0, 3)
    assert model.encode([]) == []


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("name", ENCODED)
def test_a_blank_text_keeps_its_row(models, name, side):
    """A pooled vector is 0, which scores 0 with everything, as rel does; token vectors are none."""
    rows = models[name].encode([LIST[0], " \n", LIST[1]], side)
    assert len(rows) == 3
    if name == "dpr":
        assert np.concatenate(rows).shape == (3, models[name].encoder.dim)
        assert not rows[1].any()
    else:
        assert rows[1].shape == (0, models[name].encoder.dim)
    for row, text in ((rows[0], LIST[0]), (rows[2], LIST[1])):
        assert_within_rounding(row, models[name].encode([text], side)[0], torch.float32, TERMS)


QUERIES: list[Any] = ["are cats animals?", ["are cats animals?"], {1: "are cats animals?"}, {"q": None}, None]


@pytest.mark.parametrize("queries", QUERIES, ids=str)
@pytest.mark.parametrize("name", ["index", "bm25", "generative", "reranking", "fused", "passages"])
def test_queries_are_texts_by_ids(retrievers, name, queries):
    """Ids that are numbers would meet judgements, whose ids are strings, in the first measure."""
    remedy = r"dict, id → text|must be a string, got 1: use str\(id\)|text of query 'q' is None"
    refused(lambda: retrievers[name].search(queries), remedy)
    refused(lambda: retrievers[name].rerank(queries, {"q": {"b": 0.0}}), remedy)


DOCUMENTS: list[Any] = [LIST, LIST[0], {1: LIST[0], 2: LIST[1]}, {"a": None}, pd.Series(LIST)]


@pytest.mark.parametrize("texts", DOCUMENTS, ids=lambda texts: str(texts)[:20])
def test_documents_are_texts_by_ids(models, texts):
    remedy = r"dict, id → text|must be a string, got 1: use str\(id\)|text of document 'a' is None"
    for build in (BM25, lambda texts: Indexed.build(models["dpr"], texts)):
        refused(lambda build=build: build(texts), remedy)
    refused(lambda: Corpus([1, 2], ["x", "y"]), r"id of a document must be a string, got 1: use str\(id\)")


def test_one_text_and_a_mapping_are_no_list(models):
    for wrong in (LIST[0], TEXTS, None):
        for call in (models["dpr"].encode, models["dpr"].encode_documents, models["dpr"].count_cut):
            refused(lambda call=call, wrong=wrong: call(wrong), "must be a list of strings, got")


@pytest.mark.parametrize("name", ENCODED)
def test_texts_are_encoded_before_they_are_scored(models, name):
    for call in (models[name].score, models[name].interact):
        refused(lambda call=call: call(LIST, LIST), r"documents must be Tokens, as from encode_documents")


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("count", [1, 3])
def test_swapped_sides_are_refused(models, name, count):
    """Also one query and one document, whose axes are equal: what was encoded knows its side."""
    model = models[name]
    D, Q = model.encode_documents(LIST[:count]), model.encode_queries(LIST[:count])
    assert model.score(D, Q).shape == (count, count)
    index, swapped = Indexed.build(model, TEXTS).index, "documents .* come first, then queries"
    for d, q in ((Q, D), (Q[:1], D), (Q, D.map(lambda t: t[:, :1]))):
        refused(lambda d=d, q=q: model.score(d, q), swapped, ValueError)
        refused(lambda d=d, q=q: model.interact(d, q), swapped, ValueError)
        refused(lambda d=d, q=q: model.explain_tokens("q", "d", q, d), swapped, ValueError)
        refused(lambda q=q: index.search_tokens(model.recipe, q), "queries need axes", ValueError)
    assert index.search_tokens(model.recipe, Q, 2)


def test_names_are_told():
    for table in (PARADIGMS, GENERATIVE, RERANKERS, INDEXES):
        refused(lambda table=table: table["ColBERT"], ", ".join(table), KeyError)
        assert "ColBERT" not in table
        assert table.get("ColBERT") is None
    for name in PARADIGMS:
        refused(lambda name=name: PARADIGMS[name](), f"{name} needs a backbone: .offline.*encoder")
    for name in ("colbert", "dsi", "cross_attention"):
        refused(lambda name=name: paradigms.load(name), r"PARADIGMS\['colbert'\]\('offline'\)", ValueError)
    assert paradigms.__version__ == version("retrieval-paradigms")
