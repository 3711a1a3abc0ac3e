"""One place chooses the type in which encoders compute; int8 differs from float32 within its bound."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paradigms import PARADIGMS
from paradigms.encoder import int8, precision
from paradigms.encoder.int8 import LARGEST, product, product_reference, quantised
from paradigms.encoder.precision import autocast, choose_precision, product_precision, resolved
from paradigms.retrieve import Indexed
from tests.near import assert_within_rounding

CPU = torch.device("cpu")
TEXTS = {"a": "the cat sat", "b": "a river bank", "c": "the sea and the sky"}


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv(precision.VARIABLE, "")
    monkeypatch.setattr(precision, "_native_on_cpu", lambda: True)


def test_auto_is_the_surrounding_precision_and_else_the_native_one(native):
    assert resolved(CPU, "auto") == "bf16"
    for name in ("no", "bf16", "int8"):
        with autocast(CPU, name):
            assert resolved(CPU, "auto") == product_precision(CPU) == name
            with autocast(CPU, "auto"):
                assert product_precision(CPU) == name
            with autocast(CPU, "no"):
                assert product_precision(CPU) == "no"
    with torch.autocast("cpu", torch.bfloat16):
        assert resolved(CPU, "auto") == "bf16"
    assert resolved(CPU, "auto") == "bf16"
    with pytest.raises(ValueError, match="int8 needs a CPU"):
        autocast(torch.device("cuda"), "int8")


def test_a_process_may_choose(native, monkeypatch):
    monkeypatch.setenv(precision.VARIABLE, "")
    choose_precision("auto")
    assert resolved(CPU, "auto") == "bf16"
    choose_precision("no")
    assert resolved(CPU, "auto") == "no"
    assert resolved(CPU, "int8") == "int8"
    with autocast(CPU, "int8"):
        assert resolved(CPU, "auto") == "int8"


def test_queries_and_documents_are_encoded_alike(native, tiny_bert, monkeypatch):
    model, used = PARADIGMS["dpr"](tiny_bert).eval(), []
    inner = model.encoder._hidden
    monkeypatch.setattr(
        model.encoder, "_hidden", lambda batch: used.append(product_precision(CPU)) or inner(batch)
    )
    for name, wanted in (("auto", "bf16"), ("no", "no"), ("int8", "int8")):
        index = Indexed.build(model, TEXTS, precision=name)
        index.search({"q": "a cat"}, 2)
        assert used == [wanted, wanted], name
        used.clear()
    with autocast(CPU, "no"):  # a training in float32 measures in float32
        Indexed.build(model, TEXTS).search({"q": "a cat"}, 2)
    assert used == ["no", "no"]


shapes = st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))


def factors(shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, width, out, seed = shape
    random = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(n, width, generator=random) for n in (rows, out))
    x[0, 0] *= 50  # an outlier, as transformers have
    return x, weight, torch.randn(out, generator=random)


@given(shapes)
@torch.no_grad()
def test_the_product_is_its_definition(shape):
    x, weight, bias = factors(shape)
    found = product(x, quantised(weight), bias)
    wanted = product_reference(x, weight, bias)
    scale = float((x.abs() @ weight.abs().T).max() + bias.abs().max())
    assert_within_rounding(found, wanted, torch.float32, shape[1] + 4, scale)


def test_a_processor_whose_sums_saturate_multiplies_in_float32(monkeypatch):
    x, weight, bias = factors((5, 40, 3, 0))
    wanted = product_reference(x, weight, bias)
    monkeypatch.setattr(int8, "exact", lambda: False)
    monkeypatch.setattr(int8, "_packed_product", None)
    scale = float((x.abs() @ weight.abs().T).max() + bias.abs().max())
    assert_within_rounding(product(x, quantised(weight), bias), wanted, torch.float32, 44, scale)


@given(shapes)
@torch.no_grad()
def test_the_error_is_at_most_half_a_step_of_each_factor(shape):
    x, weight, _ = (t.double() for t in factors(shape))
    found = product(x.float(), quantised(weight.float())).double()
    steps = [t.abs().amax(-1) / LARGEST / 2 for t in (x, weight)]
    sums = [t.abs().sum(-1) for t in (x, weight)]
    bound = steps[0][:, None] * sums[1] + sums[0][:, None] * steps[1]
    bound += shape[1] * steps[0][:, None] * steps[1]
    assert bool(((found - x @ weight.T).abs() <= bound * 1.001).all())


@given(shapes)
@torch.no_grad()
def test_a_token_is_quantised_by_itself(shape):
    x, weight, bias = factors(shape)
    packed = quantised(weight)
    whole = product(x, packed, bias)
    for n in range(len(x)):
        assert torch.equal(product(x[n : n + 1], packed, bias)[0], whole[n])
    assert torch.equal(product(4 * x, packed), 4 * product(x, packed))  # the steps scale with the token
    assert torch.equal(product(torch.zeros_like(x), packed, bias), bias.expand(len(x), -1))


@pytest.mark.parametrize("family", ["bert", "modernbert", "t5"])
@torch.no_grad()
def test_every_encoder_has_8_bits(family, checkpoints, monkeypatch):
    model = PARADIGMS["colbert"](checkpoints[family], dim=16).eval()
    batch = model.encoder.tokenize(list(TEXTS.values()), "document")
    whole = model.encoder._hidden(batch)
    with autocast(CPU, "int8"):
        found = model.encoder._hidden(batch)
        again = model.encoder._hidden(batch)
        assert torch.equal(found, again)
        linears = [m for m in model.encoder.backbone.modules() if isinstance(m, nn.Linear)]
        for layer in linears:  # the same model, by the definition
            layer.forward = lambda x, m=layer: product_reference(x, m.weight, m.bias)
        monkeypatch.setattr("paradigms.encoder.bert.fast_forward", lambda *_: None)
        monkeypatch.setattr(int8.W8A8, "__torch_function__", lambda _, f, __, a=(), k=None: f(*a, **k or {}))
        wanted = model.encoder._hidden(batch)
    kept = batch.attention_mask.bool()
    difference = (found - wanted)[kept].norm() / wanted[kept].norm()
    rounding = (found - whole)[kept].norm() / whole[kept].norm()
    assert 0 < rounding < 0.1
    assert difference < rounding  # ties of rounding apart, the same steps


@torch.no_grad()
def test_changed_weights_are_quantised_again():
    layer = nn.Linear(8, 4)
    x = torch.randn(2, 8)
    with int8.W8A8():
        first = layer(x)
        layer.weight.data.mul_(2)
        second = layer(x)
    assert not torch.equal(first, second)
