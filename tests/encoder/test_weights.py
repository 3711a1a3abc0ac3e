"""Which changes of weights are seen."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from paradigms.encoder.weights import Watch, state_of


def fused_step(weight: nn.Parameter) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], lr=1e-3, fused=True).step()


def numpy_view(weight: nn.Parameter) -> None:
    view = weight.detach().numpy()
    view *= 0.5


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda weight: weight.detach().mul_(0.5),
    "one value in place": lambda weight: weight.detach()[3].fill_(7),
    "through .data": lambda weight: weight.data.mul_(0.5),
    "a part of .data": lambda weight: weight.data.flatten()[1 : 1 + weight.numel() // 60].zero_(),
    "other .data": lambda weight: setattr(weight, "data", weight.data.clone()),
    "transposed .data": lambda weight: setattr(weight, "data", weight.data.T),
    "NumPy": numpy_view,
    "fused optimizer": fused_step,
}


@pytest.mark.parametrize("shape", [(128, 128), (1000,)])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change, shape):
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(shape))]
    watch = Watch(weights)
    before = watch.state()
    assert before == watch.state() == state_of(weights) == state_of(w.detach() for w in weights)
    if change != "transposed .data" or len(shape) > 1:
        CHANGES[change](weights[1])
        assert watch.state() != before
        assert state_of(weights) != before


def test_tensors_of_all_kinds_have_a_state():
    with torch.inference_mode():
        frozen = torch.zeros(200, dtype=torch.bfloat16)
    wide = torch.zeros(90, 90)
    tensors = [frozen, wide[:, ::2], wide[:1].expand(9, -1), torch.tensor(True), torch.empty(0, 3)]
    before = hash(state_of(tensors))
    for changed in (lambda: frozen.data.fill_(1), lambda: wide.data.fill_(1), tensors.pop):
        changed()
        before, old = hash(state_of(tensors)), before
        assert before != old
