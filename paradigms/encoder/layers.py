"""Layers beside a pretrained backbone: low-rank adapters, projections and salience heads."""

import copy
from typing import Any

import regex  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

PATIENCE = 0.2  # seconds allowed to match a regular expression with one name


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
