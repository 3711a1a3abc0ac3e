"""identity.py: one record of what makes a vector; whatever stores vectors refuses those of another model."""

import json
import shutil

import pytest
import torch

from paradigms import PARADIGMS, Paradigm, load
from paradigms.align import TopK
from paradigms.encoder.towers import TwoTowers
from paradigms.engines import hand_over
from paradigms.identity import differing, identity
from paradigms.io.checks import differences
from paradigms.retrieve import Indexed
from paradigms.train.state import note_moved, start_of
from tests.engines.test_engines import Exhaustive
from tests.tiny import FAMILIES, write_checkpoint

TEXTS = {"cat": "a cat is an animal", "bank": "the bank of a river", "tea": "drink green water"}
QUERIES = {"q": "is a cat an animal"}
LENGTHS = {"query_length": 12, "document_length": 16}


def built(name, backbone, **settings):
    torch.manual_seed(0)
    return PARADIGMS[name](backbone, **LENGTHS | settings).eval()


def reconfigured(backbone, folder, **fields):
    """A copy of a checkpoint with other fields in config.json."""
    shutil.copytree(backbone, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_has_the_identity_of_the_model(family, tmp_path):
    model = built("colbert", write_checkpoint(family, tmp_path / "backbone"), dim=8)
    full = identity(model.encoder)
    model.save_pretrained(tmp_path / "saved")
    for options in ({}, {"for_search": True}):
        assert not differing(full, identity(load(tmp_path / "saved", **options).encoder))


def test_settings_of_queries_and_readouts_leave_the_identity(tiny_bert):
    model = built("colbert", tiny_bert)
    others = [
        built("colbert", tiny_bert, query_length=9, query_prompt="ask", query_augmentation=True),
        model.with_alignment(TopK(k=2), "query_tokens"),
        built("xtr", tiny_bert),
        Paradigm(model.recipe, TwoTowers(built("colbert", tiny_bert, query_length=5).encoder, model.encoder)),
    ]
    assert [differing(identity(model.encoder), identity(other.encoder)) for other in others] == [""] * 4
    index = Indexed.build(model, TEXTS)
    assert Indexed(index.index, others[2]).search(QUERIES, 3)["q"].keys() == TEXTS.keys()


def test_a_setting_the_configuration_and_the_tokenizer_are_named(tiny_bert, tmp_path):
    """Which settings count is drawn by tests/test_kept.py."""
    model = built("dpr", tiny_bert)
    shorter = built("dpr", tiny_bert, document_length=9)
    assert differing(identity(model.encoder), identity(shorter.encoder)) == (
        "document_length: 16 then, 9 now"
    )
    relu = built("dpr", reconfigured(tiny_bert, tmp_path / "relu", hidden_act="relu"))
    assert differing(identity(model.encoder), identity(relu.encoder)) == (
        "backbone.hidden_act: gelu then, relu now"
    )
    dropout = built("dpr", reconfigured(tiny_bert, tmp_path / "dropout", hidden_dropout_prob=0.5))
    assert not differing(identity(model.encoder), identity(dropout.encoder))
    before = identity(model.encoder)
    model.encoder.tokenizer.add_tokens(["greenwater"])
    assert differing(before, identity(model.encoder)) == "tokenizer"


def test_an_index_is_searched_and_grown_by_what_made_it(tiny_bert):
    stranger, index = built("me_bert", tiny_bert), Indexed.build(built("dpr", tiny_bert), TEXTS).index
    for use in (
        lambda: index.store.add(stranger, ["copy"], [TEXTS["cat"]]),
        lambda: Indexed(index, stranger).search(QUERIES, 1),
    ):
        with pytest.raises(ValueError, match=r"made by dpr, but not by this me_bert \(.*document_vectors"):
            use()


def test_the_start_of_a_training_is_what_files_hold(tiny_bert, tmp_path):
    """Heads that are drawn without a seed do not count; other weights do, and heads that were read."""

    def start(model):
        return start_of(model, tmp_path)

    drawn = [PARADIGMS["colbert"](tiny_bert, dim=8, lora_rank=2) for _ in range(2)]
    assert start(drawn[0]) == start(drawn[1])
    for n, model in enumerate(drawn):
        model.save_pretrained(tmp_path / str(n))
    saved = [load(tmp_path / str(n)) for n in (0, 0, 1)]
    assert start(saved[0]) == start(saved[1]) != start(saved[2])
    before = start(drawn[0])
    next(drawn[0].encoder.backbone.parameters()).data.mul_(1.5)
    assert start(drawn[0]) != before
    now = start(drawn[1])
    note_moved(drawn[1], tmp_path / "x" / "..", "the start")
    assert start_of(drawn[1], tmp_path) == "the start"
    next(drawn[1].parameters()).data.mul_(1.5)
    assert start(drawn[1]) not in ("the start", now)


def test_an_engine_has_the_vectors_of_one_model(tiny_bert):
    colbert, other = built("colbert", tiny_bert), built("colbert", tiny_bert, document_length=9)
    engine = Exhaustive(colbert.encoder.dim)
    hand_over(Indexed.build(colbert, TEXTS).index.store, colbert, engine)
    with pytest.raises(ValueError, match=r"vectors of another model \(document_length: 16 then, 9 now\)"):
        hand_over(Indexed.build(other, TEXTS).index.store, other, engine)
    unknown = Exhaustive(colbert.encoder.dim)
    unknown.documents = engine.documents
    with pytest.raises(ValueError, match="does not record which model made them"):
        hand_over(Indexed.build(colbert, TEXTS).index.store, colbert, unknown)


def test_differences_are_named_field_by_field():
    old = {"steps": 2, "loss": {"kind": "kl"}, "of": "a" * 64, "gone": 1, "unset": 0}
    new = {"steps": 4, "loss": {"kind": "mse"}, "of": "b" * 64, "new": False}
    assert differences(old, new) == "gone: 1 then, None now; kind: kl then, mse now; of; steps: 2 then, 4 now"
    assert differences(old, old) == ""
