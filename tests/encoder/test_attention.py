"""Attention with dropout on processors: softmax(QKᵀ) ∘ m V and its gradients, in tiles, from bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from paradigms.encoder import attention
from paradigms.encoder.backbone import load_backbone
from paradigms.encoder.dropout import draw, scale

X, N, L, H = 5, 3, 17, 8  # texts, heads, tokens, dimensions
P = 0.3


class Module(torch.nn.Module):
    is_causal = False


def given(seed: int = 0) -> list[Tensor]:
    """Q, K, V as linear layers give them: each token's heads side by side."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(X, L, N, H, generator=generator).transpose(1, 2).requires_grad_() for _ in range(3)]


def masks() -> dict[str, Tensor | None]:
    lengths = torch.tensor([17, 3, 1, 9, 12])
    padded = torch.arange(L) < lengths[:, None, None, None]
    return {"none": None, "row": padded, "square": padded.expand(X, 1, L, L), "shared": padded[1:2]}


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kept: Tensor, factor: float
) -> Tensor:
    scores = q @ k.mT * factor
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) * kept * scale(P) @ v).transpose(1, 2)


@pytest.mark.parametrize(
    "tile", [attention.TILE, 2 * N * L * L, 1], ids=["one tile", "tiles of two", "of one"]
)
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("factor", [None, 0.2])
def test_values_and_gradients_are_those_of_the_definition(
    monkeypatch: pytest.MonkeyPatch, tile: int, mask: str, factor: float | None
) -> None:
    monkeypatch.setattr(attention, "TILE", tile)
    qkv, hidden = given(), masks()[mask]
    torch.manual_seed(1)
    out, _ = attention.attention(Module(), *qkv, hidden, P, factor)
    torch.manual_seed(1)
    size = max(1, tile // (N * L * L))
    kept = torch.cat([draw(torch.Size((min(size, X - s) * N, L, L)), P) for s in range(0, X, size)])
    expected = by_definition(*qkv, hidden, kept.view(X, N, L, L), factor or H**-0.5)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(out)
    for found, wanted in zip(
        *(torch.autograd.grad((o * weights).sum(), qkv) for o in (out, expected)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_computed_in_float32(autocast: bool) -> None:
    halves = [t.detach().bfloat16().requires_grad_() for t in given()]
    wide = [t.detach().float().requires_grad_() for t in halves]
    found = []
    for qkv in (halves, wide):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out, _ = attention.attention(Module(), *qkv, masks()["row"], P)
        torch.manual_seed(2)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), qkv)])
    torch.testing.assert_close(found[0][0], found[1][0].bfloat16(), rtol=0, atol=0)
    for half, full in zip(found[0][1:], found[1][1:], strict=True):
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), full, rtol=0.02, atol=0.02)  # of gradients in 8 bits


def test_a_checkpoint_replays_it() -> None:
    qkv, found = given(), []
    for again in (False, True):

        def run(*qkv: Tensor) -> Tensor:
            return attention.attention(Module(), *qkv, None, P)[0]

        torch.manual_seed(2)
        out = checkpoint(run, *qkv, use_reentrant=False) if again else run(*qkv)
        found.append([out, *torch.autograd.grad(out.square().sum(), qkv)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_text_that_attends_to_nothing_has_finite_gradients() -> None:
    qkv = given()
    hidden = torch.zeros(X, 1, 1, L, dtype=torch.bool)
    out, _ = attention.attention(Module(), *qkv, hidden, P)
    for gradient in torch.autograd.grad(out.sum(), qkv):
        assert gradient.isfinite().all()


def test_what_is_kept_grows_with_the_length_and_not_its_square() -> None:
    def kept(tokens: int) -> int:
        sizes = []
        qkv = [torch.randn(1, N, tokens, H, requires_grad=True) for _ in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            attention.attention(Module(), *qkv, None, P)
        return sum(sizes) - N * tokens**2 // 8  # less the bits

    assert kept(64) == 2 * kept(32)


@pytest.mark.parametrize("case", ["no dropout", "causal", "double", "additive mask", "bias"])
def test_the_rest_is_torchs_own(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    qkv, hidden, p, causal, more = given(), None, P, None, {}
    match case:
        case "no dropout":
            p = 0.0
        case "causal":
            causal = True
        case "double":
            qkv = [t.double() for t in qkv]
        case "additive mask":
            hidden = torch.randn(X, 1, L, L)
        case "bias":
            more = {"position_bias": torch.randn(1, N, L, L)}
    monkeypatch.setattr(attention._Attention, "apply", lambda *_: pytest.fail("not torch's"))
    found = []
    for function in (attention.attention, sdpa_attention_forward):
        torch.manual_seed(4)
        found.append(function(Module(), *qkv, hidden, p, None, causal, **more)[0])
    assert torch.equal(*found)


def test_an_encoder_trains_by_it_and_is_saved_without_a_word_of_it(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = load_backbone(tiny_bert), []
    apply = attention._Attention.apply
    monkeypatch.setattr(attention._Attention, "apply", lambda *given: (calls.append(1), apply(*given))[1])
    ids = torch.arange(12).view(2, 6)
    there = torch.ones_like(ids)
    there[1, 4:] = 0
    model.eval()(ids, attention_mask=there)
    assert not calls
    out = model.train()(ids, attention_mask=there).last_hidden_state
    out.square().sum().backward()
    assert len(calls) == model.config.num_hidden_layers
    assert all(weight.grad is not None for weight in model.parameters())
    model.save_pretrained(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()


def test_without_dropout_the_encoder_gives_what_transformers_does(tiny_bert: Path) -> None:
    from transformers import AutoModel

    ids = torch.arange(12).view(2, 6)
    there = torch.ones_like(ids)
    there[1, 4:] = 0
    ours, theirs = (
        m.eval()(ids, attention_mask=there).last_hidden_state
        for m in (load_backbone(tiny_bert), AutoModel.from_pretrained(tiny_bert, dtype=torch.float32))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
