"""The forward pass of BERT (Devlin et al. 2019, arXiv:1810.04805), for inference only.

Each layer updates the tokens' states x, in the order of the paper's code:

    q, k, v = x Wᵀ + b;  a = softmax(q kᵀ/√h) v;  x ← norm(x + a Wᵀ + b);  x ← norm(x + gelu(x Wᵀ + b) Wᵀ + b)

`Forward` holds the weights in one precision, packed for its matrix products. `Light` is a module that reads
a BERT from config.json and safetensors without transformers. Both equal transformers' BertModel in eval mode.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn

from paradigms.encoder import int8
from paradigms.encoder.precision import product_precision
from paradigms.io.checks import json_or_empty

TRANSFORMERS = "transformers.models.bert.modeling_bert"  # module of the class that `Forward` stands for
PARTS = {  # parts of a layer, and whether they are layer norms
    "attention.self.query": False,
    "attention.self.key": False,
    "attention.self.value": False,
    "attention.output.dense": False,
    "attention.output.LayerNorm": True,
    "intermediate.dense": False,
    "output.dense": False,
    "output.LayerNorm": True,
}
EMBEDDINGS = ("word", "position", "token_type")
# transformers' defaults for what a config.json may leave out
DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "type_vocab_size": 2,
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")

ROWS = 256  # tokens whose widest states, with their bytes, stay in a core's cache

Linear = Callable[[Tensor], Tensor]


def weight_names(layers: int) -> list[str]:
    """Names of a BertModel's weights without the pooler's, in transformers' order."""
    names = [f"embeddings.{name}_embeddings.weight" for name in EMBEDDINGS]
    parts = (f"encoder.layer.{n}.{part}" for n in range(layers) for part in PARTS)
    modules = ["embeddings.LayerNorm", *parts]
    return names + [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]


def supported(config: Any) -> bool:
    """Whether `Forward` can compute the model that a BERT config describes."""
    fixed = ("hidden_act", "position_embedding_type", "is_decoder")
    same = all(getattr(config, name, DEFAULTS[name]) == DEFAULTS[name] for name in fixed)
    return same and config.hidden_size % config.num_attention_heads == 0


class Layer(NamedTuple):
    """A layer's linear functions, and the weights and biases of its norms."""

    qkv: Linear
    out: Linear
    feed: Linear  # W gelu(x Wᵀ + b)ᵀ + b
    norms: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


class Forward:
    """The forward pass in one precision: "no" (the weights' dtype), "bf16" or "int8".

    weights: tensors by the names in `weight_names`. float64 weights are computed in float64 under any
    precision.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: Any, precision: str) -> None:
        own = weights["embeddings.word_embeddings.weight"].dtype
        precision = precision if own == torch.float32 else "no"
        self.dtype = torch.bfloat16 if precision == "bf16" else own
        self.heads, self.eps = config.num_attention_heads, config.layer_norm_eps
        self.tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in EMBEDDINGS]
        self.norm = weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]
        make = {"no": _dense, "bf16": _packed, "int8": _quantised}[precision]
        self.layers = []
        for n in range(config.num_hidden_layers):
            part: dict[str, tuple[Tensor, Tensor]] = {}
            for name in PARTS:
                leaves = (weights[f"encoder.layer.{n}.{name}.{leaf}"] for leaf in ("weight", "bias"))
                weight, bias = (leaf.detach() for leaf in leaves)
                part[name] = weight, bias
            projections = (part[f"attention.self.{name}"] for name in ("query", "key", "value"))
            weight, bias = (torch.cat(each) for each in zip(*projections, strict=True))
            norms = [part[name] for name in ("attention.output.LayerNorm", "output.LayerNorm")]
            self.layers.append(
                Layer(
                    make(weight, bias, False),
                    make(*part["attention.output.dense"], False),
                    _chained(
                        make(*part["intermediate.dense"], True),
                        make(*part["output.dense"], False),
                        ROWS if precision == "int8" else None,
                    ),
                    tuple(tuple(t.to(self.dtype) for t in norm) for norm in norms),  # type: ignore[arg-type]
                )
            )

    def __call__(
        self,
        input_ids: Int[Tensor, "x l"],
        attention_mask: Int[Tensor, "x l"],
        token_type_ids: Int[Tensor, "x l"] | None = None,
    ) -> Float[Tensor, "x l w"]:
        words, places, types = self.tables
        device = input_ids.device.type
        with torch.autocast(device, enabled=False):
            kind = types[0] if token_type_ids is None else types[token_type_ids]
            x = nn.functional.embedding(input_ids, words) + (kind + places[: input_ids.shape[1]])
            x = self._normalised(x, self.norm).to(self.dtype).flatten(0, 1)
            # Without padding, attention needs no mask, and its kernel is faster without one.
            mask = None if attention_mask.all() else attention_mask[:, None, None, :].bool()
            for layer in self.layers:
                q, k, v = layer.qkv(x).view(*input_ids.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
                a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                a = a.transpose(1, 2).reshape(len(x), -1)
                x = self._normalised(layer.out(a).add_(x), layer.norms[0])
                x = self._normalised(layer.feed(x).add_(x), layer.norms[1])
            return x.view(*input_ids.shape, -1)

    def _normalised(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], *norm, self.eps)


def _chained(up: Linear, down: Linear, rows: int | None) -> Linear:
    """down(up(x)), computed for `rows` rows at a time."""

    def apply(x: Tensor) -> Tensor:
        parts = (x,) if rows is None else x.split(rows)
        found = [down(up(part)) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)

    return apply


def _dense(weight: Tensor, bias: Tensor, activated: bool) -> Linear:
    def apply(x: Tensor) -> Tensor:
        found = nn.functional.linear(x, weight, bias)
        return nn.functional.gelu(found) if activated else found

    return apply


def _packed(weight: Tensor, bias: Tensor, activated: bool) -> Linear:
    """A linear layer in bfloat16; on CPUs oneDNN reorders the weight once and fuses the activation."""
    weight, bias = weight.bfloat16(), bias.bfloat16()
    if weight.device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return _dense(weight, bias, activated)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    ends: tuple[str, list[Any], str] = ("gelu", [], "none") if activated else ("none", [], "")
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, *ends)


def _quantised(weight: Tensor, bias: Tensor, activated: bool) -> Linear:
    packed = int8.quantised(weight)

    def apply(x: Tensor) -> Tensor:
        found = int8.product(x, packed, bias)
        return nn.functional.gelu(found) if activated else found

    return apply


def last_hidden(backbone: nn.Module, inputs: Mapping[str, Tensor]) -> Float[Tensor, "x l w"]:
    """Compute a backbone's first output, its last hidden states, in the surrounding precision."""
    precision = product_precision(inputs["input_ids"].device)
    computed = None if precision == "fp16" else fast_forward(backbone, precision)
    if computed is not None:
        return computed(**inputs)
    with int8.W8A8() if precision == "int8" else nullcontext():
        return backbone(**inputs)[0]


