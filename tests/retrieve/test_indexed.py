"""An index with its model, in a folder and without one."""

import tempfile
from pathlib import Path

import pytest
import torch

from paradigms import Paradigm
from paradigms.data import Corpus
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from tests.tiny import built

TEXTS = {"cat": "a cat is an animal", "bank": "the bank of a river", "sea": "a bird over the sea", "none": ""}


@pytest.fixture(scope="module")
def model(tiny_bert) -> Paradigm:
    torch.manual_seed(0)
    return built("colbert", tiny_bert, query_length=16, document_length=32)


def test_an_index_without_a_folder_lies_in_memory(model: Paradigm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "mkdtemp", None)
    full = Indexed.build(model, TEXTS)
    assert full.index.store.folder is None
    assert full.size_in_bytes() == full.index.store.bytes_per_document * len(TEXTS)
    part = full.only(["cat", "sea"])
    del full
    assert list(part.search({"q": "bird over the sea"})["q"]) == ["sea", "cat"]


def test_an_index_refuses_other_texts(model: Paradigm, tmp_path: Path):
    """After any change, an index opens with the texts that it was made from, and with no others."""
    folder = tmp_path / "index"
    store = Indexed.build(model, TEXTS, folder).index.store
    today = TEXTS | {"cat": "a cat is no dog", "sea": "a ship"}
    for change in (
        lambda store: store.copy(kinds.compressed(lists=2), tmp_path / "copy"),
        lambda store: store.delete(["bank"]),
        lambda store: store.compact(),
        lambda store: store.add(model, ["bank"], [TEXTS["bank"]]),
        lambda store: store.add_from([store.batch(store.positions(["sea"]))], instead_of=["sea"]),
    ):
        store = change(store)
        Indexed.open(store.folder, model, Corpus.of(TEXTS)).explain("sea", "sea")
        with pytest.raises(ValueError, match=r"other texts for 2 of these documents: 'cat', 'sea'\. Use"):
            Indexed.open(store.folder, model, Corpus.of(today))
    with pytest.raises(ValueError, match="other texts for 2"):
        Indexed(Index(store), model, Corpus.of(today))
    store = store.add(model, ["cat", "sea"], [today["cat"], today["sea"]], instead_of=["cat", "sea"])
    Indexed.open(store.folder, model, Corpus.of(today | {"new": "is in no index"}))
    with pytest.raises(ValueError, match="other texts for 2"):
        Indexed.open(store.folder, model, Corpus.of(TEXTS))


def test_documents_stored_as_vectors_are_not_compared(model: Paradigm):
    given = [(["cat"], model.encode_documents(["a cat"]))]
    store = Store.build_from(kinds.exact(), given, paradigm="colbert", dim=model.encoder.dim)
    store = store.add(model, ["sea"], ["a ship"])
    with pytest.warns(UserWarning, match="1 of its documents as vectors, without their texts"):
        Indexed(Index(store), model, Corpus.of({"cat": "a dog", "sea": "a ship"}))
    with pytest.raises(ValueError, match="other texts for 1 of these documents: 'sea'"):
        Indexed(Index(store), model, Corpus.of({"cat": "a dog", "sea": "the sea"}))
