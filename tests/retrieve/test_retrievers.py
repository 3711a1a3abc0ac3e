"""Behaviour that all retrievers share."""

from collections.abc import Callable

import pytest
import torch
from accelerate import PartialState

from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Corpus, best_first
from paradigms.data.pieces import Pieces
from paradigms.generative.genre import genre
from paradigms.retrieve import (
    AllProcesses,
    Fused,
    Indexed,
    Passages,
    Reranking,
    Retriever,
    WithoutOwn,
    retriever_of,
)
from tests.near import assert_within_rounding
from tests.tiny import TERMS, built

TEXTS = {
    "b": "a cat is an animal, and so is a dog",
    "a": "the bank of a river",
    "sea": "a bird flew over the sea and a ship did sail",
    "d": "the cat sat by the river bank",
}
CORPUS = Corpus(list(TEXTS), list(TEXTS.values()), ["cat", "bank", "sea", "river bank"])
QUERIES = {"q": "a bird over the sea", "r": "cat animal", "own": "river bank"}
LENGTHS = {"query_length": 16, "document_length": 32}


@pytest.fixture(scope="module")
def retrievers(tiny_bert, seq2seq) -> dict[str, Retriever]:
    torch.manual_seed(0)
    dense, pairs = built("colbert", tiny_bert, **LENGTHS), cross_attention(tiny_bert, **LENGTHS)
    index, bm25, pieces = Indexed.build(dense, CORPUS), BM25(CORPUS), Pieces(CORPUS, 5)
    return {
        "index": index,
        "bm25": bm25,
        "generative": retriever_of(genre(seq2seq["t5"], CORPUS, beams=4), CORPUS),
        "reranking": Reranking(dense, CORPUS, bm25),
        "cross-attention": retriever_of(pairs, CORPUS, first=bm25),
        "fused": Fused([index, bm25]),
        "hybrid": Fused([index, bm25], (1.0, 0.5), "raw"),
        "passages": Passages(Indexed.build(dense, pieces.corpus), pieces, 2),
        "without own": WithoutOwn(index, {"own"}),
        "processes": AllProcesses(index, PartialState(cpu=True)),
    }


NAMES = ["index", "bm25", "generative", "reranking", "cross-attention", "fused", "hybrid", "passages"]
NAMES += ["without own", "processes"]


@pytest.mark.parametrize("name", NAMES)
def test_every_retriever_keeps_the_contract(retrievers: dict[str, Retriever], name: str) -> None:
    retriever = retrievers[name]
    assert isinstance(retriever, Retriever)
    assert retriever.size_in_bytes() >= 0
    for k in (2, 4):
        run = retriever.search(QUERIES, k)
        assert list(run) == list(QUERIES)
        for scores in run.values():
            assert len(scores) <= k
            assert scores.keys() <= TEXTS.keys()
            assert list(scores) == list(best_first(scores))
    every = {query: dict.fromkeys(TEXTS, 0.0) for query in QUERIES}
    reranked = retriever.rerank(QUERIES, every)
    assert [scores.keys() for scores in reranked.values()] == [TEXTS.keys()] * 3
    for query, scores in reranked.items():
        assert list(scores) == list(best_first(scores))
        if name not in ("fused", "generative"):  # whose scores depend on the others, or on the beams
            assert_within_rounding({d: scores[d] for d in run[query]}, run[query], torch.float32, 2 * TERMS)
    assert retriever.search({}, 3) == retriever.rerank(QUERIES, {}) == {}
    for explanation in retriever.explain(QUERIES["r"], "b", ["a", "d"]):
        total = sum(s * a for _, _, s, a in explanation.links) / explanation.Z + explanation.rest
        assert_within_rounding(total, explanation.rel, torch.float32, 2 * TERMS)
    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (ValueError, lambda: retriever.search(QUERIES, 0)),
        (KeyError, lambda: retriever.rerank(QUERIES, {"q": {"nowhere": 0.0}})),
        (KeyError, lambda: retriever.rerank(QUERIES, {"other": {"b": 0.0}})),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()


def test_a_reranker_needs_candidates(retrievers: dict[str, Retriever], tiny_bert) -> None:
    pairs = cross_attention(tiny_bert, **LENGTHS)
    assert retrievers["cross-attention"].explain("cat", "b") == []
    for alone in (retriever_of(pairs, CORPUS), Reranking(pairs, CORPUS)):
        with pytest.raises(ValueError, match=r"cross_attention .*rerank"):
            alone.search(QUERIES, 3)
