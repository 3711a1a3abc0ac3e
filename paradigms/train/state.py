"""Save and resume the state of a training run between two steps, and check that processes agree."""

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from paradigms.encoder.weights import state_of
from paradigms.identity import checksum_of, design_of, differing
from paradigms.io.files import atomic_folder, flush, locked, settle, sweep, write_json
from paradigms.model import Trainable
from paradigms.train import checkpoint
from paradigms.train.parallel import gathered, spread

Result = TypeVar("Result")
# Errors that all processes raise with the main process's type; scripts print them.
TOLD = (OSError, ValueError, FloatingPointError, KeyError, SystemExit)


# The models that runs of this process have moved: the folder, values of the weights when the run ended, and
# the checksum of the weights with which it began.
_moved: WeakKeyDictionary[Trainable, tuple[Path, tuple[Any, ...], str]] = WeakKeyDictionary()


def start_of(paradigm: Trainable, folder: Path) -> str:
    """Return a checksum of the weights with which a run in `folder` begins, as far as they come from files.

    Heads and adapters that are drawn at random are left out: without a seed, each process draws others, and
    a checkpoint replaces them. A model that an interrupted run in the same folder has left counts as the
    model with which it began.
    """
    last = _moved.get(paradigm)
    if last is not None and last[:2] == _place(paradigm, folder):
        return last[2]
    named = paradigm.state_dict().items()
    read = (weight for name, weight in named if "backbone" in name.split(".") and ".lora_" not in name)
    heads = "".join(getattr(module, "heads_read", "") for module in paradigm.modules())
    return hashlib.sha256(f"{checksum_of(read)} {heads}".encode()).hexdigest()


def note_moved(paradigm: Trainable, folder: Path, start: str) -> None:
    """Remember a model that a run in `folder` leaves, for `start_of`."""
    if not isinstance(paradigm, FSDPModule):
        _moved[paradigm] = *_place(paradigm, folder), start


def _place(paradigm: Trainable, folder: Path) -> tuple[Path, tuple[Any, ...]]:
    """Return the folder, and values of the weights, which a model that moves to another device keeps."""
    return folder.resolve(), state_of(paradigm.parameters())[1:]


