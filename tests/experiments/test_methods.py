"""experiments/methods.py and imputation.py: methods, floors and rankings against slow twins."""

from pathlib import Path

import numpy as np
import pytest
import torch
from methods import Candidates, largest, soft
from papers.implicit_idf.floors import NDCG, Corpus, Floor, Ranker, chosen, floors_of

from paradigms import PARADIGMS
from paradigms.core import similarity
from paradigms.data import load_collection
from paradigms.evaluate import per_query
from paradigms.find import Index, Store, kinds
from paradigms.impute import imputed_rel
from tests.experiments import scripts
from tests.near import assert_same


@pytest.fixture
def candidates() -> Candidates:
    """Forty documents of 1 to 5 tokens, and a query of 6."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 40)
    starts = np.cumsum(lengths) - lengths
    S = random.uniform(-1, 1, (6, lengths.sum()))
    return Candidates(np.arange(40), np.arange(6), np.arange(lengths.sum()), starts, S)


def documents(each: Candidates) -> list[np.ndarray]:
    return np.split(each.S, each.starts[1:], axis=1)


def test_the_soft_maximum_is_a_softmax_within_each_document(candidates: Candidates) -> None:
    weights = [np.exp(S / 0.1) / np.exp(S / 0.1).sum(1, keepdims=True) for S in documents(candidates)]
    expected = [(w * S).sum(1).mean() for w, S in zip(weights, documents(candidates), strict=True)]
    assert_same(soft(candidates, 0.1), np.array(expected))
    assert_same(soft(candidates, 1e-6), candidates.maxima().mean(0))


def test_the_largest_tokens_of_each_document_stay() -> None:
    offsets = np.array([0, 3, 3, 4, 8])
    stays = largest(np.array([0.1, 0.9, 0.5, 0.0, 4.0, 1.0, 3.0, 2.0]), offsets, 2)
    assert stays.tolist() == [False, True, True, True, True, False, True, False]


def test_floors_are_the_largest_values() -> None:
    row = np.random.default_rng(0).normal(size=50_000).round(3).astype(np.float32)
    ordered = np.sort(row)[::-1]
    for counts in ([1, 10, 100], [1, 9_000], [50_000]):
        for values in (row, ordered):  # a sample of an ordered row is of its length
            assert (floors_of(values, counts) == ordered[np.array(counts) - 1]).all()
    assert floors_of(np.append(np.zeros(40_000, np.float32), 1), [2])[0] == 0, "a sample may miss the best"


def test_rankings_are_those_of_imputation(tiny_bert: Path, tmp_path: Path) -> None:
    collection = load_collection(scripts.write_words(tmp_path))
    torch.manual_seed(0)
    model = PARADIGMS["colbert"](tiny_bert, dim=8, special_tokens=False).eval()
    index = Index(Store.build(kinds.exact(), model, collection.corpus.ids, collection.corpus, precision="no"))
    test = collection.splits["test"]
    corpus = Corpus.of(index)
    for step in (1, 2):  # all documents, and half of them
        rows = np.arange(0, len(index), step)
        part = corpus.only(rows)
        ranker = Ranker(model, index, part, model.count_corpus(collection.corpus), [3])
        queries, values = ranker.run(test, floors={"imputed": Floor(20)})
        stored = index.store.tokens(rows, torch.device("cpu"))
        runs = {}
        for query in queries:
            S, valid = similarity(stored, model.encode_queries([test.queries[query]]))
            rel = imputed_rel(S, valid, 20)[0].tolist()
            runs[query] = dict(zip(index.store.names(rows), rel, strict=True))
        expected = per_query(runs, test.judgements, (NDCG,)).values[NDCG]
        assert_same(values[NDCG]["imputed"], expected)
    assert chosen({"k' = 3": [0.1], "k' = 30": [0.4], "IDF, k' = 9": [0.9]}, "k'") == Floor(30)
