"""A whole paradigm: built by name, scored, saved and loaded bit for bit, refused where files are wrong."""

import os
import shutil
import signal
import threading
import time
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paradigms import PARADIGMS, Paradigm
from paradigms.align import DocumentToQuery, PoolTopK, QueryToDocument, TopK
from paradigms.core import Tokens
from paradigms.encoder.settings import EncoderSettings
from paradigms.recipe import Recipe, recipe_fields
from tests.forks import fork
from tests.near import assert_same
from tests.tiny import FAMILIES, built, randomised

QUERIES = ["where is the quick fox", "stone"]
DOCUMENTS = ["A quick fox, in the garden.", "the stone story of a zebra; stone and water", "", "snow"]
TENSORS = ("vectors", "mask", "ids", "salience")


def trained(name: str, folder, **settings) -> Paradigm:
    """A paradigm whose every trainable weight differs from what building it would give."""
    torch.manual_seed(0)
    return randomised(built(name, folder, **settings), 0.05)


def same(a: Tokens, b: Tokens) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in TENSORS]
    return all(x is y is None or torch.equal(x, y) for x, y in pairs)


def tokens(paradigm: Paradigm) -> tuple[Tokens, Tokens]:
    return paradigm.encode_queries(QUERIES), paradigm.encode_documents(DOCUMENTS)


def written(paradigm, folder):
    """The file as `save_pretrained` writes it; adapters stay separate."""
    folder.mkdir()
    paradigm.write(folder)


def files(folder) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# Every paradigm on BERT; the one with the most heads on every family.
ROUND_TRIPS = [(n, f) for n in PARADIGMS for f in FAMILIES if f == "bert" or n == "aligner"]


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize(("name", "family"), ROUND_TRIPS)
def test_a_saved_paradigm_loads_bit_for_bit(checkpoints, tmp_path, name, family, lora_rank):
    markers = {"query_marker": "a", "document_prompt": "passage: ", "document_length": 20}
    paradigm = trained(name, checkpoints[family], lora_rank=lora_rank, **markers)
    expected = tokens(paradigm)
    assert not same(expected[1], tokens(built(name, checkpoints[family], **markers))[1])
    written(paradigm, tmp_path / "saved")
    shutil.move(tmp_path / "saved", tmp_path / "moved")  # what is saved stands for itself
    torch.manual_seed(99)
    loaded = Paradigm.from_pretrained(tmp_path / "moved")
    assert loaded.description() == paradigm.description()
    assert all(same(a, b) for a, b in zip(expected, tokens(loaded), strict=True))
    assert torch.equal(loaded.score(*reversed(tokens(loaded))), paradigm.score(*reversed(expected)))
    trainable = [{n for n, p in m.named_parameters() if p.requires_grad} for m in (paradigm, loaded)]
    assert trainable[0] == trainable[1]


def test_what_is_on_disk(tiny_bert, tmp_path):
    written(trained("aligner", tiny_bert, lora_rank=2), tmp_path / "saved")
    assert files(tmp_path / "saved") == {
        "paradigm.json",
        "encoder.json",
        "heads.safetensors",
        "backbone/config.json",
        "backbone/model.safetensors",
        "backbone/tokenizer.json",
        "backbone/tokenizer_config.json",
    }
    content = b"".join((tmp_path / "saved" / name).read_bytes() for name in files(tmp_path / "saved"))
    assert str(tiny_bert).encode() not in content
    base = load_file(tmp_path / "saved" / "backbone" / "model.safetensors")
    original = load_file(tiny_bert / "model.safetensors")
    assert base.keys() == {n for n in original if not n.startswith("pooler.")}
    assert all(torch.equal(base[n], original[n]) for n in base)


def test_saving_replaces_what_was_there_or_leaves_it(tiny_bert, checkpoints, tmp_path, monkeypatch):
    folder = tmp_path / "saved"
    trained("aligner", tiny_bert).save_pretrained(folder)
    (folder / "old.safetensors").touch()
    other = trained("dpr", checkpoints["t5"])
    other.save_pretrained(folder)
    assert "old.safetensors" not in files(folder)
    monkeypatch.setattr("paradigms.encoder.text.save_file", None)
    with pytest.raises(TypeError):
        trained("colbert", tiny_bert).save_pretrained(folder)
    assert same(tokens(Paradigm.from_pretrained(folder))[1], tokens(other)[1])
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]


@pytest.fixture
def saved(tiny_bert, tmp_path):
    trained("aligner", tiny_bert, dim=16).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


OWN = ("paradigm.json", "encoder.json", "heads.safetensors", "backbone/config.json")
WRONG = [(file, None, f"saved/{file} is missing: .* is not a saved") for file in OWN]
WRONG += [(f"backbone/{file}", None, "saved/backbone") for file in ("model.safetensors", "tokenizer.json")]
WRONG += [
    ("encoder.json", '{"dmi": 8}', r"encoder\.json: settings .* not know: 'dmi'"),
    ("encoder.json", '{"eps": -1.0}', r"encoder\.json: eps must be above 0"),
    ("encoder.json", '{"dim": 8', r"encoder\.json: .*line 1"),
    ("encoder.json", "[]", r"encoder\.json: "),
    ("paradigm.json", '{"name": "aligner"}', r"paradigm\.json: .*'align'"),
]