def signature(
    paradigm: Trainable,
    settings: Mapping[str, Any],
    examples: Sequence[Any],
    folder: Path,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """Return what must match to resume from a checkpoint in `folder`, as JSON.

    Raises ValueError if processes have different settings, because they would train different models.
    """
    values = {
        "settings": dict(settings),
        "paradigm": paradigm.description(),
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "examples": _digest(examples),
        **design_of(paradigm),
    }
    written = json.dumps(values)
    if len(set(gather_object([written]))) > 1:
        raise ValueError(
            f"the processes that train {paradigm.name} have different examples, identifiers or "
            "settings: give all of them the same collection, backbone and arguments"
        )
    # The main process's weights: it sends them to the others, which may have drawn their heads differently.
    return json.loads(written) | {"weights": by_main(lambda: start_of(paradigm, folder), accelerator)}


@dataclass
class RunState:
    """The state of a training run, as stored in a checkpoint."""

    paradigm: Trainable  # the trained model
    full: Trainable  # the model that is saved and measured (see `parallel.prepare`)
    optimizer: Optimizer
    folder: Path
    accelerator: Accelerator
    signature: dict[str, Any]
    keep: int  # number of checkpoints
    best: float = -math.inf  # dev measure after `best_step` steps
    best_step: int = 0
    seconds: float = 0.0  # spent in steps

    def full_model(self) -> Trainable:
        """Return the paradigm with all weights, on the main process. Every process calls this."""
        if isinstance(self.paradigm, FSDPModule):
            target = self.full.state_dict()
            for name, tensor in self.paradigm.state_dict().items():
                weights = gathered(tensor)
                if self.accelerator.is_main_process:
                    target[name].copy_(weights)
        return self.full

    def resume(self) -> int:
        """Load the newest intact checkpoint and return its step, or 0. Every process calls this."""
        history = self.folder / "history.jsonl"

        def find() -> int | None:
            self.folder.mkdir(parents=True, exist_ok=True)
            settle(self.folder / "best")
            sweep(self.folder / checkpoint.FOLDER)
            step = checkpoint.newest(self.folder)
            if step is None:
                history.unlink(missing_ok=True)
            else:
                checkpoint.remove(self.folder, self.keep, step)  # removes damaged ones after it, too
            return step

        step = by_main(find, self.accelerator)
        if step is None:
            return 0
        progress = self._load(checkpoint.place(self.folder, step))
        self.best, self.best_step, self.seconds = progress["best"], progress["best_step"], progress["seconds"]
        by_main(lambda: checkpoint.cut_history(history, step), self.accelerator)
        return step

    def _load(self, place: Path) -> dict[str, Any]:
        """Load weights, moments, generator states and gradient scale; return progress.json."""
        progress = checkpoint.read_json(place / "progress.json")
        if other := differing(progress["signature"], self.signature):
            raise ValueError(
                f"{place} was trained with other settings ({other}); choose another folder, or delete "
                f"{self.folder} to start again"
            )
        tensors = load_file(place / "optimizer.safetensors")
        current, model = self.paradigm.state_dict(), type(self.paradigm).from_pretrained(place)
        weights = {name: spread(tensor, current[name]) for name, tensor in model.state_dict().items()}
        self.paradigm.load_state_dict(weights)
        checkpoint.put_optimizer(self.optimizer, self.paradigm, tensors)
        checkpoint.load_random(place / "random.safetensors", self.accelerator.process_index)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(progress["scaler"])
        return progress

    def save(self, step: int) -> None:
        """Save the state after `step` steps, and remove all but the newest `keep` checkpoints.

        Every process calls this. All processes raise OSError if the disk is full; earlier checkpoints stay
        intact.
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
            with atomic_folder(place, checkpoint.WRITTEN) as folder:
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
        """Save `model` as the best so far. Only the main process calls this."""
        model.save_pretrained(self.folder / "best")
        self.best, self.best_step = value, step


def check_shared(folder: Path, accelerator: Accelerator | PartialState) -> None:
    """Raise FileNotFoundError on every process unless all see a file that the main process writes."""
    if accelerator.num_processes == 1:
        return

    def write() -> str:
        file = folder / f".seen-{secrets.token_hex(8)}"
        file.touch()
        return file.name

    file = folder / by_main(write, accelerator)
    blind = [n for n, seen in enumerate(gather_object([file.is_file()])) if not seen]
    by_main(lambda: file.unlink(missing_ok=True), accelerator)
    if blind:
        raise FileNotFoundError(
            f"process {blind[0]} of {accelerator.num_processes} does not see what process 0 writes to "
            f"{folder}: give all processes a folder on a disk that they share"
        )


@contextmanager
def locked_by_main(folder: Path, accelerator: Accelerator) -> Iterator[None]:
    """Create and lock a folder on the main process, and check that all processes see it (`check_shared`).

    All processes raise BlockingIOError while another run writes to the folder.
    """
    with ExitStack() as stack:
        by_main(lambda: stack.enter_context(locked(folder, make=True)), accelerator)
        check_shared(folder, accelerator)
        yield


def by_main(action: Callable[[], Result], accelerator: Accelerator | PartialState) -> Result:
    """Run `action` on the main process while the others wait; all return the result or raise the error.

    The action must not call functions in which processes wait for each other.
    """
    failed: BaseException | None = None
    outcome: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            outcome = [(action(), None, "")]
        except (Exception, SystemExit) as error:
            failed, kinds = error, (kind for kind in TOLD if isinstance(error, kind))
            outcome = [(None, next(kinds, RuntimeError), str(error))]
    broadcast_object_list(outcome)
    if failed is not None:
        raise failed
    result, kind, message = outcome[0]
    if kind is not None:
        raise kind(f"process 0 failed: {message}")
    return result


@contextmanager
def ending_all(accelerator: Accelerator, step: int) -> Iterator[None]:
    """Convert an error in one of several processes into a RuntimeError, so that the launcher ends them all.

    Otherwise, the other processes would wait forever. FloatingPointError is not converted: every process
    raises it.
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
            "which ends the training of all. A closed connection means that another process failed first: "
            f"{type(error).__name__}: {error}"
        ) from error


def _digest(examples: Sequence[Any]) -> str:
    """SHA-256 of repr(list(examples)), with one example's repr in memory at a time."""
    digest = hashlib.sha256(b"[")
    for n, example in enumerate(examples):
        digest.update(f"{', ' if n else ''}{example!r}".encode("utf-8", "surrogatepass"))
    digest.update(b"]")
    return digest.hexdigest()
