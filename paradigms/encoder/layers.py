"""Layers beside a pretrained backbone: low-rank adapters, projections, salience heads and pooling."""

import copy
from typing import Any

import regex  # type: ignore[import-untyped]
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from paradigms.core import Tokens, at_least_float32

PATIENCE = 0.2  # seconds allowed to match a regular expression with one name
CELLS = 8  # cells per vector in the grid of `LearnedPooling`


def orthogonal(width: int, dim: int, bias: bool = False) -> nn.Linear:
    """Make a linear layer whose weight [dim, width] has orthonormal rows, or columns if dim > width.

    Unlike `nn.init.orthogonal_`, this function computes in float64, so a seed gives the same bits with any
    number of threads.
    """
    linear = nn.Linear(width, dim, bias)
    with torch.no_grad():
        weights = linear.weight.normal_().double()
        Q, R = torch.linalg.qr(weights.T if dim < width else weights)
        Q *= R.diagonal().sign()
        linear.weight.copy_(Q.T if dim < width else Q)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def salience_head(width: int) -> nn.Linear:
    # Equal scores give every token the same salience: training starts from the unweighted alignment, not
    # from a random choice of tokens. A bias of 0 would leave the ReLU dead.
    linear = nn.Linear(width, 1)
    nn.init.zeros_(linear.weight)
    nn.init.ones_(linear.bias)
    return linear


def add_adapters(backbone: Any, rank: int, targets: str = "all-linear", *, dora: bool = False) -> Any:
    """Replace W x by W x + 2 B A x and train only B and A, of rank `rank`: LoRA with α = 2·rank.

    Hu et al. 2022 (arXiv:2106.09685), §4.1; dora: Liu et al. 2024 (arXiv:2402.09353). targets: "all-linear"
    or a regular expression that matches full names of linear layers.
    """
    from peft import LoraConfig, get_peft_model

    layers = targets if targets == "all-linear" else _matched(backbone, targets)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers, use_dora=dora)
    return get_peft_model(backbone, config)


def _matched(backbone: Any, targets: str) -> list[str]:
    names = {name: module for name, module in backbone.named_modules() if name}
    try:
        form = regex.compile(targets)
        matches = [name for name in names if form.fullmatch(name, timeout=PATIENCE)]
    except regex.error as error:
        raise ValueError(f"lora_targets={targets!r} is not a regular expression: {error}") from error
    except TimeoutError:
        raise ValueError(f"lora_targets={targets!r} takes too long to match") from None
    if not matches:
        raise ValueError(f"lora_targets={targets!r} matches no module: the last one is {list(names)[-1]}")
    for name in matches:
        if not isinstance(names[name], nn.Linear):
            raise ValueError(f"lora_targets={targets!r} matches {name}, which is not a linear layer")
    return matches


