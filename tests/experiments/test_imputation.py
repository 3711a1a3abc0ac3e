"""experiments/imputation.py: floors and rankings against slow twins."""

from pathlib import Path

import numpy as np
import torch
from papers.implicit_idf.floors import NDCG, Corpus, Ranker, chosen, floors_of

from paradigms import PARADIGMS
from paradigms.core import similarity
from paradigms.data import load_collection
from paradigms.evaluate import per_query
from paradigms.find import Index, Store, kinds
from paradigms.impute import imputed_rel
from tests.experiments import scripts
from tests.near import assert_same


def test_floors_are_the_largest_values() -> None:
    row = np.random.default_rng(0).normal(size=50_000).round(3).astype(np.float32)
    for counts in ([1, 10, 100], [1, 9_000], [50_000]):
        assert (floors_of(row, counts) == np.sort(row)[::-1][np.array(counts) - 1]).all()


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
        queries, values = ranker.run(test, floors={"imputed": 20})
        stored = index.store.tokens(rows, torch.device("cpu"))
        runs = {}
        for query in queries:
            S, valid = similarity(stored, model.encode_queries([test.queries[query]]))
            rel = imputed_rel(S, valid, 20)[0].tolist()
            runs[query] = dict(zip(index.store.names(rows), rel, strict=True))
        expected = per_query(runs, test.judgements, (NDCG,)).values[NDCG]
        assert_same(values[NDCG]["imputed"], expected)
    assert chosen({"k' = 3": [0.1], "k' = 30": [0.4], "IDF, k' = 9": [0.9]}, "k'") == 30
