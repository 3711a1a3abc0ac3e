"""Write a paradigm with its backbone as an ONNX file, in float32 or with 8-bit products (extra `onnx`).

backbone/model.onnx maps input_ids and attention_mask to last_hidden_state, for texts of any number
and length. `load` opens the folder; any program that reads ONNX opens the file.
"""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from paradigms.encoder.backbone import load_backbone, most_positions, quiet
from paradigms.encoder.exported import INPUTS, OUTPUT, session
from paradigms.encoder.text import TextEncoder, encoder_class
from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.model import Paradigm
from paradigms.saved import ONNX

EXAMPLE = (2, 7)  # texts and tokens of the traced call
CHECKED = ((1, 3), (3, 40), (5, 19))  # other shapes, in which the file has to give the same states
ROUNDING = 1e-3  # of the largest state, for float32 beside float64
EIGHT_BITS = 0.5  # norm of the difference beside that of the states: a sign of a file that is wrong


class States(nn.Module):
    """A backbone's last hidden states, as a function of tensors alone."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, ids: Int[Tensor, "x l"], attention: Int[Tensor, "x l"]) -> Float[Tensor, "x l w"]:
        return self.backbone(input_ids=ids, attention_mask=attention)[0]


def write_onnx(model: Any, folder: Path, *, bits: int = 32) -> None:
    """Write a model into an empty folder, with every backbone as an ONNX file (one of `saved.SAVE_LAYOUTS`).

    bits: 32, or 8 for products of 8-bit weights with activations that are quantised as they come. Raises
    ValueError if the model has no text encoder that reads last hidden states, or if ONNX Runtime computes
    other states than the backbone in float64.
    """
    if not isinstance(model, Paradigm):
        raise ValueError(f"{model.name} is not an encoder of single texts, which the layout onnx needs")
    model.write(folder, merged=True)
    for place in sorted(folder.rglob("encoder.json")):
        kind = encoder_class(read_json(place)["encoder"])
        if kind._load_backbone is not TextEncoder._load_backbone:
            raise ValueError(f"{model.name} reads another output of its backbone than the last hidden states")
        _replace(place.parent / "backbone", bits)


def _replace(folder: Path, bits: int) -> None:
    """Replace the weights in a backbone's folder by an ONNX file."""
    backbone = load_backbone(folder).eval()
    # As `TextEncoder` reads them: T5 calls a width d_model, and RoBERTa counts rows for padding as positions.
    sizes = {name: getattr(backbone.config, name) for name in ("hidden_size", "vocab_size")}
    if (limit := most_positions(backbone)) is not None:
        sizes["max_position_embeddings"] = limit
    write_json(folder / "config.json", read_json(folder / "config.json") | sizes)
    for file in folder.glob("model*.safetensors*"):
        file.unlink()
    _export(backbone, folder / ONNX)
    double = deepcopy(backbone).double()
    _check(double, folder / ONNX, bits=32)
    if bits == 8:
        _quantise(folder / ONNX)
        _check(double, folder / ONNX, bits=8)


def _export(backbone: Any, file: Path) -> None:
    axes = {name: {0: "texts", 1: "tokens"} for name in (*INPUTS, OUTPUT)}
    example = next(_rows(backbone.config.vocab_size, EXAMPLE))
    with warnings.catch_warnings(), quiet(), torch.no_grad():
        warnings.simplefilter("ignore")  # about the tracing exporter, which needs no package but onnx
        torch.onnx.export(
            States(backbone).eval(),
            example,
            str(file),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes=axes,
            dynamo=False,
        )


def _quantise(file: Path) -> None:
    """Replace the weights of products by 8-bit weights, with one scale per output."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # quantize_dynamic advises another step, on the root logger
    try:
        with tempfile.TemporaryDirectory(dir=file.parent) as temporary:
            small = Path(temporary) / ONNX
            quantize_dynamic(file, small, weight_type=QuantType.QInt8, per_channel=True)
            small.replace(file)
    finally:
        logging.disable(logging.NOTSET)


def _check(backbone: Any, file: Path, *, bits: int) -> None:
    """Raise ValueError unless the file gives the states of a float64 backbone, up to its rounding."""
    run = session(file)
    for ids, attention in _rows(backbone.config.vocab_size, *CHECKED):
        with torch.no_grad():
            expected = backbone(input_ids=ids, attention_mask=attention)[0]
        inputs = dict(zip(INPUTS, (ids.numpy(), attention.numpy()), strict=True))
        difference = (torch.from_numpy(run.run([OUTPUT], inputs)[0]) - expected) * attention[..., None]
        same = difference.abs().max() <= ROUNDING * expected.abs().max()
        if not (same if bits == 32 else difference.norm() <= EIGHT_BITS * expected.norm()):
            raise ValueError(
                f"{type(backbone).__name__} as an ONNX file of {bits} bits differs from its float64 states "
                f"by {float(difference.abs().max()):.3g} of at most {float(expected.abs().max()):.3g}"
            )


def _rows(vocabulary: int, *shapes: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw ids and attention masks [x, l], with padding after half of the last text."""
    generator = torch.Generator().manual_seed(0)
    for texts, length in shapes:
        ids = torch.randint(vocabulary, (texts, length), generator=generator)
        attention = torch.ones_like(ids)
        attention[-1, 1 + length // 2 :] = 0
        yield ids, attention
