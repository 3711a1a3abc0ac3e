"""Passages and lexical vectors of the studies of capacity; experiments/random_projections.py end to end."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_projections
import torch
from papers.luan2021.containing_passage import containing_passages
from papers.luan2021.passages import words_of

from paradigms.baselines.lexical_vectors import count_terms, weigh
from paradigms.data import Collection, Corpus, load_collection
from paradigms.encoder.backbone import load_tokenizer
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED
from tests.near import assert_within_rounding
from tests.tiny import write_collection

COUNTS = {"train": 12, "dev": 4, "test": 8}
LENGTHS = (50, 100, 200)
# Of `made(source())`, in whatever process: a change here changes the task for everyone.
FINGERPRINTS = {
    50: "adcd63280215782c0d7c30d9d573eec83089cf1f0479613b7ddbc2a0169acc67",
    100: "b9fb934e2dd4e6c131be1b4978e1589500e6df926c5e5f20f92f94bc106934fc",
    200: "cac875ef0cd6d817f8c30239783a6cb4d55438f56dcf5fa75eb182c2a8b8a2ac",
}


def source(texts: int = 12, words: int = 700, vocabulary: int = 400) -> Corpus:
    """Texts of words like "Wbd", some with punctuation; three texts end early."""
    draw = random.Random(0).random  # the same numbers in every version of Python

    def integers(below: int, size: int) -> list[int]:
        return [int(draw() * below) for _ in range(size)]

    names = ["W" + "".join("abcdefghij"[int(digit)] for digit in str(n)) for n in range(vocabulary)]
    names = [name if n % 2 else name.lower() for n, name in enumerate(names)]
    ends = ["", "", "", ",", ".", "-x", ")"]
    rows = []
    for n in range(texts):
        size = words if n % 4 else 130
        drawn = zip(integers(vocabulary, size), integers(len(ends), size), strict=True)
        rows.append(" ".join(names[word] + ends[mark] for word, mark in drawn))
    return Corpus([f"t{n}" for n in range(texts)], rows)


def made(corpus: Corpus, **settings: Any) -> dict[int, Collection]:
    return containing_passages(corpus, COUNTS, **{"lengths": LENGTHS, "longest": LENGTHS[-1], **settings})


@pytest.fixture(scope="module")
def tasks() -> dict[int, Collection]:
    return made(source())


def spaced(text: str) -> str:
    return f" {' '.join(words_of(text))} "


def test_a_query_is_in_its_passage_and_in_no_other_document(tasks: dict[int, Collection]) -> None:
    for task in tasks.values():
        documents = dict(zip(task.corpus.ids, map(spaced, task.corpus), strict=True))
        for part in task.splits.values():
            for query, text in part.queries.items():
                holders = [id for id, document in documents.items() if spaced(text) in document]
                assert holders == list(part.judgements[query])
                # As it stands there, with its capitals and its punctuation.
                assert text in task.corpus[task.corpus.position(holders[0])]
                assert 5 <= len(words_of(text)) <= 25


def test_the_same_seed_gives_the_same_bytes_in_any_process(tasks: dict[int, Collection]) -> None:
    assert {length: task.fingerprint for length, task in tasks.items()} == FINGERPRINTS
    alone = made(source(), lengths=LENGTHS[:1])
    assert alone[LENGTHS[0]].fingerprint == FINGERPRINTS[LENGTHS[0]], "other lengths change no collection"


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_lengths_are_an_encoders_tokens(checkpoints: dict[str, Path], family: str) -> None:
    tokenizer = load_tokenizer(checkpoints[family])
    # Words of many pieces; symbols without space, which its pieces join to the words beside them.
    text = source(8, 300)
    texts = Corpus(text.ids, [row.replace(",", " £2−").replace(".", "… (the cat)") for row in text])
    tasks = containing_passages(texts, {"test": 10}, lengths=(60, 120), longest=120, tokenizer=tokenizer)
    for length, task in tasks.items():
        sizes = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in task.corpus]
        assert length - 10 < np.median(sizes) <= max(sizes) <= length
        for query in task.split("test").queries.values():
            assert len(words_of(query)) >= 5
            assert len(tokenizer(query, add_special_tokens=False)["input_ids"]) <= 25


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


def test_vectors_score_as_bm25(folder, counts):
    asked, bm25 = load_collection(folder).split("test").queries, counts.bm25
    run = bm25.search({i: asked[i] for i in counts.query_ids}, 400)
    documents, queries = weigh(counts)
    scores = (documents @ queries.T).toarray()
    for column, query in enumerate(counts.query_ids):
        hits = {bm25.corpus.ids[i]: scores[i, column] for i in np.flatnonzero(scores[:, column] > 0)}
        assert_within_rounding(hits, run[query], torch.float32, 1 + len(asked[query].split()))


def test_run_writes_everything(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(random_projections, "LENGTH_BINS", 2)  # of 200 documents, for the 100th margin
    settings = random_projections.Settings(collection=str(folder), queries=40, output=str(tmp_path / "out"))
    random_projections.main(settings)
    results = {n: json.loads((tmp_path / f"out/{n}.json").read_text()) for n in ("claims", "figure3")}
    full = results["figure3"][-1]
    assert full["low"] < full["exact k"] < full["high"]
    assert [row["claim"] for row in results["claims"]] == [
        *["normalized margins decrease with document length"] * 2,
        "the required dimension increases with document length",
        "Control: is it much lower for the average query?",
        "a collection's smallest normalized margin is “much lower” for BM25 than for Boolean inner product",
    ]


@pytest.mark.parametrize(("bm25", "verdict"), [(0.004, REPRODUCED), (0.006, CONTRADICTED)])
def test_the_smallest_margin_of_all_queries_decides(bm25: float, verdict: str) -> None:
    smallest = {"boolean": np.array([0.5, 0.01]), "bm25": np.array([bm25, 0.9])}
    nothing = np.zeros((1, 2, 2))
    count = random_projections.study(smallest, nothing, nothing, np.ones(2)).counts["smallest margin"]
    assert (count["measured"], count["verdict"]) == (f"0.01, {bm25}", verdict)
