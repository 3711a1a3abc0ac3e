"""COIL as its authors' code saves it: an encoder, and its two projections in model.pt.

Gao et al. 2021. Their settings are in a pickle of objects (args.pt), which is not read: the model is taken to
be COIL-full as they trained and published it, with [SEP] left out and the lengths of MS MARCO.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from paradigms.coil import coil
from paradigms.formats.heads import Head
from paradigms.io.typed import Unreadable, naming
from paradigms.model import Paradigm

HEADS = "heads.safetensors"  # what model.pt becomes
NEEDED = {f"{name}.{part}" for name in ("tok_proj", "cls_proj") for part in ("weight", "bias")}
LENGTHS = {"query_length": 16, "document_length": 128}


def is_coil(folder: Path) -> bool:
    heads = (folder / "model.pt").is_file() or (folder / HEADS).is_file()
    return heads and (folder / "config.json").is_file()


def read_coil(folder: Path) -> Paradigm:
    """`Unreadable` where the projections are not those of COIL-full without layer normalisation."""
    with naming(folder / HEADS):
        found = {name: t.float() for name, t in load_file(folder / HEADS).items()}
    if found.keys() != NEEDED:
        raise Unreadable(f"{HEADS} or model.pt holds {sorted(found)}, where {sorted(NEEDED)} belong")
    tokens, pooled = (Head(found[f"{n}.weight"], found[f"{n}.bias"]) for n in ("tok_proj", "cls_proj"))
    width = len(pooled.weight)
    model: Any = coil(folder, pooled_dim=width, **LENGTHS, **tokens.settings())
    tokens.put_into(model.encoder.projection)
    pooled.put_into(model.encoder.pooled_projection)
    return model.with_alignment("positive_equal_ids")
