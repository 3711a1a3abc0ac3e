"""Matryoshka training: which loss is minimised, and what an index of first coordinates stores."""

from pathlib import Path

import pytest

from paradigms import PARADIGMS, load
from paradigms.core import rel
from paradigms.encoder.text import first_coordinates
from paradigms.retrieve import Indexed
from paradigms.train.contrastive import Contrastive
from paradigms.train.losses import LossSettings
from tests.near import assert_same, assert_same_run
from tests.train.test_loop import CORPUS, EXAMPLES, WORDS, build

TEXTS = dict(zip(CORPUS.ids, CORPUS, strict=True))
QUERIES = {word: f"the {word}" for word in WORDS[:4]}


def test_the_losses_of_first_coordinates_are_added(tiny_bert: Path) -> None:
    model = build(tiny_bert).double()
    objective = Contrastive(model, CORPUS, EXAMPLES)
    batch = objective.collate(EXAMPLES[:6])
    expected = sum(Contrastive(model.truncated(h), CORPUS, EXAMPLES).loss(m, batch) for h, m in (
        (None, model), (16, model.truncated(16)), (4, model.truncated(4))
    ))  # fmt: skip
    assert_same(objective.configure(LossSettings(matryoshka=[16, 4])).loss(model, batch), expected)
    for wrong in ([32], [40]):
        with pytest.raises(ValueError, match="below the 32 dimensions"):
            objective.configure(LossSettings(matryoshka=wrong))


def test_an_index_of_first_coordinates(tiny_bert: Path, tmp_path: Path) -> None:
    model = build(tiny_bert)
    built = Indexed.build(model, TEXTS, tmp_path / "index", dim=8)
    assert built.index.store.dim == 8
    results = built.search(QUERIES, 5)
    D, Q = model.encode_documents(list(TEXTS.values())), model.encode_queries(list(QUERIES.values()))
    scores = rel(first_coordinates(D, 8, True), first_coordinates(Q, 8, True), model.align, model.normalise)
    for query, row in zip(QUERIES, scores, strict=True):
        expected = dict(zip(TEXTS, row.tolist(), strict=True))
        for id, score in results[query].items():
            assert score == pytest.approx(expected[id], abs=2e-3)  # float16
    reopened = Indexed.open(tmp_path / "index", model)  # which truncates
    assert_same_run(reopened.search(QUERIES, 5), results)
    with pytest.raises(ValueError, match=r"search with the model's truncated\(8\)"):
        built.index.store.check(model)
    with pytest.raises(ValueError, match="holds vectors of 8 dimensions"):
        Indexed.open(tmp_path / "index", build(tiny_bert, dim=16))  # other weights
    model.truncated(8).save_pretrained(tmp_path / "short")
    assert_same_run(Indexed.open(tmp_path / "index", load(tmp_path / "short")).search(QUERIES, 5), results)
    with pytest.raises(ValueError, match="no first 33"):
        model.truncated(33)
    with pytest.raises(ValueError, match="beyond the 32"):
        PARADIGMS["colbert"](tiny_bert, truncate=40)