class Kept:
    """A backbone's cached `Forward` passes by precision, with the modules and weights that they copy."""

    def __init__(self, backbone: nn.Module) -> None:
        self.passes: dict[str, Forward | None] = {}
        modules = list(backbone.modules())
        self.places: list[tuple[Any, str, Any]] = [
            (held, name, value)
            for module in modules
            for held in (module._parameters, module._modules)
            for name, value in held.items()
        ]
        self.weights = list(backbone.parameters())
        self.state = self._state()

    def current(self) -> bool:
        """Whether all modules and weights are still the same and unchanged; the check takes about 50 µs."""
        return (
            all(held.get(name) is value for held, name, value in self.places) and self.state == self._state()
        )

    def _state(self) -> list[tuple[int, int]]:
        return [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in self.weights]

    def add(self, backbone: Any, precision: str) -> None:
        named = dict(backbone.named_parameters())
        dtypes = {weight.dtype for weight in self.weights}
        usual = named.keys() == set(weight_names(backbone.config.num_hidden_layers))
        usual = usual and (dtypes == {torch.float32} or dtypes == {torch.float64})
        self.passes[precision] = Forward(named, backbone.config, precision) if usual else None


_kept: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()


def fast_forward(backbone: nn.Module, precision: str) -> Forward | None:
    """Return a backbone's cached `Forward` in one precision, rebuilt after a weight has changed.

    Returns None unless the backbone is a `Light`, or transformers' BertModel on a CPU, in eval mode and
    without gradients.
    """
    light = isinstance(backbone, Light)
    theirs = type(backbone).__name__ == "BertModel" and type(backbone).__module__ == TRANSFORMERS
    if not (light or theirs) or backbone.training or torch.is_grad_enabled():
        return None
    known = _kept.get(backbone)
    if known is None or not known.current():
        known = _kept[backbone] = Kept(backbone)
    if not light and not (known.weights[0].device.type == "cpu" and supported(backbone.config)):
        return None
    if precision not in known.passes:
        known.add(backbone, precision)
    return known.passes[precision]


class Light(nn.Module):
    """A BERT for inference only; its weights have the same names as in transformers' BertModel.

    config: the fields of config.json.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: Any) -> None:
        super().__init__()
        self.config = config
        for name, weight in weights.items():
            *path, leaf = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(leaf, nn.Parameter(weight, requires_grad=False))
        self.eval()

    @classmethod
    def read(cls, folder: Path) -> "Light | None":
        """Read the BERT in a folder, in float32; return None if only transformers can read it."""
        config = json_or_empty(folder / "config.json")
        files = [folder / "model.safetensors"]
        sizes = all(isinstance(config.get(name), int) for name in SIZES)
        if config.get("model_type") != "bert" or not sizes or not files[0].is_file():
            return None
        fields = SimpleNamespace(**DEFAULTS | config)
        if not supported(fields):
            return None
        found = {name.removeprefix("bert."): t.float() for name, t in load_file(files[0]).items()}
        wanted = weight_names(fields.num_hidden_layers)
        if not found.keys() >= set(wanted) or not _fit(found, fields):
            return None
        return cls({name: found[name] for name in wanted}, fields)

    def forward(self, **inputs: Tensor) -> tuple[Tensor]:
        """Compute the last hidden states in float32. Raises ValueError in training mode."""
        with torch.no_grad():
            computed = fast_forward(self, "no")
        if computed is None:
            raise ValueError("this model was opened to search: load it without for_search to train it")
        return (computed(**inputs),)

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        raise ValueError("this model was opened to search: load it without for_search to save it")


def _fit(weights: Mapping[str, Tensor], config: Any) -> bool:
    """Whether the embeddings have the config's sizes, and every layer has the config's width."""
    width = config.hidden_size
    sizes = (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
    tables = zip(EMBEDDINGS, sizes, strict=True)
    return all(weights[f"embeddings.{n}_embeddings.weight"].shape == (s, width) for n, s in tables)
