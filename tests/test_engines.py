"""Engines answer as exact search does: FAISS here, LanceDB and Qdrant embedded where they are installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS
from paradigms.engines import FaissEngine, LanceEngine, QdrantEngine, hand_over, search
from paradigms.index import ExactIndex
from tests.tiny import WORDS

LENGTHS = {"query_length": 12, "document_length": 20}
SETTINGS = {
    "colbert": {"dim": 8},
    "me_bert": {"first": 3, "pooling": "mean"},
    "dpr": {"pooling": "mean"},
    "inner products": {"pooling": "mean", "normalize": False},
}
ENGINES = [
    "faiss",
    *(
        pytest.param(name, marks=pytest.mark.skipif(find_spec(module) is None, reason=f"needs {module}"))
        for name, module in (("lancedb", "lancedb"), ("qdrant", "qdrant_client"))
    ),
]


def texts(count: int, seed: int) -> dict[str, str]:
    words, generator = WORDS.split(), torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 16, (count,), generator=generator).tolist()
    return {
        f"{seed}/{n}": " ".join(
            words[i] for i in torch.randint(len(words), (l,), generator=generator).tolist()
        )
        for n, l in enumerate(lengths)
    }


def engine_of(name, dim, single, folder):
    if name == "faiss":
        return FaissEngine(dim)
    if name == "lancedb":
        return LanceEngine(str(folder / "lance"), dim, single=single)
    return QdrantEngine(dim, single=single, path=str(folder / "qdrant"))


@pytest.fixture(scope="module", params=SETTINGS)
def indexed(request, tiny_bert, tmp_path_factory):
    torch.manual_seed(0)
    name = "dpr" if request.param == "inner products" else request.param
    model = PARADIGMS[name](tiny_bert, **LENGTHS, **SETTINGS[request.param])
    documents = texts(80, 0) | {"empty": ""}
    folder = tmp_path_factory.mktemp("index")
    index = ExactIndex.build(model, list(documents), list(documents.values()), folder / "index")
    index.delete(["0/3"])
    return model, index


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_answers_as_exact_search_does(indexed, tmp_path, name):
    model, index = indexed
    single = model.name == "dpr"
    if name == "faiss" and not single:
        with pytest.raises(ValueError, match="several vectors a document"):
            hand_over(index, model, FaissEngine(8))
        return
    engine = engine_of(name, model.encoder.dim, single, tmp_path)
    assert hand_over(index, model, engine) == 79
    queries = texts(6, 1) | {"none": " "}
    wanted = index.search(model, queries, 10)
    found = search(engine, model, queries, 10)
    assert found.pop("none") == {}
    for query, scores in found.items():
        best = torch.tensor(list(wanted[query].values()))
        torch.testing.assert_close(torch.tensor(list(scores.values())), best, atol=2e-4, rtol=1e-4)
        for document, score in scores.items():  # ties and near ties may come in another order
            if document in wanted[query]:
                assert score == pytest.approx(wanted[query][document], abs=2e-4, rel=1e-4)
        assert len(scores.keys() & wanted[query].keys()) >= 9


@pytest.mark.parametrize("name", ENGINES[1:])
def test_a_document_takes_the_place_of_its_former_self(indexed, tmp_path, name):
    model, index = indexed
    engine = engine_of(name, model.encoder.dim, model.name == "dpr", tmp_path)
    hand_over(index, model, engine)
    hand_over(index, model, engine)
    found = search(engine, model, texts(1, 1), 79)["1/0"]
    assert len(found) == 79


def test_a_faiss_file_is_opened_again(indexed, tmp_path):
    model, index = indexed
    if model.name != "dpr":
        pytest.skip("several vectors a document")
    engine = FaissEngine(model.encoder.dim)
    hand_over(index, model, engine)
    engine.save(tmp_path / "faiss")
    again = FaissEngine.load(tmp_path / "faiss")
    assert search(again, model, texts(3, 1), 5) == search(engine, model, texts(3, 1), 5)
    with pytest.raises(ValueError, match="is there already"):
        hand_over(index, model, again)


def test_no_document_and_half_a_save(tmp_path, monkeypatch):
    import faiss

    assert FaissEngine(2).search(np.ones((1, 2), np.float32), 3) == []
    engine = FaissEngine(2)
    engine.add(["a"], [np.ones((1, 2), np.float32)])
    engine.save(tmp_path)
    engine.add(["b"], [np.ones((1, 2), np.float32)])

    def broken(index, file):
        Path(file).write_bytes(b"half")
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(faiss, "write_index", broken)
        with pytest.raises(OSError, match="no space"):
            engine.save(tmp_path)
    assert FaissEngine.load(tmp_path).rows == {"a": 0}
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "ids.json").write_text("[]")
    with pytest.raises(ValueError, match=r"ids.json names 0 documents and index.faiss holds 1"):
        FaissEngine.load(tmp_path)


@pytest.mark.skipif(find_spec("qdrant_client") is None, reason="needs qdrant_client")
def test_requests_to_qdrant_are_no_larger_than_a_server_takes(tmp_path, monkeypatch):
    engine = QdrantEngine(8, path=str(tmp_path / "qdrant"))
    sent, send = [], engine.client.upsert

    def counted(collection, points, wait):
        sent.append(sum(len(point.vector) * 8 for point in points))
        return send(collection, points, wait=wait)

    monkeypatch.setattr(engine.client, "upsert", counted)
    monkeypatch.setattr("paradigms.engines.qdrant.REQUEST", 100)
    engine.add(list("abcde"), [np.ones((n, 8), np.float32) for n in (5, 5, 5, 20, 1)])
    assert sent == [80, 40, 160, 8]
    assert len(engine.search(np.ones((1, 8), np.float32), 9)) == 5


@pytest.mark.parametrize("name", ["xtr", "coil", "aligner"])
def test_other_alignments_are_refused(tiny_bert, tmp_path, name):
    model = PARADIGMS[name](tiny_bert, **LENGTHS)
    index = ExactIndex.build(model, ["a"], ["fish"], tmp_path / "index")
    with pytest.raises(ValueError, match="engines know the maximum alone"):
        hand_over(index, model, FaissEngine(model.encoder.dim))
