"""hidden = upper(lower(text)): cut a backbone in two, so that its frozen lower layers run once per text.

`frozen` stores the lower part's output, and the output of a whole untrained backbone, which paradigms share.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paradigms.core import at_least_float32
from paradigms.encoder.batches import Batch, evaluated
from paradigms.encoder.frozen import SCALE, LowerStates, open_states
from paradigms.encoder.layers import without_adapters


class SplitBackbone:
    """A backbone as upper(lower(text)), with `trained` upper layers; the lower layers are frozen.

    Frozen layers have neither gradients nor dropout. All parameters that the lower layers use are frozen,
    T5's shared position bias too. Raises ValueError if the cut changes the backbone's output.
    """

    def __init__(self, backbone: Any, trained: int, probe: Batch) -> None:
        self.backbone = backbone
        self.trained = trained
        self.store: LowerStates | None = None
        self.outputs: LowerStates | None = None  # of `hidden`, for an encoder that is not trained afterwards
        self.place, self.name, layers = _find_layers(backbone)
        if not 0 < trained <= len(layers):
            raise ValueError(
                f"trained_layers={trained}: the backbone has {len(layers)} layers; 0 trains all of them and "
                "the embeddings"
            )
        self._lower = len(layers) - trained
        self._upper = list(layers[len(layers) - trained :])
        self._source = _Source(layers[0], self._upper[0])
        parameters = dict(backbone.named_parameters())
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with evaluated(backbone), torch.enable_grad():
            states = self._run_lower(probe, leaves)
            gradients = torch.autograd.grad(states.sum(), list(leaves.values()), allow_unused=True)
        used = [name for name, g in zip(parameters, gradients, strict=True) if g is not None]
        self.frozen = [parameters[name] for name in used if parameters[name].requires_grad]
        self._names = frozenset(used)
        self._used = {name.removeprefix("base_model.model.").replace(".base_layer.", ".") for name in used}
        with evaluated(backbone), torch.no_grad():
            uncut = backbone(**probe.inputs())[0]
            cut = self.upper(self.lower(probe), probe)
        self.has_head = uncut.shape[-1] != states.shape[-1]  # the first output is a head's logits
        if not torch.allclose(uncut, cut, rtol=1e-3, atol=1e-3 * float(uncut.abs().max())):
            raise ValueError(f"the layers of {type(backbone).__name__} cannot be split: set trained_layers=0")
        for p in self.frozen:
            p.requires_grad_(False)

    def release(self) -> None:
        for p in self.frozen:
            p.requires_grad_(True)

    def hidden(self, batch: Batch) -> Float[Tensor, "x l v"]:
        """Compute the backbone's first output (hidden states or logits), or read it from `outputs`."""
        if self.outputs is None or batch.types is not None:
            return self.upper(self.lower(batch), batch)
        return self.outputs.find(batch, self.untrained, self.backbone.parameters())

    def untrained(self, batch: Batch) -> Float[Tensor, "x l v"]:
        """Compute `hidden` for `outputs`, without gradients and dropout."""
        with evaluated(self.backbone), torch.no_grad():
            batch = batch.to(self.backbone.device)
            return at_least_float32(self.upper(self.lower(batch), batch))

    def lower(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """Return the upper layers' input, rounded to float16, from the store if there is one."""
        if self.store is None or batch.types is not None:
            return self.compute(batch)
        return self.store.find(batch, self.compute, self._lower_weights())

    def compute(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """Compute the input of the upper layers, without rounding."""
        with evaluated(self.backbone), torch.no_grad():
            return at_least_float32(self._run_lower(batch.to(self.backbone.device)))

    def upper(self, states: Float[Tensor, "x l w"], batch: Batch) -> Float[Tensor, "x l v"]:
        """Compute the backbone's first output (last hidden states or logits) from `lower`'s output."""
        self._source.states = states
        # In each lower layer's place, because decoders choose a layer's attention by its number; the hook
        # replaces the embeddings if there is no lower layer.
        replacement = self._upper[0].register_forward_pre_hook(self._source.replace_input, with_kwargs=True)
        layers = self.place._modules[self.name]
        self.place._modules[self.name] = nn.ModuleList([self._source] * self._lower + self._upper)
        try:
            return self.backbone(**batch.inputs())[0]
        finally:
            self.place._modules[self.name] = layers
            replacement.remove()

    def keep_states(self, folder: Path, outputs: bool = False) -> LowerStates:
        """Read `lower`, or `hidden` if `outputs`, from `folder`, which `LowerStates.add` fills."""
        adapted = hasattr(self.backbone, "get_base_model")
        weights = without_adapters(self.backbone.get_base_model()) if adapted else self.backbone.state_dict()
        settings = f"{self.trained} {SCALE}"
        if outputs:
            current = self.backbone.parameters()
            self.outputs = open_states(folder, self.backbone, weights, current, settings, self.outputs)
            return self.outputs
        lower = {name: weights[name] for name in self._used & weights.keys()}
        self.store = open_states(folder, self.backbone, lower, self._lower_weights(), settings, self.store)
        return self.store

    def _lower_weights(self) -> Iterator[Tensor]:
        return (weight for name, weight in self.backbone.named_parameters() if name in self._names)

    def _run_lower(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Run the lower layers. parameters: replacements for the backbone's parameters, by name."""
        stop = self._upper[0].register_forward_pre_hook(_stop, with_kwargs=True)
        try:
            torch.func.functional_call(self.backbone, dict(parameters or {}), (), batch.inputs())
        except _Reached as reached:
            states: Tensor = reached.args[0]
            return states
        finally:
            stop.remove()
        raise ValueError(f"{type(self.backbone).__name__} does not call its layers: set trained_layers to 0")


def _find_layers(backbone: nn.Module) -> tuple[nn.Module, str, list[nn.Module]]:
    """Find the backbone's one list of layers: (parent module, name of the list in it, layers)."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    lists = [
        (module, name, list(child))
        for module in backbone.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList)
        and len(child)
        and all(isinstance(layer, GradientCheckpointingLayer) for layer in child)
    ]
    if len(lists) != 1:
        raise ValueError(
            f"{type(backbone).__name__} has {len(lists)} lists of layers, but trained_layers needs exactly "
            "one: set trained_layers to 0"
        )
    return lists[0]


class _Reached(Exception):
    """Stops a backbone before its first upper layer, with the layer's input."""


def _stop(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _Reached(args[0] if args else kwargs["hidden_states"])


class _Source(nn.Module):
    """Stand-in for a backbone's lower layers that returns `states` and, for T5, the position bias."""

    def __init__(self, bottom: nn.Module, following: nn.Module) -> None:
        super().__init__()
        self.attention_type = getattr(following, "attention_type", None)
        parts = getattr(bottom, "layer", None)
        attention = getattr(parts[0], "SelfAttention", None) if isinstance(parts, nn.ModuleList) else None
        self._bias = getattr(attention, "compute_bias", None)
        self.states = torch.empty(0)

    def replace_input(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (self.states, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self.states}

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        states = self.states
        if self._bias is None:
            return states
        return states, self._bias(states.shape[1], states.shape[1], device=states.device), None
