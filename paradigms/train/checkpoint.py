"""Write and read checkpoints, without pickles, from which a training run resumes exactly.

A training folder's checkpoints/step-N contains the paradigm (`Trainable.write`), optimizer.safetensors
(AdamW's moments by parameter name), random.safetensors (generator states of each process), progress.json, and
manifest.json with the size and SHA-256 of every other file, so that damage is detected.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from paradigms.io.checks import parse_json, read_json
from paradigms.io.files import check_locks, contents, remove_folder, write_text
from paradigms.io.manifest import damage
from paradigms.io.manifest import write_manifest as write_manifest
from paradigms.saving.layouts import SAVED
from paradigms.train.parallel import gathered, spread

FOLDER, PREFIX = "checkpoints", "step-"
WRITTEN = contents(*SAVED, marks=["progress.json", "optimizer.safetensors"])  # the files of a checkpoint
# Files and folders of a training run, and of a trained model next to it.
TRAINED = contents(*SAVED, "*.jsonl", "checkpoint/", "training/", f"{FOLDER}/", f"{PREFIX}[0-9]*/", "best/")


def place(run: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` steps of the run in the folder `run`."""
    return run / FOLDER / f"{PREFIX}{step}"


def steps(run: Path) -> list[int]:
    """List the steps with a checkpoint in the folder `run`, ascending; some checkpoints may be damaged."""
    numbers = (entry.name.removeprefix(PREFIX) for entry in (run / FOLDER).glob(f"{PREFIX}*"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def newest(run: Path) -> int | None:
    """Return the newest intact checkpoint's step, or None; warn about each newer, damaged checkpoint."""
    for step in reversed(steps(run)):
        wrong = damage(place(run, step))
        if wrong is None:
            return step
        warnings.warn(f"{place(run, step)} is damaged and is skipped: {wrong}", RuntimeWarning, stacklevel=2)
    return None


def remove(run: Path, keep: int, last: int) -> None:
    """Remove all checkpoints, oldest first, except the newest `keep` at or before step `last`.

    If a checkpoint contains files that training did not write, it is kept, and a warning names one of them.
    """
    newest_steps = [step for step in steps(run) if step <= last][-keep:]
    check_locks(run / FOLDER)
    for step in steps(run):
        if step not in newest_steps:
            try:
                remove_folder(place(run, step), WRITTEN)
            except FileExistsError as error:
                warnings.warn(f"{place(run, step)} is not removed: {error}", RuntimeWarning, stacklevel=2)


def read_progress(run: Path) -> dict[str, Any] | None:
    """Read the newest checkpoint's progress.json without checking it; return None if there is none."""
    numbers = steps(run)
    return read_json(place(run, numbers[-1]) / "progress.json") if numbers else None


def append_history(file: Path, values: dict[str, Any]) -> None:
    check_locks(file)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(values) + "\n")


def cut_history(file: Path, step: int) -> None:
    """Remove the log lines after `step`, because those steps will run again."""
    lines = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []:
        try:
            values = parse_json(line, str(file))
        except ValueError:
            break  # after a checkpoint, a killed process may leave half a line, and a power failure anything
        if values["step"] <= step:
            lines.append(line + "\n")
    write_text(file, "".join(lines))


def optimizer_tensors(optimizer: Optimizer, model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """Gather the optimizer's full tensors on the CPU, keyed by PARAMETER/KEY; return {} if not `keep`."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            full_value = gathered(torch.as_tensor(value).detach())
            if keep:
                tensors[f"{name}/{key}"] = full_value.cpu().contiguous()
    return tensors


def put_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load `optimizer_tensors` into an optimizer, on each parameter's device and with its sharding."""
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
    """Return the states of this process's torch generators, from which dropout draws."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def load_random(file: Path, process: int) -> None:
    """Set a process's generators from a file with all processes' states, as tensors [process, bytes]."""
    states = load_file(file)
    torch.set_rng_state(states["cpu"][process].clone())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"][process].clone())
