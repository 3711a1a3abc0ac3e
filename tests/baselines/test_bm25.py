"""BM25: the formula, the matrix that equals the search, and every degenerate case."""

import math

import ir_measures
import numpy as np
import pytest
import torch

from paradigms.baselines.bm25 import BM25, tokenize
from paradigms.data import Corpus
from tests import needs
from tests.near import assert_within_rounding

TEXTS = ["cat cat dog", "dog bird", "the of and", "", "bird bird bird fish fish dog", "dog bird"]
IDS = ["e", "d", "c", "b", "a", "D"]
CORPUS = Corpus(IDS, TEXTS)


@pytest.fixture
def bm25():
    return BM25(CORPUS)


def by_formula(
    query: list[str], document: list[str], documents: list[list[str]], k1: float, b: float
) -> float:
    mean = sum(map(len, documents)) / len(documents)
    total = 0.0
    for term in query:
        holding = sum(term in other for other in documents)
        count = document.count(term)
        weight = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
        total += weight * count / (count + k1 * (1 - b + b * len(document) / mean))
    return total


def assert_formula(index: BM25, queries: tuple[str, ...], k1: float, b: float) -> None:
    documents = [index.terms(text) for text in TEXTS]
    for query in queries:
        scores = [by_formula(index.terms(query), document, documents, k1, b) for document in documents]
        results = index.rerank({"q": query}, {"q": dict.fromkeys(IDS, 0.0)})["q"]
        # Each weight is rounded to float32 before at most 6 of them are added.
        assert_within_rounding(results, dict(zip(IDS, scores, strict=True)), torch.float32, 1 + 6)


@pytest.mark.parametrize(("k1", "b", "ngrams"), [(0.9, 0.4, 1), (1.2, 0.75, 1), (0.9, 0.4, 2)])
def test_scores_follow_the_formula(k1, b, ngrams):
    index = BM25(CORPUS, k1=k1, b=b, ngrams=ngrams)
    assert index.terms("cat bird dog") == tokenize("cat bird dog", ngrams)
    assert_formula(index, ("dog", "cat bird cat", "dog bird fish", "bird fish zebra"), k1, b)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Cat's x_1, and ÉCOLE! ?", ["cat", "s", "x_1", "école"]),
        ("Größte Seen, x_1 CO²", ["größte", "seen", "x_1", "co²"]),
        ("cafe\u0301 café", ["cafe\u0301", "café"]),  # a mark ends no word
        ("विक्टोरिया झील है", ["विक्टोरिया", "झील", "है"]),  # nor does a vowel sign
        ("بحيرة في أفريقيا", ["بحيرة", "في", "أفريقيا"]),
        ("빅토리아호는 가장 큰", ["빅토리아호는", "가장", "큰"]),
        ("最大的湖泊。在非洲", ["最大", "大的", "的湖", "湖泊", "在非", "非洲"]),
        ("湖 ＡＢ", ["湖", "ａｂ"]),
        ("2024年のAI搭載センター", ["2024", "年の", "ai", "搭載", "載セ", "セン", "ンタ", "ター"]),
        ("ที่สุด", ["ที่สุ", "สุด"]),
    ],
)
def test_words_of_scripts_with_and_without_spaces(text, words):
    assert tokenize(text) == words


def test_ties_rank_by_id_also_at_the_cut(bm25):
    everything = bm25.search({"q": "dog bird"}, 100)["q"]
    assert everything["a"] > everything["D"] == everything["d"] > everything["e"]
    for k in (2, 3, 100):
        assert list(bm25.search({"q": "dog bird"}, k)["q"]) == ["a", "D", "d", "e"][:k]


def test_only_documents_that_share_a_word_are_found(bm25):
    queries = {"empty": "", "stop": "the of", "unknown": "zebra", "mixed": "zebra cat"}
    run = bm25.search(queries, 1000)
    assert run["empty"] == run["stop"] == run["unknown"] == {}
    assert list(run["mixed"]) == ["e"]


def test_rerank_scores_the_given_candidates_and_no_others(bm25):
    full = bm25.search({"q": "dog bird"}, 100)["q"]
    reranked = bm25.rerank({"q": "dog bird", "unused": "cat"}, {"q": {"b": 9.0, "e": 8.0, "a": 7.0}})
    assert list(reranked) == ["q"]
    assert list(reranked["q"]) == ["a", "e", "b"]
    assert reranked["q"] == {"a": full["a"], "e": full["e"], "b": 0.0}
    empty = bm25.rerank({"q": ""}, {"q": {"b": 1.0, "a": 0.0}})["q"]
    assert list(empty.items()) == [("a", 0.0), ("b", 0.0)]


def test_save_and_load_give_the_same_run(tmp_path):
    index = BM25(CORPUS, k1=1.1, b=0.3, ngrams=2, stopwords=["dog"])
    index.save(tmp_path / "bm25")
    index.save(tmp_path / "bm25")  # takes the place of the first
    (tmp_path / "notes.json").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds (bm25|notes\.json)"):
        index.save(tmp_path)
    again = BM25.load(tmp_path / "bm25", CORPUS)
    queries = {"1": "dog bird the of", "2": "bird fish"}
    assert again.search(queries, 10) == index.search(queries, 10)
    assert again.terms("the dog bird") == index.terms("the dog bird") == ["the", "bird", "the bird"]
    assert (again.matrix() != index.matrix()).nnz == 0
    for file in (tmp_path / "bm25").glob("*.npy"):
        np.load(file, allow_pickle=False)
    with pytest.raises(FileNotFoundError, match=r"no settings\.json"):
        BM25.load(tmp_path, CORPUS)
    with pytest.raises(ValueError, match="indexes other documents than these 5: index these anew"):
        BM25.load(tmp_path / "bm25", CORPUS.only(IDS[:5]))
    with pytest.raises(ValueError, match="indexes other documents"):
        BM25.load(tmp_path / "bm25", Corpus(IDS, TEXTS[::-1]))


def test_runs_of_words_are_terms():
    assert tokenize("big red dog", 3) == ["big", "red", "dog", "big red", "red dog", "big red dog"]
    assert tokenize("the cat", stopwords=()) == ["the", "cat"]


def test_unusable_input_is_refused():
    with pytest.raises(ValueError, match="holds a word"):
        BM25({"0": "", "1": "the"})
    with pytest.raises(ValueError, match="ngrams"):
        BM25({"1": "x"}, ngrams=0)


def test_ndcg_on_scifact():
    """Published with Lucene and Porter stemming: .665; unstemmed words lose a little."""
    collection = needs.collection("scifact")
    test = collection.split("test")
    run = BM25(collection.corpus).search(test.queries, 100)
    results = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], test.judgements, run)
    assert results[ir_measures.nDCG @ 10] == pytest.approx(0.6635, abs=0.001)
