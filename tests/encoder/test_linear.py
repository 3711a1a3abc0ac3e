"""Linear layers by oneDNN: equal to PyTorch's own, and only where they are faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paradigms.encoder import linear
from paradigms.encoder.backbone import load_backbone
from paradigms.encoder.linear import OneDNNLinear, with_fast_linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs a torch with oneDNN")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """oneDNN wherever the layer allows it, on any processor; the list notes each product that it makes."""
    made: list[str] = []
    product = linear._product
    monkeypatch.setattr(linear, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(
        linear, "_product", lambda x, *more: (made.append(str(x.dtype)), product(x, *more))[1]
    )
    return made


def pair(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    fast = nn.Linear(24, 40, bias=bias)
    fast.load_state_dict(plain.state_dict())
    return plain, with_fast_linear(nn.Sequential(fast))[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24), (1, 24)])
@pytest.mark.parametrize("cached", [False, True], ids=["kept", "recomputed"])
def test_values_and_gradients_are_those_of_a_linear_layer(
    faster: list[str], shape: tuple[int, ...], bias: bool, cached: bool
) -> None:
    x, found = torch.randn(shape, generator=torch.Generator().manual_seed(1)), []
    for layer in pair(bias):
        given = x.clone().requires_grad_()
        out = checkpoint(layer, given, use_reentrant=False) if cached else layer(given)
        (out.square().sum() + out[..., :3].sum()).backward()
        found.append([out, given.grad, *(p.grad for p in layer.parameters())])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4)
    assert len(faster) == 3 + cached  # of x, once more where it is recomputed, and for both gradients


def test_weights_that_are_not_trained_get_no_gradient(faster: list[str]) -> None:
    plain, fast = pair()
    for layer in (plain, fast):
        layer.requires_grad_(False)
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    found = [torch.autograd.grad(layer(x.requires_grad_()).square().sum(), x)[0] for layer in (plain, fast)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-4)
    fast.bias.requires_grad_(True)
    fast(x).sum().backward()
    assert fast.weight.grad is None
    torch.testing.assert_close(fast.bias.grad, torch.full_like(fast.bias, 4.0))


def test_only_the_input_and_the_weights_are_kept(faster: list[str]) -> None:
    kept: list[Tensor] = []
    _, fast = pair()
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        fast(x)
    assert [t.data_ptr() for t in kept] == [x.data_ptr(), fast.weight.data_ptr()]


def test_what_onednn_does_not_do_is_done_as_before(faster: list[str]) -> None:
    plain, fast = pair()
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x), plain(x))
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(fast(x), plain(x))
    assert torch.equal(fast(x[0]), plain(x[0]))
    assert torch.equal(fast.double()(x.double()), plain.double()(x.double()))
    assert faster == []


def test_the_backbone_of_every_encoder_has_them_where_they_are_faster(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for there in (False, True):
        monkeypatch.setattr(linear, "_onednn_is_faster", lambda there=there: there)
        layers = [m for m in load_backbone(tiny_bert).modules() if isinstance(m, nn.Linear)]
        assert layers
        assert all(isinstance(m, OneDNNLinear) is there for m in layers)


def test_they_are_faster_on_amd_with_avx512_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    for vendor, width, faster in (
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
    ):
        monkeypatch.setattr(linear, "_processor", lambda vendor=vendor: f"vendor_id : {vendor}")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda width=width: width)
        assert linear._onednn_is_faster() is faster
