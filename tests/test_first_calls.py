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
from paradigms import BM25, GENERATIVE, PARADIGMS, RERANKERS, Index, Paradigm
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
    "series of names": lambda: pd.Series(LIST, index=["x", "y", "z"]),
}


@pytest.mark.parametrize("made", LISTS.values(), ids=LISTS)
def test_texts_are_taken_in_the_order_of_iteration(models, made):
    """By number, a Series would look up labels: the texts of other rows."""
    for model in models.values():
        for got, expected in zip(model.encode(made()), model.encode(LIST), strict=True):
            assert np.array_equal(got, expected)
    model = models["colbert"]
    assert torch.equal(model.encode_documents(made()).vectors, model.encode_documents(LIST).vectors)
    assert model.count_cut(made()) == model.count_cut(LIST)
    assert model.read_part(made()) == model.read_part(LIST)
    assert model.count_corpus(made()).documents == 3
    corpus = Corpus(pd.Series(list(TEXTS), index=[2, 0, 1]), made())
    assert [(id, corpus[corpus.position(id)]) for id in corpus.ids] == list(TEXTS.items())


def test_no_texts_are_no_rows(models):
    model = models["colbert"]
    documents, queries = model.encode_documents([]), model.encode_queries(iter([]))
    assert documents.mask.shape[:2] == (1, 0)
    assert queries.mask.shape[:2] == (0, 1)
    assert model.score(documents, model.encode_queries(LIST)).shape == (3, 0)
    assert model.score(model.encode_documents(LIST), queries).shape == (0, 3)
    assert model.encode([]) == []


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize(("name", "vectors"), [("dpr", 1), ("colbert", 0)])
def test_a_blank_text_keeps_its_row(models, name, vectors, side):
    """A pooled vector is 0, which scores 0 with everything, as rel does; token vectors are none."""
    rows = models[name].encode([LIST[0], " \n", LIST[1]], side)
    assert rows[1].shape == (vectors, models[name].encoder.dim)
    assert not rows[1].any()
    for row, text in ((rows[0], LIST[0]), (rows[2], LIST[1])):
        assert_within_rounding(row, models[name].encode([text], side)[0], torch.float32, TERMS)


RETRIEVERS = ["index", "bm25", "generative", "reranking", "fused", "passages"]
QUERIES: list[Any] = [{1: "are cats animals?"}, {"q": None}, None, [None], np.zeros((1, 4), np.float32)]


@pytest.mark.parametrize("name", RETRIEVERS)
def test_queries_are_texts(retrievers, name):
    """Ids that are numbers would meet judgements, whose ids are strings, in the first measure."""
    remedy = r"dict, id → text|must be a string, got 1: use str\(id\)|text of query '.' is (None|array)"
    for queries in QUERIES:
        refused(lambda queries=queries: retrievers[name].search(queries), remedy)
        refused(lambda queries=queries: retrievers[name].rerank(queries, {"q": {"b": 0.0}}), remedy)


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_search_takes_a_text_and_texts(retrievers, name):
    """One text is answered by results with their texts, several by a list for each."""
    retriever = retrievers[name]
    queries = ["cat animal", "river bank"]
    run = retriever.search({"q0": queries[0], "q1": queries[1]}, 2)
    rankings = retriever.search(pd.Series(queries, index=[7, 3]), 2)
    for ranking, scores in zip(rankings, run.values(), strict=True):
        assert [result[:2] for result in ranking] == list(scores.items())
    results = retriever.search(queries[0], 2)
    assert [result.id for result in results] == list(run["q0"])
    for result in results:
        assert result.text == ("" if name == "generative" else TEXTS[result.id])


@pytest.mark.parametrize("texts", [LIST[0], {1: LIST[0], 2: LIST[1]}, [LIST[0], None], None], ids=str)
def test_documents_are_texts(models, texts):
    remedy = r"list of strings|must be a string, got 1: use str\(id\)|text of document '.' is None"
    for build in (BM25, lambda texts: Indexed.build(models["dpr"], texts)):
        refused(lambda build=build: build(texts), remedy)


