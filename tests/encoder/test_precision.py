"""One place chooses the type in which encoders compute."""

import pytest
import torch

from paradigms import PARADIGMS
from paradigms.encoder import precision
from paradigms.encoder.precision import autocast, choose_precision, product_precision, resolved
from paradigms.retrieve import Indexed

CPU = torch.device("cpu")
TEXTS = {"a": "the cat sat", "b": "a river bank", "c": "the sea and the sky"}


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv(precision.VARIABLE, "")
    monkeypatch.setattr(precision, "_native_on_cpu", lambda: True)


def test_auto_is_the_surrounding_precision_and_else_the_native_one(native):
    assert resolved(CPU, "auto") == "bf16"
    for name in ("no", "bf16"):
        with autocast(CPU, name):
            assert resolved(CPU, "auto") == product_precision(CPU) == name
            with autocast(CPU, "auto"):
                assert product_precision(CPU) == name
            with autocast(CPU, "no"):
                assert product_precision(CPU) == "no"
    with torch.autocast("cpu", torch.bfloat16):
        assert resolved(CPU, "auto") == "bf16"
    assert resolved(CPU, "auto") == "bf16"
    for name, message in {
        "fp16": "fp16 needs a GPU",
        "fp8": "one of auto, no, bf16, fp16, got 'fp8'",
    }.items():
        with pytest.raises(ValueError, match=message), autocast(CPU, name):
            pass


def test_a_process_may_choose(native, monkeypatch):
    monkeypatch.setenv(precision.VARIABLE, "")
    choose_precision("auto")
    assert resolved(CPU, "auto") == "bf16"
    choose_precision("no")
    assert resolved(CPU, "auto") == "no"
    with autocast(CPU, "bf16"):
        assert resolved(CPU, "auto") == "bf16"


def test_queries_and_documents_are_encoded_alike(native, tiny_bert, monkeypatch):
    model, used = PARADIGMS["dpr"](tiny_bert).eval(), []
    inner = model.encoder._hidden
    monkeypatch.setattr(
        model.encoder, "_hidden", lambda *given: used.append(product_precision(CPU)) or inner(*given)
    )
    for name, expected in (("auto", "bf16"), ("no", "no")):
        index = Indexed.build(model, TEXTS, precision=name)
        index.search({"q": "a cat"}, 2)
        assert used == [expected, expected], name
        used.clear()
    with autocast(CPU, "no"):  # a training in float32 measures in float32
        Indexed.build(model, TEXTS).search({"q": "a cat"}, 2)
    assert used == ["no", "no"]
