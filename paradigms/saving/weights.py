"""Readers for other libraries' JSON and weights; pickled weights are converted to safetensors."""

import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath, PurePosixPath
from typing import NoReturn

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paradigms.encoder.published import MODULES, modules
from paradigms.io.checks import naming
from paradigms.saved import M3_HEADS, SETTINGS_AND_WEIGHTS

PICKLED = ("*.bin", "*.pt")
# Names of pickled weights -> their names as safetensors. COIL keeps its heads in model.pt.
PICKLES = {"pytorch_model*.bin": "model.safetensors", "model.pt": "heads.safetensors"}
PICKLES |= {name: PurePath(name).with_suffix(".safetensors").name for name in M3_HEADS}
MODULE = re.compile(r"\d+_\w+|((query|document)/)?backbone")  # a module's folder
MANY = 12  # most files listed in an error


def described(folder: Path) -> str:
    """List the names of a folder's files, for an error message."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more if names else "nothing"


def read_weights(folder: Path, *names: str) -> dict[str, Tensor]:
    """Read tensors by name, in float32, from those safetensors files that exist in a folder."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with naming(file):
            tensors |= {name: t.float() for name, t in load_file(file).items() if name in names}
    return tensors


def pickles(
    there: Collection[PurePath], modules: Collection[PurePath] = ()
) -> dict[PurePath, list[PurePath]]:
    """Map each missing safetensors file to the pickled files found instead of it.

    A file stored in parts is not missing. Only the folder itself, its backbones and its
    modules, such as 2_Dense, are considered. Other subfolders, such as training steps, are ignored.
    """
    unsafe: dict[PurePath, list[PurePath]] = {}
    for file in sorted(there):
        if file.parent.name and not MODULE.fullmatch(str(file.parent)) and file.parent not in modules:
            continue
        for pattern, name in PICKLES.items():
            target = file.with_name(name)
            parts = f"{target.stem}*{target.suffix}"
            if file.match(pattern) and not any(o.parent == file.parent and o.match(parts) for o in there):
                unsafe.setdefault(target, []).append(file)
    return unsafe


def refuse_pickles(name: str, unsafe: dict[PurePath, list[PurePath]]) -> NoReturn:
    """Raise ValueError, since the caller does not allow reading the pickles `unsafe`."""
    raise ValueError(
        f"{name} holds pickled weights, {next(iter(unsafe.values()))[0]}: convert them to safetensors, or, "
        "if you trust their author, allow them with pickled=True (at the terminal --pickled)"
    )


@contextmanager
def safe_weights(folder: Path, pickled: bool) -> Iterator[Path]:
    """Yield the folder, or a temporary copy whose pickled weights are converted to safetensors.

    Raises ValueError if weights are pickled and `pickled` is false.
    """
    there = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    named = modules(folder) if (folder / MODULES).is_file() else []
    unsafe = pickles(there, [place.relative_to(folder) for _, place in named])
    if not unsafe:
        yield folder
        return
    if not pickled:
        refuse_pickles(str(folder), unsafe)
    files = [folder / file for parts in unsafe.values() for file in parts]
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / (folder.resolve().name or "model")
        for file in folder.rglob("*"):
            if file.is_file() and file not in files and not file.name.endswith(".bin.index.json"):
                link = copy / file.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(file.resolve(), link)
        for target, parts in unsafe.items():
            written = copy / target
            written.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: t for part in parts for name, t in _unpickled(folder / part).items()}
            save_file(tensors, written, metadata={"format": "pt"})
        yield copy


def _unpickled(file: Path) -> dict[str, Tensor]:
    """Load the tensors of a pickled state dict; the returned tensors never share memory."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{file} cannot be read as weights alone: {error}") from error
    entries = state.items() if isinstance(state, dict) else ()
    tensors = {name: t.clone().contiguous() for name, t in entries if isinstance(t, Tensor)}
    if not tensors:
        raise ValueError(f"{file} is not a state dict")
    return tensors


def download(name: str, pickled: bool, revision: str | None = None) -> Path:
    """Download a repository's missing files; return its folder in the cache.

    revision: branch, tag or commit. Raises FileNotFoundError if a path has no folder or the hub has no such
    repository or revision, and ValueError if some weights exist only as pickles and `pickled` is false.
    """
    from huggingface_hub import errors, snapshot_download

    if Path(name).is_absolute() or name.startswith(".") or name.count("/") > 1:
        there = next(folder for folder in Path(name).absolute().parents if folder.is_dir())
        held = sorted(entry.name for entry in there.iterdir() if entry.is_dir())
        raise FileNotFoundError(f"{name}: no such folder; {there} has {', '.join(held[:12]) or 'none'}")
    unsafe = {} if pickled else pickles(listed(name, revision))
    if unsafe:
        refuse_pickles(name, unsafe)
    wanted = [*SETTINGS_AND_WEIGHTS, *(PICKLED if pickled else ())]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (
        errors.HFValidationError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.LocalEntryNotFoundError,
    ) as error:
        raise FileNotFoundError(
            f"{name} is not a folder, and cannot be downloaded from the hub: {error}"
        ) from error


def listed(name: str, revision: str | None = None) -> list[PurePosixPath]:
    """List a repository's files; empty if the hub does not answer, which the download then reports."""
    from huggingface_hub import HfApi

    with suppress(Exception):  # the class depends on the hub's HTTP library
        info = HfApi().model_info(name, revision=revision)
        return [PurePosixPath(file.rfilename) for file in info.siblings or []]
    return []