def test_names_are_told():
    for table in (PARADIGMS, GENERATIVE, RERANKERS, INDEXES):
        refused(lambda table=table: table["no-such"], ", ".join(table), KeyError)
        for name in table:
            assert table[name.upper().replace("_", "-")] is table[name]
        assert "ColBERT" not in table
    for name in PARADIGMS:
        refused(lambda name=name: PARADIGMS[name](), f"{name} needs a backbone: .offline.*encoder")
    for name in ("ColBERT", "dsi", "cross_attention"):
        refused(lambda name=name: paradigms.load(name), r"PARADIGMS\['colbert'\]\('offline'\)", ValueError)
    assert paradigms.__version__ == version("retrieval-paradigms")
    assert paradigms.ColBERT is PARADIGMS["ColBERT"]


QUERY = "is a cat an animal"
# An attribute that another library has -> what to write.
ATTRIBUTES = {
    "model.predict": r"rank\(query",
    "model.embed_documents": "encode_document",
    "model.index": "Index.build",
    "model.fit": "train",
    "model.tokenizer": "encoder.tokenizer",
    "model.config": "description",
    "index.add": "store.add",
    "index.retrieve": r"search\(query",
    "index.save": "Index.build.*folder",
    "index.ntotal": "len",
    "bm25.get_scores": r"search\(query",
}
# An argument of encode that another library has -> what to write.
ARGUMENTS = {
    "is_query": "side='query'",
    "convert_to_tensor": "encode_documents",
    "show_progress_bar": "progress=True",
    "normalize_embeddings": "setting normalize",
}


@pytest.fixture(scope="module")
def model(models) -> Paradigm:
    return models["colbert"]


@pytest.fixture(scope="module")
def index(model) -> Index:
    return Index.build(model, LIST)


def test_calls_of_other_libraries_are_answered(model, index, tmp_path):
    assert len(model.encode_query([QUERY, QUERY]).vectors) == 2
    assert len(model.encode_document(QUERY).vectors[0]) == 1
    assert len(model.encode(LIST, "query", batch_size=2)) == 3
    assert len(model.similarity(QUERY, LIST)[0]) == 3
    assert len(model.similarity(LIST, LIST)) == 3
    assert len(model.similarity(model.encode_query(LIST), model.encode_document(QUERY))) == 3
    assert len(model.to("cpu").eval().rank(QUERY, TEXTS, 2)) == 2
    assert model.rank(QUERY, []) == []
    assert len(Index.build(model, iter(LIST)).search(QUERY)) == 3
    assert len(index.only(["0", "2"]).search(QUERY)) == 2
    assert len(index.rerank({"q": QUERY}, {"q": {"0": 0.0}})["q"]) == 1
    assert len(BM25(LIST).search("cat")) == 1
    model.save(tmp_path / "saved")
    assert len(paradigms.load(tmp_path / "saved").rank(QUERY, LIST)) == 3


def test_calls_of_other_libraries_say_what_to_write(model, index):
    refused(lambda: model.encode(QUERY), "must be a list of strings")
    refused(lambda: model.score(LIST, LIST), "encode_documents")
    refused(lambda: Paradigm.from_pretrained("offline"), "load", FileNotFoundError)
    refused(lambda: Index(model, LIST), "Index.build")
    refused(lambda: index.search(np.eye(8)), "a string is needed")
    documents = model.encode_documents(LIST)
    refused(lambda: index.index.search_tokens(model.recipe, documents), "queries need axes", ValueError)
    tried = {"model": model, "index": index, "bm25": BM25(LIST)}
    for name, remedy in ATTRIBUTES.items():
        of, attribute = name.split(".")
        refused(lambda of=of, attribute=attribute: getattr(tried[of], attribute), remedy, AttributeError)
    for name, remedy in ARGUMENTS.items():
        refused(lambda name=name: model.encode(LIST, **{name: True}), remedy)
