"""Training on CPUs by `fast_cpu`: values and gradients are torch's, and the model is left as it was."""

from functools import partial

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from paradigms.encoder.backbone import load_backbone
from paradigms.train import fast_cpu as module
from paradigms.train.fast_cpu import attention, draw, dropout, fast_cpu, linear, pack, scale, unpack
from tests.near import assert_within_rounding

X, N, L, H = 5, 3, 17, 8  # texts, heads, tokens, dimensions
P = 0.3
# q k, a softmax and its product with v are sums of H, L and L terms; their gradients again of L, H, L and L.
SUMS = 2 * H + 5 * L
IN, OUT = 24, 40  # of a linear layer
LAYER = IN + OUT + X * N  # outputs, and of what these are the gradients of the inputs, or of the weights


def test_an_encoder_trains_by_it_inside_alone(tiny_bert, tmp_path, monkeypatch):
    model, calls = load_backbone(tiny_bert).train(), []
    for name in ("_Attention", "_Dropout", "_Linear"):
        function = getattr(module, name)
        apply = function.apply
        monkeypatch.setattr(
            function, "apply", lambda *given, name=name, apply=apply: (calls.append(name), apply(*given))[1]
        )
    monkeypatch.setattr(module, "_onednn_is_faster", lambda: True)
    ids = torch.arange(12).view(2, 6)
    there = torch.ones_like(ids)
    there[1, 4:] = 0
    for inside in (True, False):
        with fast_cpu(model) if inside else torch.enable_grad():
            model(ids, attention_mask=there).last_hidden_state.square().sum().backward()
            model.save_pretrained(tmp_path)
            assert module.NAME not in (tmp_path / "config.json").read_text()
        assert (set(calls) == {"_Attention", "_Dropout", "_Linear"}) is inside
        assert all(weight.grad is not None for weight in model.parameters())
        calls.clear()
    assert model.config._attn_implementation == "sdpa"
    assert all("forward" not in vars(layer) for layer in model.modules())


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-4])
def test_each_number_is_kept_with_probability_1_minus_p(p):
    torch.manual_seed(0)
    kept = draw(torch.Size((500, 401)), p)
    assert kept.shape == (500, 401)
    low, high = binom.interval(1 - 1e-6, kept.numel(), 1 - round(p * module.STEPS) / module.STEPS)
    assert low <= kept.sum() <= high
    assert torch.equal(unpack(pack(kept), kept.shape), kept)


def test_values_gradients_and_mean_are_those_of_one_mask():
    torch.manual_seed(0)
    x = torch.randn(300, 7, 100, requires_grad=True)
    out = dropout(nn.Dropout(0.3), x)
    gradient = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, x, gradient)
    kept = out != 0
    factor = scale(0.3)
    assert factor == pytest.approx(1 / 0.7, rel=1 / module.STEPS)
    assert_within_rounding(out[kept], x[kept] * factor, torch.float32, 2)
    assert_within_rounding(found, gradient * kept * factor, torch.float32, 2)


def test_the_generator_replays_it_and_a_checkpoint_does():
    x, found = torch.randn(40, 30, requires_grad=True), []
    layer = nn.Dropout(0.2)
    for run in (
        partial(dropout, layer),
        lambda x: checkpoint(partial(dropout, layer), x, use_reentrant=False),
    ):
        torch.manual_seed(3)
        out = run(x)
        torch.rand(5)  # a later draw
        found += [out, *torch.autograd.grad(out.square().sum(), x)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


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


@pytest.mark.parametrize("tile", [module.TILE, 2 * N * L * L, 1], ids=["one tile", "tiles of two", "of one"])
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("factor", [None, 0.2])
def test_values_and_gradients_are_those_of_the_definition(monkeypatch, tile, mask, factor):
    monkeypatch.setattr(module, "TILE", tile)
    qkv, hidden = given(), masks()[mask]
    torch.manual_seed(1)
    out, _ = attention(Module(), *qkv, hidden, P, factor)
    torch.manual_seed(1)
    size = max(1, tile // (N * L * L))
    kept = torch.cat([draw(torch.Size((min(size, X - s) * N, L, L)), P) for s in range(0, X, size)])
    expected = by_definition(*qkv, hidden, kept.view(X, N, L, L), factor or H**-0.5)
    assert_within_rounding(out, expected, torch.float32, SUMS)
    weights = torch.randn_like(out)
    for found, wanted in zip(
        *(torch.autograd.grad((o * weights).sum(), qkv) for o in (out, expected)), strict=True
    ):
        assert_within_rounding(found, wanted, torch.float32, SUMS)


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_computed_in_float32(autocast):
    halves = [t.detach().bfloat16().requires_grad_() for t in given()]
    wide = [t.detach().float().requires_grad_() for t in halves]
    found = []
    for qkv in (halves, wide):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out, _ = attention(Module(), *qkv, masks()["row"], P)
        torch.manual_seed(2)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), qkv)])
    assert torch.equal(found[0][0], found[1][0].bfloat16())
    for half, full in zip(found[0][1:], found[1][1:], strict=True):
        assert half.dtype == torch.bfloat16
        assert_within_rounding(half, full, torch.bfloat16, 4)  # of gradients in 8 bits


