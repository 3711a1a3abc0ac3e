"""XTR as it was published (xtr-base-en): the encoder of a T5 and a linear layer in 2_Dense (Lee et al. 2023).

Nothing in such a folder says that its vectors are those of tokens. Without modules.json nothing else has a
2_Dense; with it, a model of one vector a text may look the same.
"""

from pathlib import Path
from typing import Any

from paradigms.encoder.published import MODEL
from paradigms.formats.heads import ACTIVATIONS, dense
from paradigms.formats.sentence_transformers import is_sentence_transformers
from paradigms.io.typed import json_or_empty
from paradigms.model import Paradigm
from paradigms.xtr import xtr

DENSE = "2_Dense"
DIM = 128  # of the published models; those of one vector a text over a T5 have 768
LENGTHS: dict[str, Any] = {"query_length": 64, "document_length": 512}


def is_xtr(folder: Path) -> bool:
    return t5_with_dense(folder) and not is_sentence_transformers(folder)


def may_be_xtr(folder: Path) -> bool:
    """Whether modules.json, without a type of model, stands beside an encoder and a layer such as XTR's."""
    if not (t5_with_dense(folder) and is_sentence_transformers(folder)):
        return False
    if json_or_empty(folder / MODEL).get("model_type"):
        return False
    head = json_or_empty(folder / DENSE / "config.json")
    linear = ACTIVATIONS.get(head.get("activation_function", "")) == "identity" and not head.get("bias", True)
    return linear and head.get("out_features") == DIM


def t5_with_dense(folder: Path) -> bool:
    model_type = json_or_empty(folder / "config.json").get("model_type")
    return (folder / DENSE).is_dir() and model_type in ("t5", "mt5")


def read_xtr(folder: Path) -> Paradigm:
    """`Unreadable` where the linear layer is missing."""
    head = dense(folder / DENSE)
    model: Any = xtr(folder, **LENGTHS, **head.settings())
    head.put_into(model.encoder.projection)
    return model
