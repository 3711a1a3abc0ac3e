"""Everything that a training run is made of between two steps: agreed on, kept, found again."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from paradigms.io.files import atomic_folder, flush, settle, sweep, write_json
from paradigms.model import Trainable
from paradigms.train import checkpoint
from paradigms.train.parallel import gathered, spread

Result = TypeVar("Result")
# What scripts tell as the end of a training, and their own last word.
TOLD = (OSError, ValueError, FloatingPointError, KeyError, SystemExit)


def signature(
    paradigm: Trainable, settings: Mapping[str, Any], examples: Sequence[Any], accelerator: Accelerator
) -> dict[str, Any]:
    """What must be equal for a checkpoint to be gone on with, as JSON holds it.

    ValueError where processes have not been given the same: each would learn something else.
    """
    found = {
        "settings": dict(settings),
        "paradigm": paradigm.description(),
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "examples": _digest(examples),
    }
    written = json.dumps(found)
    if len(set(gather_object([written]))) > 1:
        raise ValueError(
            f"the processes that train {paradigm.name} have different examples, identifiers or "
            "settings: give all of them the same collection, backbone and arguments"
        )
    return json.loads(written)


@dataclass
class RunState:
    """The state of a training run: what a checkpoint holds."""

    paradigm: Trainable  # what is trained
    whole: Trainable  # what is written and measured (see `parallel.prepare`)
    optimizer: Optimizer
    folder: Path
    accelerator: Accelerator
    signature: dict[str, Any]
    keep: int  # checkpoints
    best: float = -math.inf  # dev measure, of the model after `best_step` steps
    best_step: int = 0
    seconds: float = 0.0  # in steps

    def full_model(self) -> Trainable:
        """The paradigm with all of its weights, on the main process. Every process calls this."""
        if isinstance(self.paradigm, FSDPModule):
            target = self.whole.state_dict()
            for name, tensor in self.paradigm.state_dict().items():
                whole = gathered(tensor)
                if self.accelerator.is_main_process:
                    target[name].copy_(whole)
        return self.whole

    def resume(self) -> int:
        """Load the newest whole checkpoint and return its step, or 0. Every process calls this."""
        history = self.folder / "history.jsonl"

        def find() -> int | None:
            self.folder.mkdir(parents=True, exist_ok=True)
            settle(self.folder / "best")
            sweep(self.folder / checkpoint.FOLDER)
            step = checkpoint.newest(self.folder)
            if step is None:
                history.unlink(missing_ok=True)
            else:
                checkpoint.remove(self.folder, self.keep, step)  # damaged ones after it, which count for none
            return step

        step = by_main(find, self.accelerator)
        if step is None:
            return 0
        found = self._load(checkpoint.place(self.folder, step))
        self.best, self.best_step, self.seconds = found["best"], found["best_step"], found["seconds"]
        by_main(lambda: checkpoint.cut_history(history, step), self.accelerator)
        return step

    def _load(self, place: Path) -> dict[str, Any]:
        """Take weights, moments, generator states and scale from a checkpoint; its progress.json."""
        if not place.is_dir():
            raise RuntimeError(
                f"process {self.accelerator.process_index} does not see {place}: give all processes a folder "
                "on a disk that they share"
            )
        found = checkpoint.read_json(place / "progress.json")
        if found["signature"] != self.signature:
            changed = _differences(found["signature"], self.signature)
            raise ValueError(
                f"{place} was trained with other settings ({changed}); choose another folder, or delete "
                f"{self.folder} to start again"
            )
        tensors = load_file(place / "optimizer.safetensors")
        own, model = self.paradigm.state_dict(), type(self.paradigm).from_pretrained(place)
        weights = {name: spread(tensor, own[name]) for name, tensor in model.state_dict().items()}
        self.paradigm.load_state_dict(weights)
        checkpoint.put_optimizer(self.optimizer, self.paradigm, tensors)
        checkpoint.load_random(place / "random.safetensors", self.accelerator.process_index)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(found["scaler"])
        return found

    def save(self, step: int) -> None:
        """Keep the state after `step` steps, and remove all but the newest `keep`. Every process calls this.

        OSError, on all of them, where the disk does not take it: what was kept before is whole.
        """
        random = {
            name: self.accelerator.gather(state[None].to(self.accelerator.device)).cpu()
            for name, state in checkpoint.random_states().items()
        }
        main = self.accelerator.is_main_process
        model = self.full_model()
        optimizer = checkpoint.optimizer_tensors(self.optimizer, self.paradigm, keep=main)
        scaler = self.accelerator.scaler
        progress = {
            "step": step,
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self.seconds,
            "scaler": None if scaler is None else scaler.state_dict(),
            "signature": self.signature,
        }

        def write() -> None:
            place, history = checkpoint.place(self.folder, step), self.folder / "history.jsonl"
            with atomic_folder(place, None, durable=True) as folder:
                if history.is_file():
                    flush(history)
                model.write(folder)
                save_file(optimizer, folder / "optimizer.safetensors")
                save_file(random, folder / "random.safetensors")
                write_json(folder / "progress.json", progress)
                checkpoint.write_manifest(folder)
            checkpoint.remove(self.folder, self.keep, step)

        by_main(write, self.accelerator)

    def save_best(self, model: Trainable, value: float, step: int) -> None:
        """Keep `model` as the best so far; for the main process alone."""
        model.save_pretrained(self.folder / "best")
        self.best, self.best_step = value, step


def by_main(action: Callable[[], Result], accelerator: Accelerator) -> Result:
    """What `action` gives on the main process, while the others wait; its error is raised by every process.

    An action calls nothing in which processes wait for each other.
    """
    failed: BaseException | None = None
    told: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            told = [(action(), None, "")]
        except (Exception, SystemExit) as error:
            failed, kinds = error, (kind for kind in TOLD if isinstance(error, kind))
            told = [(None, next(kinds, RuntimeError), str(error))]
    broadcast_object_list(told)
    if failed is not None:
        raise failed
    result, kind, message = told[0]
    if kind is not None:
        raise kind(f"process 0 failed: {message}")
    return result


@contextmanager
def ending_all(accelerator: Accelerator, step: int) -> Iterator[None]:
    """RuntimeError for an error of one process among several: the launcher then ends the others, which wait.

    A FloatingPointError passes: every process raises that one.
    """
    try:
        yield
    except FloatingPointError:
        raise
    except Exception as error:
        if accelerator.num_processes == 1:
            raise
        raise RuntimeError(
            f"process {accelerator.process_index} of {accelerator.num_processes} failed at step {step + 1}, "
            "which ends the training of all; one whose connection was closed failed after another: "
            f"{type(error).__name__}: {error}"
        ) from error


def _digest(examples: Sequence[Any]) -> str:
    """sha256 of repr(list(examples)), with one example's in memory at a time."""
    found = hashlib.sha256(b"[")
    for n, example in enumerate(examples):
        found.update(f"{', ' if n else ''}{example!r}".encode("utf-8", "surrogatepass"))
    found.update(b"]")
    return found.hexdigest()


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = []
    for part in new:
        a, b = old.get(part), new[part]
        if isinstance(a, dict) and isinstance(b, dict):
            keys = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
            names += [f"{k}: {a.get(k)} then, {b.get(k)} now" for k in keys]
        elif a != b:
            told = "the training examples are others" if part == "examples" else f"{part}: {a} then, {b} now"
            names.append(told)
    return "; ".join(names)
