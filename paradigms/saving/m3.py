"""Read and write checkpoints in BGE-M3's layout: an encoder, colbert_linear.pt and sparse_linear.pt.

The two heads are pickled state dicts of linear layers. `load` reads them only if pickled=True, through
`torch.load` with weights_only.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from paradigms.bge_m3 import BgeM3, bge_m3
from paradigms.model import Paradigm
from paradigms.saving.export import write_sentence_transformers
from paradigms.saving.heads import POOLED, encoder_with, one_vector
from paradigms.saving.sentence_transformers import text_length

HEADS = {"colbert_linear": "token_projection", "sparse_linear": "term_projection"}  # file -> module here


def is_m3(folder: Path) -> bool:
    return all(any((folder / f"{name}.{end}").is_file() for end in ("pt", "safetensors")) for name in HEADS)


def read_m3(folder: Path) -> Paradigm:
    """Read BGE-M3. Raises ValueError if a head's shape is not BGE-M3's, such as fewer dimensions."""
    length = text_length({}, folder)
    model: Any = bge_m3(folder, pooling="cls", query_length=length, document_length=length)
    for name, head in HEADS.items():
        file, module = folder / f"{name}.safetensors", getattr(model.encoder, head)
        weights = {key: weight.float() for key, weight in load_file(file).items()}
        shapes, needed = (
            {key: list(t.shape) for key, t in w.items()} for w in (weights, module.state_dict())
        )
        if shapes != needed:
            raise ValueError(f"{name} holds {shapes}, where {needed} belong")
        module.load_state_dict(weights)
    return model


def write_m3(model: Any, folder: Path) -> None:
    """Write a model in BGE-M3's layout (one of `saved.SAVE_LAYOUTS`).

    sentence-transformers can open the folder for its dense vector. The layout does not store how the three
    parts are weighted in rel. Raises ValueError unless the model is a `bge_m3` with the pooling cls.
    """
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, BgeM3) or encoder.settings.pooling != "cls":
        raise ValueError(f"{model.name} is not BGE-M3 with the pooling cls, which this layout is for")
    with tempfile.TemporaryDirectory() as temporary:
        encoder.save(Path(temporary), merged=True)
        s = encoder.settings
        lengths: Any = {"query_length": s.query_length, "document_length": s.document_length}
        dense = one_vector(
            encoder_with(Path(temporary) / "backbone", None, **POOLED, **lengths, pooling="cls")
        )
    write_sentence_transformers(dense, folder)
    for name, head in HEADS.items():
        module: nn.Linear = getattr(encoder, head)
        torch.save({key: weight.cpu() for key, weight in module.state_dict().items()}, folder / f"{name}.pt")
