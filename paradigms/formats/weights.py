"""The files of a foreign checkpoint: JSON, and weights that are safetensors or made so."""

import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import NoReturn

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paradigms.encoder.published import MODULES, modules
from paradigms.io.typed import naming

# Pickled weights, and what they are called as safetensors. COIL keeps its heads in model.pt.
PICKLES = {"pytorch_model*.bin": "model.safetensors", "model.pt": "heads.safetensors"}
MODULE = re.compile(r"\d+_\w+|((query|document)/)?backbone")  # the folder of one
MANY = 12  # files that an error names


def described(folder: Path) -> str:
    """The names of a folder's files, for an error."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more if names else "nothing"


def read_weights(folder: Path, *names: str) -> dict[str, Tensor]:
    """Those of these tensors that are in a folder's safetensors files, in float32."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with naming(file):
            found |= {name: t.float() for name, t in load_file(file).items() if name in names}
    return found


def pickles(
    there: Collection[PurePath], modules: Collection[PurePath] = ()
) -> dict[PurePath, list[PurePath]]:
    """Safetensors file that is not among these, whole or in parts -> the pickled ones in its place.

    Those of a folder, of its backbones and of its modules, such as 2_Dense, or as it names them. Others, as
    of a step in training, are not read.
    """
    found: dict[PurePath, list[PurePath]] = {}
    for file in sorted(there):
        if file.parent.name and not MODULE.fullmatch(str(file.parent)) and file.parent not in modules:
            continue
        for pattern, name in PICKLES.items():
            target = file.with_name(name)
            parts = f"{target.stem}*{target.suffix}"
            if file.match(pattern) and not any(o.parent == file.parent and o.match(parts) for o in there):
                found.setdefault(target, []).append(file)
    return found


def refuse_pickles(name: str, found: dict[PurePath, list[PurePath]]) -> NoReturn:
    """ValueError: the caller has not said that `pickles` may be read."""
    raise ValueError(
        f"{name} holds pickled weights, {next(iter(found.values()))[0]}: convert them to safetensors, or, "
        "where you trust who made them, ask for them with pickled=True (at the terminal --pickled)"
    )


@contextmanager
def safe_weights(folder: Path, pickled: bool) -> Iterator[Path]:
    """The folder, or a temporary one of the same files with pickled weights as safetensors.

    ValueError where weights are pickled and the caller has not said that they may be read.
    """
    there = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    named = modules(folder) if (folder / MODULES).is_file() else []
    found = pickles(there, [place.relative_to(folder) for _, place in named])
    if not found:
        yield folder
        return
    if not pickled:
        refuse_pickles(str(folder), found)
    files = [folder / file for of in found.values() for file in of]
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / (folder.resolve().name or "model")
        for file in folder.rglob("*"):
            if file.is_file() and file not in files and not file.name.endswith(".bin.index.json"):
                link = copy / file.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(file.resolve(), link)
        for target, parts in found.items():
            written = copy / target
            written.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: t for part in parts for name, t in _unpickled(folder / part).items()}
            save_file(tensors, written, metadata={"format": "pt"})
        yield copy


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
