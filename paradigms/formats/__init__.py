"""Checkpoints that other libraries wrote, as paradigms of equal scores.

Each format recognises a folder by its files and reads it, whole or not at all: a part that no paradigm here
has is named, never left out. Weights are safetensors; pickled ones are read when the caller asks for it by
name, by `torch.load` with weights_only, which runs no code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paradigms.formats.coil import is_coil, read_coil
from paradigms.formats.dpr import is_dpr, read_dpr
from paradigms.formats.files import Unreadable, described, safe_weights
from paradigms.formats.plain import is_plain, read_plain
from paradigms.formats.sentence_transformers import is_sentence_transformers, read_sentence_transformers
from paradigms.formats.stanford import is_stanford, read_stanford
from paradigms.formats.xtr import is_xtr, read_xtr
from paradigms.model import Paradigm

# Format -> whether a folder has it, and its reader. The first that recognises a folder reads it.
FORMATS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Paradigm]]] = {
    "XTR (2_Dense, and xtr in the name)": (is_xtr, read_xtr),
    "sentence-transformers or PyLate (modules.json)": (is_sentence_transformers, read_sentence_transformers),
    "Stanford ColBERT (artifact.metadata, or HF_ColBERT in config.json)": (is_stanford, read_stanford),
    "DPR (model_type dpr)": (is_dpr, read_dpr),
    "COIL (model.pt)": (is_coil, read_coil),
    "a plain encoder (config.json)": (is_plain, read_plain),
}


def read_checkpoint(folder: Path, *, pickled: bool = False) -> Paradigm:
    """The paradigm in a folder of any of `FORMATS`.

    ValueError says what was found and what is missing, or cannot be had.
    """
    for name, (recognised, read) in FORMATS.items():
        if recognised(folder):
            with safe_weights(folder, pickled) as safe:
                try:
                    return read(safe)
                except Unreadable as error:
                    raise ValueError(f"{folder}, in the format of {name}: {error}") from error
    raise ValueError(f"{folder} is no checkpoint of {'; '.join(FORMATS)}: it holds {described(folder)}")
