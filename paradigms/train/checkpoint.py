"""Everything a training run needs to go on exactly where it was, without a pickle.

A training folder's checkpoints/step-N holds the paradigm (`Trainable.write`), optimizer.safetensors (AdamW's
moments by parameter name), random.safetensors (generator states of each process), progress.json, and
manifest.json: size and SHA-256 of every other file, which tell a damaged checkpoint.
"""

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from paradigms.io.files import write_json, write_text
from paradigms.io.typed import parse_json, read_json
from paradigms.train.parallel import gathered, spread

FOLDER, PREFIX, MANIFEST = "checkpoints", "step-", "manifest.json"


def place(run: Path, step: int) -> Path:
    """The checkpoint after `step` steps of the run in the folder `run`."""
    return run / FOLDER / f"{PREFIX}{step}"


def steps(run: Path) -> list[int]:
    """The steps of the checkpoints of the run in the folder `run`, ascending; some may be damaged."""
    numbers = (entry.name.removeprefix(PREFIX) for entry in (run / FOLDER).glob(f"{PREFIX}*"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def newest(run: Path) -> int | None:
    """The last step of a checkpoint that is whole, or None; a warning names every damaged one after it."""
    for step in reversed(steps(run)):
        wrong = damage(place(run, step))
        if wrong is None:
            return step
        warnings.warn(f"{place(run, step)} is damaged and is left out: {wrong}", RuntimeWarning, stacklevel=2)
    return None


def remove(run: Path, keep: int, last: int) -> None:
    """Every checkpoint but the newest `keep` of those up to step `last`, the oldest first."""
    kept = [step for step in steps(run) if step <= last][-keep:]
    for step in steps(run):
        if step not in kept:
            shutil.rmtree(place(run, step))


def read_progress(run: Path) -> dict[str, Any] | None:
    """progress.json of the newest checkpoint, unchecked; None where there is no checkpoint."""
    found = steps(run)
    return read_json(place(run, found[-1]) / "progress.json") if found else None


def write_manifest(folder: Path) -> None:
    """Write manifest.json of the files that are in the folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    told = {str(file.relative_to(folder)): [file.stat().st_size, sha256(file)] for file in files}
    write_json(folder / MANIFEST, told)


def damage(folder: Path) -> str | None:
    """What is wrong with a folder after `write_manifest`; None if every file is as it was written."""
    try:
        told = read_json(folder / MANIFEST)
        for name, (size, digest) in told.items():
            file = folder / name
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, not the {size} that were written"
            if sha256(file) != digest:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{MANIFEST} or a file that it names cannot be read ({error})"
    return None


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def append_history(file: Path, values: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(values) + "\n")


def cut_history(file: Path, step: int) -> None:
    """Forget what was logged after `step`: those steps are about to be taken again."""
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []:
        try:
            values = parse_json(line, str(file))
        except ValueError:
            break  # a killed process may leave half a line, a loss of power anything, after the checkpoint's
        if values["step"] <= step:
            kept.append(line + "\n")
    write_text(file, "".join(kept))


def optimizer_tensors(optimizer: Optimizer, model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """The optimizer's tensors as PARAMETER/KEY, whole, on the CPU; keep=False: take part, hold none."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            whole = gathered(torch.as_tensor(value).detach())
            if keep:
                tensors[f"{name}/{key}"] = whole.cpu().contiguous()
    return tensors


def put_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back `optimizer_tensors`, placed as each parameter is."""
    parameters = dict(model.named_parameters())
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = {parameter: n for n, parameter in enumerate(ordered)}
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        name, key = full.rsplit("/", 1)
        placed = value if key == "step" else spread(value, parameters[name])
        state.setdefault(places[parameters[name]], {})[key] = placed
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def random_states() -> dict[str, Tensor]:
    """This process's torch generator states: what dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def load_random(file: Path, process: int) -> None:
    """Set the generators of a process from a file of all states, [process, bytes] each."""
    states = load_file(file)
    torch.set_rng_state(states["cpu"][process].clone())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"][process].clone())
