"""BERT's forward pass (Devlin et al. 2019, arXiv:1810.04805), for inference only.

Each layer updates the tokens' states x, in the order of the paper's code:

    q, k, v = x Wᵀ + b;  a = softmax(q kᵀ/√h) v;  x ← norm(x + a Wᵀ + b);  x ← norm(x + gelu(x Wᵀ + b) Wᵀ + b)

`Forward` holds the weights in one precision, packed for its matrix products. `Light` is a module that reads
a BERT from config.json and safetensors without transformers. Both compute the same function as transformers'
BertModel in eval mode.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn

from paradigms.encoder.packed import activated_linear
from paradigms.encoder.precision import product_precision
from paradigms.encoder.weights import Watch
from paradigms.io.checks import json_or_empty

TRANSFORMERS = "transformers.models.bert.modeling_bert"  # module of the class that `Forward` replaces
PROJECTIONS = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
PARTS = (*PROJECTIONS, "attention.output.dense", NORMS[0], "intermediate.dense", "output.dense", NORMS[1])
LEAVES = ("weight", "bias")
EMBEDDINGS = ("word", "position", "token_type")
# transformers' defaults for keys that a config.json may omit
DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "type_vocab_size": 2,
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")

Linear = Callable[[Tensor], Tensor]
Part = tuple[Tensor, Tensor]  # weight and bias


def weight_names(layers: int) -> list[str]:
    """Return the names of a BertModel's weights except the pooler's, in transformers' order."""
    names = [f"embeddings.{name}_embeddings.weight" for name in EMBEDDINGS]
    parts = (f"encoder.layer.{n}.{part}" for n in range(layers) for part in PARTS)
    modules = ["embeddings.LayerNorm", *parts]
    return names + [f"{module}.{leaf}" for module in modules for leaf in LEAVES]


def supported(config: Any) -> bool:
    fixed = ("hidden_act", "position_embedding_type", "is_decoder")
    same = all(getattr(config, name, DEFAULTS[name]) == DEFAULTS[name] for name in fixed)
    return same and config.hidden_size % config.num_attention_heads == 0


class Layer(NamedTuple):
    qkv: Linear
    out: Linear
    up: Linear  # gelu(x Wᵀ + b)
    down: Linear
    norms: list[Part]


class Forward:
    """The forward pass in one precision: "no" (the weights' dtype) or "bf16".

    weights: tensors keyed by the names from `weight_names`. With float64 weights, everything is computed in
    float64, regardless of the precision.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: Any, precision: str) -> None:
        dtype = weights["embeddings.word_embeddings.weight"].dtype
        half = precision == "bf16" and dtype == torch.float32
        self.dtype = torch.bfloat16 if half else dtype
        self.heads = config.num_attention_heads
        self.eps = config.layer_norm_eps
        self.tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in EMBEDDINGS]
        self.norm = weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]
        self.layers = [self._layer(weights, n) for n in range(config.num_hidden_layers)]

    def _layer(self, weights: Mapping[str, Tensor], n: int) -> Layer:
        def part(*names: str) -> Part:
            rows = [[weights[f"encoder.layer.{n}.{name}.{leaf}"] for name in names] for leaf in LEAVES]
            weight, bias = (row[0] if len(row) == 1 else torch.cat(row) for row in rows)
            return weight.detach().to(self.dtype), bias.detach().to(self.dtype)

        return Layer(
            activated_linear(*part(*PROJECTIONS)),
            activated_linear(*part("attention.output.dense")),
            activated_linear(*part("intermediate.dense"), gelu=True),
            activated_linear(*part("output.dense")),
            [part(name) for name in NORMS],
        )

    def __call__(
        self,
        input_ids: Int[Tensor, "x l"],
        attention_mask: Int[Tensor, "x l"],
        token_type_ids: Int[Tensor, "x l"] | None = None,
    ) -> Float[Tensor, "x l w"]:
        words, places, types = self.tables
        with torch.autocast(input_ids.device.type, enabled=False):
            kind = types[0] if token_type_ids is None else types[token_type_ids]
            x = nn.functional.embedding(input_ids, words) + (kind + places[: input_ids.shape[1]])
            x = self._normalised(x, self.norm).to(self.dtype).flatten(0, 1)
            return self._layers(x, attention_mask).view(*input_ids.shape, -1)

    def _layers(self, x: Float[Tensor, "n w"], attention: Int[Tensor, "x l"]) -> Float[Tensor, "n w"]:
        # Without padding, attention needs no mask, and its kernel is faster without one.
        mask = None if attention.all() else attention[:, None, None, :].bool()
        for layer in self.layers:
            q, k, v = layer.qkv(x).view(*attention.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            a = a.transpose(1, 2).reshape(len(x), -1)
            x = self._normalised(layer.out(a).add_(x), layer.norms[0])
            x = self._normalised(layer.down(layer.up(x)).add_(x), layer.norms[1])
        return x

    def _normalised(self, x: Tensor, norm: Part) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], *norm, self.eps)


def last_hidden(backbone: nn.Module, inputs: Mapping[str, Tensor]) -> Float[Tensor, "x l w"]:
    """Compute a backbone's first output, its last hidden states, in the current `product_precision`."""
    precision = product_precision(inputs["input_ids"].device)
    computed = None if precision == "fp16" else fast_forward(backbone, precision)
    if computed is not None:
        return computed(**inputs)
    return backbone(**inputs)[0]


