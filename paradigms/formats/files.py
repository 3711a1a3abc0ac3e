"""The files of a foreign checkpoint: JSON, and weights that are safetensors or made so."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

# Pickled weights, and what they are called as safetensors. COIL keeps its heads in model.pt.
PICKLES = {"pytorch_model*.bin": "model.safetensors", "model.pt": "heads.safetensors"}
MANY = 12  # files that an error names


class Unreadable(ValueError):
    """What in a checkpoint keeps it from being read."""


def described(folder: Path) -> str:
    """The names of a folder's files, for an error."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more if names else "nothing"


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. ValueError names the file where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{file.name} is missing") from error
    except ValueError as error:
        raise Unreadable(f"{file.name}: bad JSON ({error})") from error
    if not isinstance(found, dict):
        raise Unreadable(f"{file.name}: a {type(found).__name__} where an object belongs")
    return found


def json_or_empty(file: Path) -> dict[str, Any]:
    """As `read_json`, of a file that need not be there."""
    return read_json(file) if file.is_file() else {}


def read_weights(folder: Path, *names: str) -> dict[str, Tensor]:
    """Those of these tensors that are in a folder's safetensors files, in float32."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: t.float() for name, t in load_file(file).items() if name in names}
    return found


@contextmanager
def safe_weights(folder: Path, pickled: bool) -> Iterator[Path]:
    """The folder, or a temporary one of the same files with pickled weights as safetensors.

    ValueError where weights are pickled and the caller has not said that they may be read.
    """
    found: dict[Path, list[Path]] = {}  # safetensors file that is not there -> what it would hold
    for file in sorted(folder.rglob("*")):
        for pattern, name in PICKLES.items():
            if file.match(pattern) and not _stands(file.with_name(name)):
                found.setdefault(file.with_name(name), []).append(file)
    if not found:
        yield folder
        return
    files = [file for of in found.values() for file in of]
    if not pickled:
        raise ValueError(
            f"{folder} holds pickled weights, {files[0].relative_to(folder)}: convert them to safetensors, "
            "or, where you trust who made them, ask for them with pickled=True"
        )
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / folder.name
        for file in folder.rglob("*"):
            if file.is_file() and file not in files and not file.name.endswith(".bin.index.json"):
                link = copy / file.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(file.resolve(), link)
        for target, parts in found.items():
            written = copy / target.relative_to(folder)
            written.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: t for part in parts for name, t in _unpickled(part).items()}
            save_file(tensors, written, metadata={"format": "pt"})
        yield copy


def _stands(file: Path) -> bool:
    """Whether the file is there, whole or in parts."""
    return bool(list(file.parent.glob(f"{file.stem}*{file.suffix}")))


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a state dict, each with a memory of its own."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{file} cannot be read as weights alone: {error}") from error
    tensors = (
        {name: t for name, t in state.items() if isinstance(t, Tensor)} if isinstance(state, dict) else {}
    )
    if not tensors:
        raise ValueError(f"{file} is no state dict")
    return {name: t.clone().contiguous() for name, t in tensors.items()}
