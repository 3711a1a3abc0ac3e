"""experiments/random_projections.py, and the vectors and runs behind it, on 400 documents of Zipf words."""

import json

import numpy as np
import pytest
import random_projections
import torch

from paradigms.baselines.lexical_vectors import PLACEMENTS, count_terms, weigh
from paradigms.data import load_collection
from tests.near import assert_within_rounding
from tests.tiny import write_collection
from theory import collection as theory_collection


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of 20 to 120 words, and 40 queries of 4 words of some document."""
    rng, words = np.random.default_rng(0), np.array([f"w{i}" for i in range(2000)])
    chance = 1 / (np.arange(2000) + 10)
    texts = [rng.choice(words, rng.integers(20, 120), p=chance / chance.sum()) for _ in range(400)]
    queries = [" ".join(rng.choice(text, 4)) for text in texts[:40]]
    return write_collection(
        tmp_path_factory.mktemp("zipf"), list(map(" ".join, texts)), queries, {"test": range(40)}
    )


@pytest.fixture(scope="module")
def counts(folder):
    collection = load_collection(folder)
    return count_terms(collection.corpus, collection.split("test").queries, 40)


@pytest.fixture(scope="module")
def problem(counts):
    return theory_collection.Problem.of(*weigh(counts), theory_collection.length_groups(counts.lengths, 2))


def test_vectors_score_as_bm25_wherever_the_idf_stands(folder, counts):
    asked, bm25 = load_collection(folder).split("test").queries, counts.bm25
    run = bm25.search({i: asked[i] for i in counts.query_ids}, 400)
    for placement in PLACEMENTS:
        documents, queries = weigh(counts, "bm25", placement)
        scores = (documents @ queries.T).toarray()
        for column, query in enumerate(counts.query_ids):
            found = {bm25.corpus.ids[i]: scores[i, column] for i in np.flatnonzero(scores[:, column] > 0)}
            assert_within_rounding(found, run[query], torch.float32, 1 + len(asked[query].split()))


def test_run_writes_everything(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(random_projections, "LENGTH_BINS", 2)  # of 200 documents, for the 100th margin
    settings = random_projections.Settings(
        collection=str(folder), queries=40, samples=32, output=str(tmp_path / "out")
    )
    random_projections.main(settings)
    results = {n: json.loads((tmp_path / f"out/{n}.json").read_text()) for n in ("claims", "figure3", "idf")}
    assert len(results["idf"]) == 7
    whole = results["figure3"][-1]
    assert whole["low"] < whole["exact k"] < whole["high"]
    assert [row["claim"] for row in results["claims"]] == [
        *["normalized margins decrease with document length"] * 2,
        "the required dimension increases with document length",
        "a collection's smallest normalized margin is “much lower” for BM25 than for Boolean inner product",
    ]
