"""Paradigms in PyTerrier's pipelines (`make extras`)."""

import pytest
import torch

pytest.importorskip("pyterrier", reason="needs PyTerrier: make extras")

import pandas as pd
import pyterrier as pt

from paradigms import GENERATIVE, PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Corpus
from paradigms.engines.pyterrier import Indexer, Reranker, Retriever
from paradigms.generative.retriever import GenerativeRetriever
from tests.near import SCORES, assert_within_rounding
from tests.tiny import built

TEXTS = {"fish": "the fish in the sea", "fire": "fire and warm wood", "snow": "cold snow on ice"}
CORPUS = Corpus(list(TEXTS), list(TEXTS.values()), list(TEXTS))
TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["cold snow on ice", "fire and warm wood"]})
QRELS = pd.DataFrame({"qid": ["1", "2"], "docno": ["snow", "fire"], "label": [1, 1]})
LENGTHS = {"query_length": 12, "document_length": 16}


def model_of(name, backbone):
    torch.manual_seed(0)
    if name == "cross_attention":
        return cross_attention(backbone, **LENGTHS)
    return built(name, backbone, **LENGTHS)


def rows():
    return [{"docno": docno, "text": text} for docno, text in TEXTS.items()]


@pytest.fixture
def candidates():
    every = TOPICS.merge(pd.DataFrame(rows()), how="cross")
    return every.assign(score=0.0, rank=0)


def test_a_collection_is_not_replaced_by_its_index(tiny_bert, tmp_path):
    (tmp_path / "corpus.jsonl").write_text("mine")
    indexer = Indexer(model_of("colbert", tiny_bert), tmp_path)
    with pytest.raises(FileExistsError, match=r"corpus\.jsonl would be replaced"):
        indexer.index(rows())
    assert (tmp_path / "corpus.jsonl").read_text() == "mine"
    (tmp_path / ".index.building").mkdir()  # one that was interrupted
    for _ in range(2):
        assert len(indexer.index(rows()).retriever.index) == len(TEXTS)
    with pytest.raises(ValueError, match="ids of a corpus must be unique"):
        indexer.index(rows() + rows())


def measured(*systems):
    """nDCG@10 of systems in one experiment."""
    names = [f"system {n}" for n in range(len(systems))]
    table = pt.Experiment(list(systems), TOPICS, QRELS, ["ndcg_cut_10", "recip_rank"], names=names)
    assert table["name"].tolist() == names
    return table["ndcg_cut_10"].tolist()


def bm25():
    return Retriever(BM25(CORPUS))


def texts():
    return pt.apply.generic(lambda frame: frame.merge(pd.DataFrame(rows()), on="docno"))


@pytest.mark.parametrize("name", PARADIGMS)
def test_every_paradigm_in_an_experiment(tiny_bert, tmp_path, candidates, name):
    """Indexing, the retriever, and the reranker after it and after BM25."""
    model = model_of(name, tiny_bert)
    retriever = Indexer(model, tmp_path / "index", k=3).index(iter(rows()))
    results = retriever(TOPICS)
    assert set(results.columns) == {"qid", "query", "docno", "score", "rank"}
    if name != "xtr":  # which takes the candidates for its pool
        both = results.merge(Reranker(model)(candidates), on=["qid", "docno"])
        assert len(both) == len(results)
        assert_within_rounding(both["score_x"], both["score_y"], **SCORES)
    reranker = texts() >> Reranker(model)
    assert measured(bm25(), retriever, retriever % 2, retriever >> reranker, bm25() >> reranker) == [1.0] * 5


@pytest.mark.parametrize("name", ["cross_attention", "genre"])
def test_a_reranker_keeps_every_row(tiny_bert, seq2seq, candidates, name):
    """A generative model, too, whose corpus is in the model."""
    generative = name == "genre"
    model = GENERATIVE[name](seq2seq["t5"], CORPUS) if generative else model_of(name, tiny_bert)
    results = Reranker(model)(candidates)
    assert len(results) == len(candidates)
    for _, group in results.groupby("qid"):
        ordered = group.sort_values("rank")["score"].tolist()
        assert ordered == sorted(ordered, reverse=True)
    if generative:
        assert set(Retriever(GenerativeRetriever(model))(TOPICS)["docno"]) <= set(TEXTS)
    else:
        assert measured(bm25() >> texts() >> Reranker(model)) == [1.0]


def test_a_retriever_keeps_what_is_of_queries(tiny_bert, tmp_path, candidates):
    """Other columns, such as a score or a text, would be mistaken for those of the documents found."""
    retriever = Indexer(model_of("colbert", tiny_bert), tmp_path / "index").index(rows())
    results = retriever(TOPICS.assign(query_0="as it was", score=7.0, text="of another"))
    assert (results["query_0"] == "as it was").all()
    pd.testing.assert_frame_equal(results.drop(columns="query_0"), retriever(TOPICS))
    with pytest.raises(Exception, match="docno"):
        retriever(candidates)


def test_no_queries_and_wrong_columns(tiny_bert, tmp_path, candidates):
    model = model_of("colbert", tiny_bert)
    retriever = Indexer(model, tmp_path / "index").index(rows())
    assert retriever(TOPICS[:0]).empty
    assert Reranker(model)(candidates[:0]).empty
    with pytest.raises(Exception, match="query"):
        retriever(TOPICS[["qid"]])
    with pytest.raises(Exception, match="text"):
        Reranker(model)(candidates.drop(columns="text"))
    with pytest.raises(ValueError, match="kind must be one of"):
        Indexer(model, tmp_path, kind="none")


def test_ids_may_be_numbers(tiny_bert, tmp_path, candidates):
    model = model_of("colbert", tiny_bert)
    retriever = Indexer(model, tmp_path / "index", k=2).index(rows())
    numbers = retriever(TOPICS.astype({"qid": int}))
    pd.testing.assert_frame_equal(numbers, retriever(TOPICS))
    codes = {docno: n for n, docno in enumerate(TEXTS)}
    numbered = candidates.assign(qid=candidates["qid"].astype(int), docno=candidates["docno"].map(codes))
    scores = Reranker(model)(numbered)["score"].tolist()
    assert scores == Reranker(model)(candidates)["score"].tolist()
