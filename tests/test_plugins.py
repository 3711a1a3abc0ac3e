"""Plug-ins: registered parts are found, others are refused, and errors say what to do."""

import copy
import json
import subprocess
import sys

import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.cli.arguments import main
from paradigms.encoder.text import ENCODERS, TextEncoder
from paradigms.encoder.towers import TwoTowers
from paradigms.find import INDEXES
from paradigms.find.scan import Exact
from paradigms.io.plugins import LOADED, load_plugins
from paradigms.store import Kind
from paradigms.store.codecs import Float16
from tests.near import assert_same
from tests.tiny import built


class Halved(TextEncoder):
    """Vectors of half the length."""

    def _finish(self, vectors):
        return super()._finish(vectors) / 2


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(ENCODERS, "halved", Halved)


def scores(model: Paradigm):
    """Score with a copy of the model in float64."""
    wide = copy.deepcopy(model).double()
    return wide.score(wide.encode_documents(["the sea", "old snow"]), wide.encode_queries(["sea"]))


def test_a_subclass_comes_back_as_itself_in_every_tower(registered, tiny_bert, tmp_path):
    model = PARADIGMS["dpr"](tiny_bert, encoder="halved")
    pair = Paradigm(model.recipe, TwoTowers(model.encoder, PARADIGMS["dpr"](tiny_bert).encoder))
    for name, saved, factor in (("one", model, 0.25), ("pair", pair, 0.5)):
        saved.save_pretrained(tmp_path / name)
        results = Paradigm.from_pretrained(tmp_path / name)
        assert torch.equal(scores(results), scores(saved))
        assert_same(scores(results), factor * scores(PARADIGMS["dpr"](tiny_bert)))
        assert results.description() == saved.description()
        plugins = json.loads((tmp_path / name / "plugins.json").read_text())
        assert plugins == {"encoder halved": "test_plugins.py"}


def test_what_no_one_could_load_again_is_refused(registered, tiny_bert, tmp_path, monkeypatch):
    model = PARADIGMS["dpr"](tiny_bert, encoder="halved")
    with pytest.raises(ValueError, match="no module for the encoder 'halved'"):
        model.save_pretrained(tmp_path / "st", "sentence-transformers")
    model.save_pretrained(tmp_path / "saved")
    monkeypatch.delitem(ENCODERS, "halved")
    with pytest.raises(ValueError, match="Halved is a subclass of TextEncoder that is not registered"):
        Paradigm(model.recipe, Halved(tiny_bert, model.encoder.settings)).save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    missing = "saved needs the encoder halved, which the plug-in test_plugins.py registers: add --plugin"
    with pytest.raises(ValueError, match=missing):
        Paradigm.from_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "plugins.json").unlink()
    with pytest.raises(ValueError, match="unknown encoder 'halved'; there are text"):
        Paradigm.from_pretrained(tmp_path / "saved")


def test_a_plugin_is_imported_once_under_its_own_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own_plugin.py"
    file.write_text("runs = globals().get('runs', 0) + 1\n")
    load_plugins([file, str(file)])
    assert sys.modules.pop("own_plugin").runs == 1
    assert LOADED.pop() == file.resolve()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py", "no such Python file"),
        ("json.py", "json is not a free module name"),
        ("broken_plugin.py", "broken_plugin.py, line 2: SyntaxError"),
    ],
)
def test_files_that_are_no_plugins(tmp_path, monkeypatch, name, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    if name != "absent.py":
        (tmp_path / name).write_text("\n(")
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        load_plugins(tmp_path / name)


def test_a_plugin_registers_an_index(tiny_bert, tmp_path, monkeypatch):
    """`--kind` takes it; an unknown kind is refused with those there are."""
    monkeypatch.setitem(INDEXES, "mine", lambda: Kind("mine", Float16(), Exact()))
    (tmp_path / "notes.txt").write_text("the sea\n")
    PARADIGMS["dpr"](tiny_bert).save_pretrained(tmp_path / "model")
    given = ["index", str(tmp_path / "notes.txt"), "--model", str(tmp_path / "model")]
    given += ["--output", str(tmp_path / "made"), "--kind"]
    with pytest.raises(SystemExit, match=r"unknown kind 'min' of index; there are exact, .*, mine"):
        main([*given, "min"])
    main([*given, "mine"])


TABLES = """
import sys
from paradigms.dpr import dpr
from paradigms.model import Paradigm
backbone, saved, out = sys.argv[1:]
dpr(backbone).save_pretrained(out, "sentence-transformers")
Paradigm.from_pretrained(saved)
"""


def test_tables_of_layouts_and_encoders_are_full_without_another_import(tiny_bert, tmp_path):
    built("splade", tiny_bert).save_pretrained(tmp_path / "saved")
    folders = map(str, (tiny_bert, tmp_path / "saved", tmp_path / "out"))
    subprocess.run([sys.executable, "-c", TABLES, *folders], check=True)
