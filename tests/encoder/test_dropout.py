"""Dropout on processors: Bernoulli masks from torch's generator, kept in bits; the gradient is the mask's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy.stats import binom
from torch import nn
from torch.utils.checkpoint import checkpoint

from paradigms.encoder import dropout
from paradigms.encoder.backbone import load_backbone
from paradigms.encoder.dropout import BitDropout, draw, pack, unpack, with_bit_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-4])
def test_each_number_is_kept_with_probability_1_minus_p(p: float) -> None:
    torch.manual_seed(0)
    kept = draw(torch.Size((500, 401)), p)
    assert kept.shape == (500, 401)
    low, high = binom.interval(1 - 1e-6, kept.numel(), 1 - round(p * dropout.STEPS) / dropout.STEPS)
    assert low <= kept.sum() <= high


def test_numbers_of_one_draw_are_independent() -> None:
    torch.manual_seed(0)
    kept = draw(torch.Size((4, 100_000)), 0.5).double()  # of 64 bits each: columns four apart
    for lag in (1, 2, 3, 4, 8):
        flat = kept.flatten()
        low, high = binom.interval(1 - 1e-6, len(flat) - lag, 0.5)
        assert low <= (flat[lag:] == flat[:-lag]).sum() <= high


def test_values_gradients_and_mean_are_those_of_one_mask() -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 7, 100, requires_grad=True)
    out = BitDropout(0.3)(x)
    gradient = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, x, gradient)
    kept = out != 0
    torch.testing.assert_close(out[kept], x[kept] / 0.7, rtol=2e-5, atol=0)
    torch.testing.assert_close(found, gradient * kept / 0.7, rtol=2e-5, atol=0)


def test_bits_are_given_back() -> None:
    torch.manual_seed(0)
    for shape in ((0,), (1,), (3, 5), (8, 2, 9)):
        kept = torch.rand(shape) < 0.4
        assert torch.equal(unpack(pack(kept), kept.shape), kept)


def test_the_generator_replays_it_and_a_checkpoint_does() -> None:
    x, found = torch.randn(40, 30, requires_grad=True), []
    for run in (BitDropout(0.2), lambda x: checkpoint(BitDropout(0.2), x, use_reentrant=False)):
        torch.manual_seed(3)
        out = run(x)
        torch.rand(5)  # a later draw
        found += [out, *torch.autograd.grad(out.square().sum(), x)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_where_it_does_not_apply_it_is_torchs_own() -> None:
    plain = nn.Dropout(0.4)
    ours = with_bit_dropout(
        nn.Sequential(nn.Dropout(0.4), nn.Dropout(1.0), nn.Dropout(0.0), nn.Dropout(1 - 1e-6))
    )
    assert all(type(layer) is BitDropout for layer in ours)
    x = torch.randn(10, 10)
    assert torch.equal(ours[1](x), torch.zeros_like(x))
    assert torch.equal(ours[2](x), x)
    assert ours[3](x).shape == x.shape
    assert torch.equal(ours.eval()(x), x)
    meta = torch.empty(3, 2, device="meta")
    assert ours.train()[0](meta).shape == plain(meta).shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_precision_stays_what_it_is(dtype: torch.dtype) -> None:
    x = torch.ones(50, dtype=dtype, requires_grad=True)
    out = BitDropout(0.5)(x)
    out.sum().backward()
    assert out.dtype == dtype
    assert x.grad is not None
    assert torch.equal(x.grad, out)


def test_every_encoder_has_it(tiny_bert: Path) -> None:
    layers = [m for m in load_backbone(tiny_bert).modules() if isinstance(m, nn.Dropout)]
    assert layers
    assert all(type(m) is BitDropout for m in layers)