class Passes:
    """A backbone's `Forward` passes, cached by precision, and the modules and weights that they copy."""

    def __init__(self, backbone: nn.Module) -> None:
        self.by_precision: dict[str, Forward | None] = {}
        self.members: list[tuple[Any, str, Any]] = [
            (table, name, value)
            for module in backbone.modules()
            for table in (module._parameters, module._modules)
            for name, value in table.items()
        ]
        self.weights = Watch(backbone.parameters())
        self.state = self.weights.state()

    def current(self) -> bool:
        """Return whether all modules and weights are unchanged; with MiniLM, this takes about 100 µs."""
        return (
            all(table.get(name) is value for table, name, value in self.members)
            and self.state == self.weights.state()
        )

    def add(self, backbone: Any, precision: str) -> None:
        named = dict(backbone.named_parameters())
        dtypes = {weight.dtype for weight in self.weights.tensors}
        usual = named.keys() == set(weight_names(backbone.config.num_hidden_layers))
        usual = usual and (dtypes == {torch.float32} or dtypes == {torch.float64})
        self.by_precision[precision] = Forward(named, backbone.config, precision) if usual else None


_passes: WeakKeyDictionary[nn.Module, Passes] = WeakKeyDictionary()


def fast_forward(backbone: nn.Module, precision: str) -> Forward | None:
    """Return a backbone's cached `Forward` in one precision; rebuild it if `Watch` sees a changed weight.

    Returns None except for a `Light`, or transformers' BertModel on a CPU in eval mode without gradients.
    """
    light = isinstance(backbone, Light)
    bert_model = type(backbone).__name__ == "BertModel" and type(backbone).__module__ == TRANSFORMERS
    if not (light or bert_model) or backbone.training or torch.is_grad_enabled():
        return None
    if not light and not (backbone.device.type == "cpu" and supported(backbone.config)):
        _passes.pop(backbone, None)  # it has the weights that were on the CPU
        return None
    passes = _passes.get(backbone)
    if passes is None or not passes.current():
        passes = Passes(backbone)
        _passes[backbone] = passes
    if precision not in passes.by_precision:
        passes.add(backbone, precision)
    return passes.by_precision[precision]


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
        file = folder / "model.safetensors"
        sizes = all(isinstance(config.get(name), int) for name in SIZES)
        if config.get("model_type") != "bert" or not sizes or not file.is_file():
            return None
        fields = SimpleNamespace(**DEFAULTS | config)
        if not supported(fields):
            return None
        weights = {name.removeprefix("bert."): t.float() for name, t in load_file(file).items()}
        names = weight_names(fields.num_hidden_layers)
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        rows = (fields.vocab_size, fields.max_position_embeddings, fields.type_vocab_size)
        tables = {name: (count, fields.hidden_size) for name, count in zip(names, rows, strict=False)}
        if not weights.keys() >= set(names) or not shapes.items() >= tables.items():
            return None
        return cls({name: weights[name] for name in names}, fields)

    def forward(self, **inputs: Tensor) -> tuple[Tensor]:
        """Compute the last hidden states in float32. Raises ValueError in training mode."""
        with torch.no_grad():
            computed = fast_forward(self, "no")
        if computed is None:
            raise ValueError("this model was opened to search: load it without for_search to train it")
        return (computed(**inputs),)

    def get_input_embeddings(self) -> nn.Module:
        return self.get_submodule("embeddings.word_embeddings")

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        raise ValueError("this model was opened to search: load it without for_search to save it")
