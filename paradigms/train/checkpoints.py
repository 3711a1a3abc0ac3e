"""What a training run keeps in its folder: checkpoints, progress and history (`RunState` writes them)."""

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from paradigms.io.checks import parse_json, read_json
from paradigms.io.files import check_locks, contents, remove_folder, write_text
from paradigms.io.manifest import damage
from paradigms.saved import SAVED

CHECKPOINTS = "checkpoints"
PREFIX = "step-"
HISTORY = "history.jsonl"
STATES = "states"  # folder for states of frozen layers during a run
WRITTEN = contents(*SAVED, marks=["progress.json", "optimizer.safetensors"])  # the files of a checkpoint
# Files and folders of a training run, and of a trained model next to it.
TRAINED = contents(
    *SAVED, "*.jsonl", "checkpoint/", "training/", f"{CHECKPOINTS}/", f"{PREFIX}[0-9]*/", "best/"
)


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` steps of the run in the folder `run`."""
    return run / CHECKPOINTS / f"{PREFIX}{step}"


def checkpoint_steps(run: Path) -> list[int]:
    """List the steps with a checkpoint in the folder `run`, ascending; some checkpoints may be damaged."""
    numbers = (entry.name.removeprefix(PREFIX) for entry in (run / CHECKPOINTS).glob(f"{PREFIX}*"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def newest_checkpoint(run: Path) -> int | None:
    """Return the newest intact checkpoint's step, or None; warn about each newer, damaged checkpoint."""
    for step in reversed(checkpoint_steps(run)):
        folder = checkpoint_folder(run, step)
        wrong = damage(folder)
        if wrong is None:
            return step
        warnings.warn(f"{folder} is damaged and is skipped: {wrong}", RuntimeWarning, stacklevel=2)
    return None


def remove_checkpoints(run: Path, keep: int, last: int) -> None:
    """Remove all checkpoints, oldest first, except the newest `keep` at or before step `last`.

    If a checkpoint contains files that training did not write, it is kept, and a warning names one of them.
    """
    steps = checkpoint_steps(run)
    newest = [step for step in steps if step <= last][-keep:]
    check_locks(run / CHECKPOINTS)
    for step in steps:
        if step in newest:
            continue
        folder = checkpoint_folder(run, step)
        try:
            remove_folder(folder, WRITTEN)
        except FileExistsError as error:
            warnings.warn(f"{folder} is not removed: {error}", RuntimeWarning, stacklevel=2)


def read_progress(run: Path) -> dict[str, Any] | None:
    """Read the newest checkpoint's progress.json without checking it; return None if there is none."""
    steps = checkpoint_steps(run)
    return read_json(checkpoint_folder(run, steps[-1]) / "progress.json") if steps else None


def append_history(run: Path, values: Mapping[str, Any]) -> None:
    file = run / HISTORY
    check_locks(file)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(values) + "\n")


def cut_history(run: Path, step: int) -> None:
    """Remove the log lines after `step`, because those steps will run again."""
    file = run / HISTORY
    lines = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []:
        try:
            values = parse_json(line, str(file))
        except ValueError:
            break  # after a checkpoint, a killed process may leave half a line, and a power failure anything
        if values["step"] <= step:
            lines.append(line + "\n")
    write_text(file, "".join(lines))


def training_seconds(folder: Path) -> float:
    progress = read_progress(folder)
    return float(progress["seconds"]) if progress else math.nan


def kept_step(folder: Path) -> int | None:
    """Return the number of steps that led to the state returned by `train`; 0 means untrained.

    Without dev queries, this is the newest checkpoint's step. Returns None if `folder` contains no run.
    """
    progress = read_progress(folder)
    if progress is None:
        return None
    return progress["step"] if progress["best"] == -math.inf else progress["best_step"]


def dev_values(folder: Path) -> dict[int, Float[np.ndarray, " queries"]]:
    """Read a run's values on the dev queries, keyed by number of steps; 0 steps means untrained."""
    file = folder / HISTORY
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines() if file.is_file() else [])
    return {line["step"]: np.array(line["dev_values"]) for line in lines if "dev_values" in line}
