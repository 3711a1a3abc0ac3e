"""Products with reordered weights against torch's, and when the weights have to be reordered again."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from paradigms.encoder.packed import linears
from tests.near import assert_within_rounding

WIDTH = 24


def layers(bias: bool) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, size, bias=bias) for size in (16, 5, 32)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(7,), (2, 0, 4)])
@torch.no_grad()
def test_products_are_those_of_torch_with_weights_as_they_are_now(shape, bias):
    some, x = layers(bias), torch.randn(*shape, WIDTH)
    for _ in range(2):
        for layer, results in zip(some, linears(*some)(x), strict=True):
            expected = deepcopy(layer).double()(x.double())
            for mine in (results, linears(layer)(x)[0]):
                assert_within_rounding(mine, expected, torch.float32, WIDTH, scale=WIDTH)
        some[1].weight.data.mul_(-3)  # not the first weight, under which the joined copy is kept
        some[2].weight = nn.Parameter(torch.randn(32, WIDTH))


def test_gradients_other_types_and_subclasses_are_torchs_own():
    some = layers(bias=False)
    x = torch.randn(3, WIDTH)
    sum(part.sum() for part in linears(*some)(x)).backward()
    assert all(layer.weight.grad is not None for layer in some)
    with torch.no_grad():
        double = [part.dtype for part in linears(*(layer.double() for layer in some))(x.double())]
        assert double == [torch.float64] * 3
        some = [layer.float() for layer in some]
        with torch.autocast("cpu", torch.bfloat16):
            assert [part.dtype for part in linears(*some)(x)] == [torch.bfloat16] * 3

        class Adapted(nn.Linear):
            def forward(self, x):
                return super().forward(x) + 1

        adapted = Adapted(WIDTH, 4)
        assert torch.equal(linears(adapted)(x)[0], adapted(x))
        assert torch.equal(linears(some[0], adapted)(x)[1], adapted(x))
        inputs: list[torch.Tensor] = []
        some[0].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        linears(*some)(x)
        assert inputs[0] is x
