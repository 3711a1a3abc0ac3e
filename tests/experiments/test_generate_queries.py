"""A tiny T5 writes queries for a collection, which then has training queries."""

import json
from pathlib import Path

import generate_queries
import pytest

from paradigms.data import load_collection
from tests.tiny import WORDS, write_collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = WORDS.split()
    texts = [" ".join(words[5 * n : 5 * n + 6]) for n in range(10)]
    return write_collection(tmp_path_factory.mktemp("words"), texts, texts, {"test": range(3)})


def test_queries_become_a_training_split(
    collection: Path, seq2seq: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = {"model": str(seq2seq["t5"]), "collection": str(collection), "output": str(tmp_path)}
    settings |= {"queries": 2, "rank": 0}
    monkeypatch.setattr(generate_queries, "BATCH", 4)
    monkeypatch.setattr(generate_queries, "LENGTH", 8)
    generate_queries.main(generate_queries.Settings(**settings))
    made = load_collection(tmp_path / "collection")
    train = made.split("train")
    assert train.queries
    assert made.split("test").judgements == load_collection(collection).split("test").judgements
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [row["query"] for row in pairs] == list(train.queries.values())
    assert [{row["document"]: 1} for row in pairs] == list(train.judgements.values())
    file = tmp_path / "written.jsonl"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(keepends=True)[:1]) + whole.splitlines()[1][:9])
    generate_queries.main(generate_queries.Settings(**settings))
    assert file.read_text() == whole


def test_the_round_trip_keeps_queries_that_find_their_document(collection: Path):
    corpus = load_collection(collection).corpus
    good, bad = ("d3", corpus[3]), ("d4", corpus[9])
    settings = generate_queries.Settings(model="", rank=1)
    assert generate_queries.found_again(corpus, [good, bad], settings) == [good]
