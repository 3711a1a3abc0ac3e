"""Merge the linear maps W x + b after an encoder into the single projection of a paradigm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paradigms.align import AllPairs, QueryToDocument
from paradigms.encoder.backbone import positions
from paradigms.encoder.settings import LONGEST
from paradigms.encoder.text import EncoderSettings, TextEncoder
from paradigms.io.checks import read_json
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.saving.weights import read_weights

ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
}

POOLED = {"query_vectors": "pooled", "document_vectors": "pooled"}


@dataclass
class Head:
    """The map x ↦ activation(weight · x + bias)."""

    weight: Tensor
    bias: Tensor | None
    activation: str = "identity"

    def then(self, other: "Head") -> "Head":
        """Compose the maps: this one, then the other. Raises ValueError if an activation lies between."""
        if self.activation != "identity":
            raise ValueError(
                f"linear layers with {self.activation} between them do not merge into one projection"
            )
        bias = None if self.bias is None else other.weight @ self.bias
        if other.bias is not None:
            bias = other.bias if bias is None else bias + other.bias
        return Head(other.weight @ self.weight, bias, other.activation)

    def settings(self) -> dict[str, Any]:
        """The fields of `EncoderSettings` for this projection."""
        return {
            "dim": len(self.weight),
            "projection_bias": self.bias is not None,
            "activation": self.activation,
        }

    def put_into(self, projection: nn.Linear | None) -> None:
        assert projection is not None
        with torch.no_grad():
            projection.weight.copy_(self.weight)
            if self.bias is not None:
                projection.bias.copy_(self.bias)


def encoder_with(folder: Path, head: Head | None, **settings: Any) -> TextEncoder:
    """Load the backbone in a folder, with a head; without a head, vectors have the backbone's width."""
    more = {"dim": None} if head is None else head.settings()
    encoder = TextEncoder(folder, EncoderSettings(**settings | more))
    if head is not None:
        head.put_into(encoder.projection)
    return encoder


def lengths(folder: Path, query: int, document: int) -> dict[str, Any]:
    """Return the settings of both lengths, in tokens, limited to the positions of a folder's encoder."""
    limit = positions(folder) or LONGEST
    return {"query_length": min(query, limit), "document_length": min(document, limit)}


def dense(folder: Path) -> Head:
    """Read a Dense module of sentence-transformers or PyLate: linear, activation, and perhaps a residual."""
    config = read_json(folder / "config.json")
    activation = ACTIVATIONS.get(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation is None:
        raise ValueError(f"{folder.name} has the activation {config['activation_function']}")
    weights = read_weights(folder, "linear.weight", "linear.bias", "residual.weight")
    if "linear.weight" not in weights or (config.get("bias", True) and "linear.bias" not in weights):
        raise ValueError(f"{folder.name} lacks the weights of its linear layer")
    weight = weights["linear.weight"]
    if config.get("use_residual"):
        if activation != "identity":
            raise ValueError(
                f"{folder.name} has a residual and {activation}, which do not merge into one projection"
            )
        weight = weight + weights.get("residual.weight", torch.eye(len(weight)))
    return Head(weight, weights.get("linear.bias"), activation)


def late_interaction(encoder: TextEncoder, *, mean: bool = False) -> Paradigm:
    """Make a ColBERT model: rel is the sum (or mean) over query tokens of their best similarities."""
    normalise, temperature = ("query_tokens", 0.02) if mean else ("one", 1.0)
    return Paradigm(Recipe("colbert", QueryToDocument(), normalise, temperature=temperature), encoder)


def one_vector(encoder: TextEncoder) -> Paradigm:
    """Make a DPR from the encoder: rel is the cosine or inner product of two vectors."""
    temperature = 0.05 if encoder.settings.normalize else 1.0
    return Paradigm(Recipe("dpr", AllPairs(), "one", temperature=temperature), encoder)