def without_adapters(module: nn.Module, *, merged: bool = True) -> dict[str, Tensor]:
    """Return a module's weights, with the same names and order as in a module without adapters.

    merged: add the adapter's product to W; otherwise, return W alone. Each layer is merged in a copy on the
    CPU, so the module does not change and the same adapters always give the same bits.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    state = module.state_dict().items()
    weights = {name.replace(".base_layer.", "."): t for name, t in state if ".lora_" not in name}
    for name, part in module.named_modules():
        if merged and isinstance(part, BaseTunerLayer):
            layer: Any = copy.deepcopy(part)
            kind = torch.promote_types(layer.get_base_layer().weight.dtype, torch.float32)
            layer.cpu().to(kind).merge()
            weights[f"{name}.weight"] = layer.get_base_layer().weight.detach()
    return weights


def pool(
    hidden: Float[Tensor, "x l w"], attention: Int[Tensor, "x l"], pooling: str
) -> Float[Tensor, "x 1 w"]:
    """Pool all attended tokens into one vector. pooling: cls, last, max or mean."""
    if pooling == "cls":
        return hidden[:, :1]
    if pooling == "last":
        return hidden[torch.arange(len(hidden)), attention.sum(-1) - 1][:, None]
    if pooling == "max":
        padding = (attention == 0) & attention.any(-1, keepdim=True)  # a text without tokens stays finite
        return hidden.masked_fill(padding[..., None], -torch.inf).amax(1, keepdim=True)
    weight = attention[..., None].float()  # half precision would lose a mean over many tokens
    return (hidden * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)


def spans(counts: Bool[Tensor, "x l"], m: int) -> Int[Tensor, "x l"]:
    """Return the span of each token: ⌊(r + ½) · k/n⌋ for the r-th of n counted tokens, with k = min(m, n).

    The k spans follow the order of the text and differ in length by at most one token. Tokens that do not
    count have span −1.

    >>> spans(torch.tensor([[True, True, False, True, True, True]]), 2)
    tensor([[ 0,  0, -1,  1,  1,  1]])
    """
    return _places(counts, counts.sum(-1, keepdim=True).clamp(max=m)).where(counts, -1)


def _places(counts: Bool[Tensor, "x l"], k: Int[Tensor, "x 1"] | int) -> Int[Tensor, "x l"]:
    """Compute ⌊(r + ½) · k/n⌋ for the r-th of n tokens that count."""
    rank = counts.cumsum(-1) - 1
    n = counts.sum(-1, keepdim=True)
    return (2 * rank + 1).clamp(min=1) * k // (2 * n).clamp(min=1)


def mean_of_spans(
    hidden: Float[Tensor, "x l w"], counts: Bool[Tensor, "x l"], m: int
) -> tuple[Float[Tensor, "x k w"], Bool[Tensor, "x k"]]:
    """Average each span's tokens; return the vectors and their mask. A text of n < m tokens has n vectors."""
    inside = spans(counts, m)[:, None] == torch.arange(min(m, counts.shape[1]), device=counts.device)[:, None]
    return _sum(hidden, inside) / inside.sum(-1, keepdim=True).clamp(min=1), inside.any(-1)


class LearnedPooling(nn.Module):
    """v_c = m/n · Σ_r W_{c, g(r)} h_r for c < m, where token r of n has place g(r) = ⌊(r + ½) · G/n⌋.

    ConstBERT (MacAvaney et al. 2025, arXiv:2504.01818) maps a document's tokens to a fixed number of vectors
    with a linear layer. Its weights belong to absolute positions in texts padded to one length. Here, W has G
    = 8 m places, and a text of any length is spread over the places. W is initialised to the 0/1 weights of
    `spans`. Texts of at most m tokens keep their token states, as with spans.
    """

    def __init__(self, m: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(m).repeat_interleave(CELLS, 1))

    def forward(
        self, hidden: Float[Tensor, "x l w"], counts: Bool[Tensor, "x l"]
    ) -> tuple[Float[Tensor, "x k w"], Bool[Tensor, "x k"]]:
        m, cells = self.weight.shape
        n = counts.sum(-1, keepdim=True)
        k = min(m, counts.shape[1])
        places = _places(counts, cells).clamp(max=cells - 1)
        weights = nn.functional.embedding(places, self.weight.T).mT  # [x, m, l]
        weights = weights.where(counts[:, None], 0)[:, :k]
        inside = spans(counts, m)[:, None] == torch.arange(k, device=counts.device)[:, None]
        weights = torch.where((n > m)[..., None], weights, inside.to(weights.dtype))
        return _sum(hidden, weights) * m / n.clamp(min=m)[..., None], inside.any(-1)


def as_terms(weights: Float[Tensor, "x v"]) -> Tokens:
    """Convert term weights ≥ 0 to tokens [1, x, l, 1] with ids; keep weights above 0, in id order."""
    used = ~(weights <= 0)  # NaN stays, so that a diverged model does not look like an empty text
    row, id = used.nonzero(as_tuple=True)
    at = row, used.cumsum(-1)[row, id] - 1
    shape = len(weights), max(1, int(used.sum(-1).max())) if len(weights) else 1
    vectors = weights.new_zeros(shape).index_put(at, weights[row, id])
    ids = id.new_zeros(shape).index_put(at, id)
    return Tokens(vectors[None, ..., None], ~(vectors <= 0)[None], ids[None])


def _sum(hidden: Float[Tensor, "x l w"], weights: Shaped[Tensor, "x k l"]) -> Float[Tensor, "x k w"]:
    with torch.autocast(hidden.device.type, enabled=False):  # as in `pool`
        hidden = at_least_float32(hidden)
        return weights.to(hidden.dtype) @ hidden
