"""An index with its model, in a folder and without one."""

import tempfile
from pathlib import Path

import pytest
import torch

from paradigms import Paradigm
from paradigms.data import Corpus
from paradigms.find import kinds
from paradigms.retrieve import Indexed
from tests.near import same_run
from tests.tiny import built

TEXTS = {
    "cat": "a cat is an animal",
    "bank": "the bank of a river",
    "sea": "a bird flew over the sea",
    "none": "",
}
QUERIES = {"q": "bird over the sea", "r": "animal", "blank": ""}


@pytest.fixture(scope="module")
def model(tiny_bert) -> Paradigm:
    torch.manual_seed(0)
    return built("colbert", tiny_bert, query_length=16, document_length=32)


def test_search_and_rerank_are_those_of_the_index(model: Paradigm, tmp_path: Path):
    stored = Indexed.build(model, TEXTS, tmp_path / "index", kind=kinds.exact())
    queries = model.encode_queries(list(QUERIES.values()))
    run = dict(zip(QUERIES, stored.index.search_tokens(model.recipe, queries, 2), strict=True))
    for retriever in (
        stored,
        Indexed.build(model, Corpus(list(TEXTS), list(TEXTS.values()))),
        Indexed.open(tmp_path / "index", model),
    ):
        same_run(retriever.search(QUERIES, 2), run)
        same_run(retriever.rerank(QUERIES, run), run)
        assert retriever.size_in_bytes() == stored.index.store.bytes_per_document * len(TEXTS)


def test_an_index_without_a_folder_lies_in_memory(model: Paradigm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "mkdtemp", None)
    whole = Indexed.build(model, TEXTS)
    assert whole.index.store.folder is None
    part = whole.only(["cat", "sea"])
    del whole
    assert list(part.search(QUERIES)["q"]) == ["sea", "cat"]


def test_fewer_query_tokens_search(model: Paradigm, tmp_path: Path):
    whole = Indexed.build(model, TEXTS, tmp_path / "index")
    pruned = Indexed(whole.index, model, keep=0.3)
    assert pruned.search(QUERIES)["q"] != pytest.approx(whole.search(QUERIES)["q"], abs=1e-3)