@pytest.mark.parametrize(("file", "text", "message"), WRONG)
def test_wrong_and_missing_files_are_named(saved, file, text, message):
    if text is None:
        (saved / file).unlink()
    else:
        (saved / file).write_text(text)
    with pytest.raises((OSError, ValueError), match=message):
        Paradigm.from_pretrained(saved)


def test_wrong_heads_name_the_file(saved):
    heads = load_file(saved / "heads.safetensors")
    lacking = {name: weight for name, weight in heads.items() if name != "projection.weight"}
    left_over = heads | {"projection.bias": torch.zeros(2)}
    other_shape = heads | {"projection.weight": torch.zeros(8, 32)}
    for wrong in (lacking, left_over, other_shape):
        save_file(wrong, saved / "heads.safetensors")
        with pytest.raises(ValueError, match=r"heads\.safetensors holds .*projection\."):
            Paradigm.from_pretrained(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"align": "Best"}, "unknown alignment 'Best'; there are AllPairs"),
        ({"align": "TopK(2)"}, r"'TopK\(2\)' is not an alignment; write it like TopK\(k=2\)"),
        ({"normalise": "none"}, "unknown normaliser 'none' of x"),
        ({"align": "TopK(k=1, p=0.5)"}, r"alignment TopK.*: give TopK values for its settings \(k\)"),
        ({"align": "TopK(k='3')"}, "TopK.*k"),
        ({"align": "TopK(k=0)"}, "TopK: k must be at least 1, got 0"),
        ({"align": "TopP(p=1.5)"}, "TopP: p must be at most 1, got 1.5"),
        ({"imputation": "median"}, "unknown imputation 'median' of x; there are kth, none"),
        ({"name": "x\nlicense: mit"}, "it must be one line of printable characters"),
        ({"search_tokens": 0}, "search_tokens must be at least 1, got 0"),
        ({"search": "impute"}, "the alignment TopK\\(k=1\\) has none: set search to 'gather'"),
    ],
)
def test_recipes_that_name_what_there_is_not(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**recipe_fields({"name": "x", "align": "TopK(k=1)", "normalise": "total"} | changes))


def test_settings_are_keywords_that_help_shows(tiny_bert):
    """help() lists all settings of the encoder with the paradigm's defaults, and the knobs of its recipe."""
    shown = signature(PARADIGMS["xtr"]).parameters
    assert (shown["k_train"].default, shown["dim"].default) == (0.005, None)
    for name, build in PARADIGMS.items():
        assert next(iter(signature(build).parameters)) == "backbone", name
        assert {f.name for f in fields(EncoderSettings)} <= set(signature(build).parameters)
    with pytest.raises(ValueError, match=r"unknown settings: 'k_trained'; there are .*k_train"):
        PARADIGMS["xtr"](tiny_bert, k_trained=3)


def test_with_alignment_keeps_the_encoder(tiny_bert):
    colbert = PARADIGMS["colbert"](tiny_bert)
    reverse = colbert.with_alignment(DocumentToQuery())
    assert reverse.encoder is colbert.encoder
    assert (reverse.recipe.align, colbert.recipe.align) == (DocumentToQuery(), QueryToDocument())
    assert reverse.recipe.normalise == "query_tokens"
    xtr = PARADIGMS["xtr"](tiny_bert)
    assert xtr.with_alignment(PoolTopK(k=4)).recipe.search == "impute"
    assert xtr.with_alignment(QueryToDocument()).recipe.search == "gather"


def threads_of_a_fork() -> int:
    child = os.fork()
    if not child:
        os._exit(torch.get_num_threads())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def encode_in_a_fork(folder: Path) -> None:
    torch.set_num_threads(2)
    assert threads_of_a_fork() == 2  # nothing has been computed
    torch.ones(1 << 20).exp()  # starts OpenMP's second thread, which no fork has
    paradigm, entered = PARADIGMS["colbert"](folder).double().eval(), threading.Event()
    expected = paradigm.encode_documents(DOCUMENTS)

    def encode() -> None:
        with paradigm.evaluating():
            entered.set()
            time.sleep(0.2)

    thread = threading.Thread(target=encode)
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits
        torch.ones(1 << 20).exp()
        assert_same(paradigm.encode_documents(DOCUMENTS).vectors, expected.vectors)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.get_num_threads() == 2
    assert threads_of_a_fork() == 1
    thread.join()


def test_a_fork_beside_a_thread_that_encodes_can_encode(tiny_bert, tmp_path):
    assert fork(tmp_path / "log", encode_in_a_fork, tiny_bert).ended() == (0, "")


def test_encoding_has_no_dropout_and_restores_the_mode(tiny_bert):
    paradigm = PARADIGMS["dpr"](tiny_bert).train()
    assert same(paradigm.encode_documents(DOCUMENTS), paradigm.encode_documents(DOCUMENTS))
    assert paradigm.training
    batch = paradigm.encoder.tokenize(DOCUMENTS, "document")
    assert not same(paradigm.encoder(batch, "document"), paradigm.encoder(batch, "document"))
    other = paradigm.eval().with_alignment(TopK(k=2))  # shares the encoder
    other.encode_documents(DOCUMENTS)
    assert not paradigm.encoder.training
    with pytest.raises(KeyError), paradigm.evaluating():
        raise KeyError
    assert not paradigm.training
