"""experiments/hand_over.py: indexes into an engine, by several processes, and after an interruption."""

from typing import Any

import hand_over
import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.engines import Engine, EngineRetriever, LanceEngine, QdrantEdgeEngine
from paradigms.retrieve import Indexed
from tests import needs
from tests.experiments.scripts import run
from tests.near import assert_same_run
from tests.tiny import WORDS

TEXTS = {f"d{n}": " ".join(WORDS.split()[(5 * n + w) % 200] for w in range(n % 5)) for n in range(40)}
QUERIES = {"a": "bird over the sea", "b": "fire and wood"}
KINDS: dict[str, Any] = {"lancedb": LanceEngine, "qdrant_edge": QdrantEdgeEngine}


@pytest.fixture
def given(tiny_bert, tmp_path):
    """A model, and flags for two indexes of its, each with half of the documents."""
    torch.manual_seed(0)
    model = PARADIGMS["colbert"](tiny_bert, dim=8, query_length=12, document_length=16)
    model.save_pretrained(tmp_path / "model")
    for n in (0, 1):
        some = {id: text for id, text in TEXTS.items() if int(id[1:]) % 2 == n}
        Indexed.build(model, some, tmp_path / f"index-{n}")
    flags = {"indexes": f"[{tmp_path}/index-0, {tmp_path}/index-1]", "checkpoint": tmp_path / "model"}
    return model, flags | {"place": tmp_path / "engine", "output": tmp_path / "done"}


def check(model: Paradigm, engine: Engine) -> None:
    expected = Indexed.build(model, TEXTS)
    assert_same_run(EngineRetriever(engine, model).search(QUERIES, 50), expected.search(QUERIES, 50))
    engine.close()


@pytest.mark.parametrize(
    "name",
    [pytest.param("lancedb", marks=needs.lancedb), pytest.param("qdrant_edge", marks=needs.qdrant)],
)
def test_an_interrupted_hand_over_goes_on(given, tmp_path, name, monkeypatch):
    model, flags = given
    added, add = [], KINDS[name]._add

    def failing(engine: Engine, ids: list[str], documents: list[Any], texts: Any) -> None:
        if len(added) == 3:
            engine.close()
            raise OSError("the disk is full")
        added.append(ids)
        add(engine, ids, documents, texts)

    monkeypatch.setattr(hand_over, "PIECE", 6)
    monkeypatch.setattr(KINDS[name], "_add", failing)
    with pytest.raises(SystemExit, match="the disk is full"):
        run("hand_over", engine=name, **flags)
    monkeypatch.setattr(KINDS[name], "_add", lambda *given: (added.append(given[1]), add(*given)))
    run("hand_over", engine=name, **flags)
    assert sorted(id for ids in added for id in ids) == sorted(id for id, text in TEXTS.items() if text)
    check(model, KINDS[name](str(tmp_path / "engine"), 8))
