"""XTR as it was published (xtr-base-en): the encoder of a T5 and a linear layer in 2_Dense.

Lee et al. 2023. The folder has the form of a single-vector model, with or without modules.json, and says
nowhere that its vectors are those of tokens: it is known by "xtr" in its name, on the hub or on the disk.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paradigms.formats.files import read_json
from paradigms.formats.heads import dense
from paradigms.model import Paradigm
from paradigms.xtr import xtr

DENSE = "2_Dense"
NAMED = 3  # last parts of a path, one of which has the name: the hub's cache has NAME/snapshots/REVISION
LENGTHS: dict[str, Any] = {"query_length": 64, "document_length": 512}


def is_xtr(folder: Path) -> bool:
    named = any(re.search(r"(?<![a-z])m?xtr(?![a-z])", part.lower()) for part in folder.parts[-NAMED:])
    if not (named and (folder / DENSE).is_dir() and (folder / "config.json").is_file()):
        return False
    return read_json(folder / "config.json").get("model_type") in ("t5", "mt5")


def read_xtr(folder: Path) -> Paradigm:
    """`Unreadable` where the linear layer is missing."""
    head = dense(folder / DENSE)
    model: Any = xtr(folder, **LENGTHS, **head.settings())
    head.put_into(model.encoder.projection)
    return model
