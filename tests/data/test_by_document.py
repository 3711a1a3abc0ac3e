"""Passages that carry their document, and documents scored by them: by hand, and as a search over all."""

import pytest

from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus
from paradigms.data.by_document import Passages
from paradigms.data.texts import WORD

TEXTS = {
    "a": "Ships sail. the sea is wide and ships sail the sea; a cat sleeps on the ship at night",
    "b": "the night is dark and a black cat sleeps",
    "c": "",
    "d": "a cat a cat a cat and the sea again and again and a night with ships and more of the night",
}
CORPUS = Corpus(list(TEXTS), list(TEXTS.values()), ["Ships sail.", "", "", ""])


def test_passages_hold_every_word_once_and_begin_with_the_title():
    pieces = Passages(CORPUS, words=8)
    assert pieces.of("c") == ["c:0"]
    for document, text in TEXTS.items():
        title = CORPUS.titles[CORPUS.position(document)]
        parts = [pieces.corpus[pieces.corpus.position(p)] for p in pieces.of(document)]
        assert all(part.startswith(title) for part in parts)
        assert all(len(WORD.findall(part)) <= 8 for part in parts)
        assert (
            " ".join(part.removeprefix(title).strip() for part in parts) == text.removeprefix(title).strip()
        )


@pytest.mark.parametrize("best", [1, 2])
def test_search_and_rerank_are_sums_of_the_best_passages(best: int):
    pieces = Passages(CORPUS, words=6, best=best)
    bm25 = BM25.build(pieces.corpus, pieces.corpus.ids)
    rerank = bm25.rerank
    queries = {"q": "cat night", "r": "ships", "none": "zebra"}
    every = rerank(queries, {q: dict.fromkeys(pieces.corpus.ids, 0.0) for q in queries})
    expected = {
        q: {d: sum(sorted((every[q][p] for p in pieces.of(d)), reverse=True)[:best]) for d in TEXTS}
        for q in queries
    }
    run = {q: dict.fromkeys(TEXTS, 0.0) for q in queries}
    reranked = pieces.reranking(rerank)(queries, run)
    assert all(reranked[q] == pytest.approx(expected[q]) for q in queries)
    for k in (1, 3):
        found = pieces.searching(bm25.search, rerank)(queries, k)
        for q, scores in expected.items():
            wanted = sorted((d for d in scores if scores[d] > 0), key=lambda d: (-scores[d], d))[:k]
            assert list(found[q]) == wanted


def test_documents_that_are_not_split_are_their_own_passages():
    pieces = Passages(CORPUS, words=0, best=2)
    assert pieces.corpus is CORPUS
    assert pieces.of("c") == ["c"]
    bm25, queries = BM25.build(CORPUS, CORPUS.ids), {"q": "cat night", "none": "zebra"}
    for k in (1, 3):
        assert pieces.searching(bm25.search, bm25.rerank)(queries, k) == bm25.search(queries, k)
    run = {q: dict.fromkeys(TEXTS, 0.0) for q in queries}
    assert pieces.reranking(bm25.rerank)(queries, run) == bm25.rerank(queries, run)


@pytest.mark.parametrize(("words", "best", "said"), [(-1, 1, "words.* 0, got -1"), (5, 0, "best.* 1, got 0")])
def test_counts_that_are_too_small_are_refused(words: int, best: int, said: str):
    with pytest.raises(ValueError, match=said):
        Passages(CORPUS, words, best)