def test_a_text_that_attends_to_nothing_has_finite_gradients():
    qkv = given()
    hidden = torch.zeros(X, 1, 1, L, dtype=torch.bool)
    out, _ = attention(Module(), *qkv, hidden, P)
    for gradient in torch.autograd.grad(out.sum(), qkv):
        assert gradient.isfinite().all()


def test_what_is_kept_grows_with_the_length_and_not_its_square():
    def kept(tokens: int) -> int:
        sizes = []
        qkv = [torch.randn(1, N, tokens, H, requires_grad=True) for _ in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            attention(Module(), *qkv, None, P)
        return sum(sizes) - N * tokens**2 // 8  # less the bits

    assert kept(64) == 2 * kept(32)


@pytest.mark.parametrize("case", ["no dropout", "causal", "double", "additive mask", "bias"])
def test_the_rest_is_torchs_own(monkeypatch, case):
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
    monkeypatch.setattr(module._Attention, "apply", lambda *_: pytest.fail("not torch's"))
    found = []
    for function in (attention, sdpa_attention_forward):
        torch.manual_seed(4)
        found.append(function(Module(), *qkv, hidden, p, None, causal, **more)[0])
    assert torch.equal(*found)


@pytest.fixture
def faster(monkeypatch):
    """oneDNN wherever the layer allows it, on any processor; the list notes each product that it makes."""
    made: list[str] = []
    product = module._product
    monkeypatch.setattr(
        module, "_product", lambda x, *more: (made.append(str(x.dtype)), product(x, *more))[1]
    )
    return made


class Fast(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(self, x)


def pair(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain, fast = nn.Linear(IN, OUT, bias=bias), Fast(IN, OUT, bias=bias)
    fast.load_state_dict(plain.state_dict())
    return plain, fast


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24), (1, 24)])
@pytest.mark.parametrize("cached", [False, True], ids=["kept", "recomputed"])
def test_values_and_gradients_are_those_of_a_linear_layer(faster, shape, bias, cached):
    x, found = torch.randn(shape, generator=torch.Generator().manual_seed(1)), []
    for layer in pair(bias):
        given = x.clone().requires_grad_()
        out = checkpoint(layer, given, use_reentrant=False) if cached else layer(given)
        (out.square().sum() + out[..., :3].sum()).backward()
        found.append([out, given.grad, *(p.grad for p in layer.parameters())])
    for expected, value in zip(*found, strict=True):
        assert_within_rounding(value, expected, torch.float32, LAYER)
    assert len(faster) == 3 + cached  # of x, once more where it is recomputed, and for both gradients


def test_weights_that_are_not_trained_get_no_gradient(faster):
    plain, fast = pair()
    for layer in (plain, fast):
        layer.requires_grad_(False)
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    found = [torch.autograd.grad(layer(x.requires_grad_()).square().sum(), x)[0] for layer in (plain, fast)]
    assert_within_rounding(found[1], found[0], torch.float32, LAYER)
    fast.bias.requires_grad_(True)
    fast(x).sum().backward()
    assert fast.weight.grad is None
    assert torch.equal(fast.bias.grad, torch.full_like(fast.bias, 4.0))


def test_what_onednn_does_not_do_is_done_as_before(faster):
    plain, fast = pair()
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x), plain(x))
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(fast(x), plain(x))
    assert torch.equal(fast(x[0]), plain(x[0]))
    assert torch.equal(fast.double()(x.double()), plain.double()(x.double()))
    assert faster == []
