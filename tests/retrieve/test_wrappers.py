"""Passages that carry their document, and retrievers around another one: by hand."""

import pytest

from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, best_first
from paradigms.data.pieces import Pieces
from paradigms.data.texts import WORD
from paradigms.retrieve import Passages, WithoutOwn

TEXTS = {
    "a": "Ships sail. the sea is wide and ships sail the sea; a cat sleeps on the ship at night",
    "b": "the night is dark and a black cat sleeps",
    "c": "",
    "d": "a cat a cat a cat and the sea again and again and a night with ships and more of the night",
}
CORPUS = Corpus(list(TEXTS), list(TEXTS.values()), ["Ships sail.", "", "", ""])


def test_passages_hold_every_word_once_and_begin_with_the_title():
    pieces = Pieces(CORPUS, words=8)
    assert pieces.of("c") == ["c:0"]
    for document, text in TEXTS.items():
        title = CORPUS.titles[CORPUS.position(document)]
        parts = [pieces.corpus[pieces.corpus.position(p)] for p in pieces.of(document)]
        assert all(part.startswith(title) for part in parts)
        assert all(len(WORD.findall(part)) <= 8 for part in parts)
        rest = " ".join(part.removeprefix(title).strip() for part in parts)
        assert rest == text.removeprefix(title).strip()


@pytest.mark.parametrize("best", [1, 2])
def test_search_and_rerank_are_sums_of_the_best_passages(best: int):
    pieces = Pieces(CORPUS, words=6)
    bm25 = BM25(pieces.corpus)
    documents = Passages(bm25, pieces, best)
    queries = {"q": "cat night", "r": "ships", "none": "zebra"}
    every = bm25.rerank(queries, {q: dict.fromkeys(pieces.corpus.ids, 0.0) for q in queries})
    expected = {
        q: {d: sum(sorted((every[q][p] for p in pieces.of(d)), reverse=True)[:best]) for d in TEXTS}
        for q in queries
    }
    run = {q: dict.fromkeys(TEXTS, 0.0) for q in queries}
    reranked = documents.rerank(queries, run)
    assert all(reranked[q] == pytest.approx(expected[q]) for q in queries)
    for k in (1, 3):
        run = documents.search(queries, k)
        for q, scores in expected.items():
            assert list(run[q]) == list(best_first({d: s for d, s in scores.items() if s > 0}, k))


def test_documents_that_are_not_split_are_their_own_passages():
    pieces = Pieces(CORPUS, words=0)
    assert pieces.corpus is CORPUS
    assert pieces.of("c") == ["c"]
    bm25, queries = BM25(CORPUS), {"q": "cat night", "none": "zebra"}
    assert Passages(bm25, pieces, best=2).search(queries, 3) == bm25.search(queries, 3)


def test_the_best_passage_is_explained_and_wrong_numbers_are_refused():
    pieces = Pieces(CORPUS, words=6)
    (shown,) = Passages(BM25(pieces.corpus), pieces).explain("dark night", "b")
    assert shown.document_tokens == ["night", "dark"]
    assert [shown.document_tokens[i] for i, _, _, _ in shown.links] == ["dark", "night"]
    with pytest.raises(ValueError, match="best must be at least 1 passage, got 0"):
        Passages(BM25(CORPUS), Pieces(CORPUS, 5), 0)
    with pytest.raises(ValueError, match="words of passages must be at least 0, got -1"):
        Pieces(CORPUS, -1)


def test_k_documents_are_found_beside_the_query_itself():
    queries, bm25 = {"a": "ships sail", "q": "ships sail"}, BM25(CORPUS)
    others = WithoutOwn(bm25, {"a"})
    run = others.search(queries, 1)
    assert {query: list(scores) for query, scores in run.items()} == {"a": ["d"], "q": ["a"]}
    every = {query: dict.fromkeys(CORPUS.ids, 0.0) for query in queries}
    assert others.rerank(queries, every)["a"].keys() == {"b", "c", "d"}
    assert others.rerank(queries, every)["q"] == bm25.rerank(queries, every)["q"]
