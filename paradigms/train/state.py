"""Save and resume the state of a training run between two steps, bit for bit and without pickles.

A training folder's checkpoints/step-N contains the paradigm (`Trainable.write`), optimizer.safetensors
(AdamW's moments by parameter name), random.safetensors (generator states of each process), progress.json, and
manifest.json with the size and SHA-256 of every other file, so that damage is detected. Of shards, process p
of W writes every W-th tensor, whole, to weights-p.safetensors and optimizer-p.safetensors; the paradigm is
added after the last step. Any number of processes reads them, each its rows.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from paradigms.encoder.weights import state_of
from paradigms.identity import checksum_of, design_of, differing
from paradigms.io.checks import naming, read_json
from paradigms.io.files import flush, settle, sweep, write_json
from paradigms.io.manifest import write_manifest
from paradigms.train.checkpoints import (
    CHECKPOINTS,
    HISTORY,
    WRITTEN,
    checkpoint_folder,
    cut_history,
    newest_checkpoint,
    remove_checkpoints,
)
from paradigms.train.parallel import by_each, by_main, fill, folder_by_main, from_main, gathered, own_rows
from paradigms.trainable import Trainable

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
    if last is not None and last[:2] == _folder_and_values(paradigm, folder):
        return last[2]
    named = paradigm.state_dict().items()
    read = (weight for name, weight in named if "backbone" in name.split(".") and ".lora_" not in name)
    heads = "".join(getattr(module, "heads_read", "") for module in paradigm.modules())
    return hashlib.sha256(f"{checksum_of(read)} {heads}".encode()).hexdigest()


def note_moved(paradigm: Trainable, folder: Path, start: str) -> None:
    if not isinstance(paradigm, FSDPModule):
        _moved[paradigm] = *_folder_and_values(paradigm, folder), start


def _folder_and_values(paradigm: Trainable, folder: Path) -> tuple[Path, tuple[Any, ...]]:
    """Return the folder, and values of the weights, which a model that moves to another device keeps."""
    return folder.resolve(), state_of(paradigm.parameters())[1:]


def signature(
    paradigm: Trainable,
    settings: Mapping[str, Any],
    examples: str,
    folder: Path,
    accelerator: Accelerator,
    dev: str = "",
) -> dict[str, Any]:
    """Return what must match to resume from a checkpoint in `folder`, as JSON. examples: `Objective.digest`.
    dev: digest of the main process's dev measure.

    Raises ValueError if processes have different settings, because they would train different models.
    """
    values = {
        "settings": {name: value for name, value in settings.items() if name != "batch_size"},
        "paradigm": paradigm.description(),
        "batch": settings["batch_size"] * accelerator.num_processes,  # whose number may change
        "precision": accelerator.mixed_precision,
        "examples": examples,
        **design_of(paradigm),
    }
    written = json.dumps(values)
    if len(set(gather_object([written]))) > 1:
        raise ValueError(
            f"the processes that train {paradigm.name} have different examples, identifiers or "
            "settings: give all of them the same collection, backbone and arguments"
        )
    # The main process's weights: it sends them to the others, which may have drawn their heads differently.
    from_first = by_main(lambda: {"dev queries": dev, "weights": start_of(paradigm, folder)}, accelerator)
    return json.loads(written) | from_first


@dataclass
class RunState:
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

    @property
    def shards(self) -> bool:
        return isinstance(self.paradigm, FSDPModule)

    def full_model(self) -> Trainable:
        """Return the paradigm with all weights, on the main process's CPU. Every process calls this.

        Of shards, `empty` frees them again.
        """
        if self.shards:
            weights = {}
            for name, weight in self.paradigm.named_parameters():
                full = gathered(weight.detach())
                if self.accelerator.is_main_process:
                    weights[name] = full.cpu()
            if self.accelerator.is_main_process:
                fill(self.full, weights.__getitem__)
        return self.full

    def empty(self) -> None:
        """Free the weights of the copy that `full_model` filled."""
        if self.shards and self.accelerator.is_main_process:
            shapes = {name: weight.detach().to("meta") for name, weight in self.full.named_parameters()}
            fill(self.full, shapes.__getitem__)

    def resume(self) -> int:
        """Load the newest intact checkpoint and return its step, or 0. Every process calls this."""

        def find() -> int | None:
            self.folder.mkdir(parents=True, exist_ok=True)
            settle(self.folder / "best")
            sweep(self.folder / CHECKPOINTS)
            step = newest_checkpoint(self.folder)
            if step is None:
                (self.folder / HISTORY).unlink(missing_ok=True)
            else:
                remove_checkpoints(self.folder, self.keep, step)  # removes damaged ones after it, too
            return step

        step = by_main(find, self.accelerator)
        if step is None:
            return 0
        self._load(checkpoint_folder(self.folder, step))
        by_main(lambda: cut_history(self.folder, step), self.accelerator)
        return step

    def _load(self, checkpoint: Path) -> None:
        progress = read_json(checkpoint / "progress.json")
        signed = progress["signature"]
        before = signed["settings"]["steps"]
        steps = self.signature["settings"]["steps"]
        if before < steps:  # a longer training: its rate continues by the schedule of all its steps
            signed = signed | {"settings": signed["settings"] | {"steps": steps}}
        if other := differing(signed, self.signature):
            raise ValueError(
                f"{checkpoint} was trained with other settings ({other}); choose another folder, or delete "
                f"{self.folder} to start again"
            )
        self._load_weights(checkpoint)
        self._load_moments(StoredTensors(checkpoint, "optimizer"))
        random = load_file(checkpoint / "random.safetensors")
        process = self.accelerator.process_index
        if len(random["cpu"]) == self.accelerator.num_processes:
            torch.set_rng_state(random["cpu"][process].clone())
            if "cuda" in random and torch.cuda.is_available():
                torch.cuda.set_rng_state(random["cuda"][process].clone())
        else:  # other processes: dropout draws other numbers, the same in each repetition
            seed = self.signature["settings"]["seed"]
            torch.manual_seed((seed * 1_000_003 + progress["step"]) * 1_003 + process)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(progress["scaler"])
        self.best = progress["best"]
        self.best_step = progress["best_step"]
        self.seconds = progress["seconds"]

    def save(self, step: int, *, last: bool = False) -> None:
        """Save the state after `step` steps, and remove all but the newest `keep` checkpoints.

        last: also write the paradigm that shards make up. Every process calls this. All processes raise
        OSError if the disk is full; earlier checkpoints stay intact.
        """
        generators = {"cpu": torch.get_rng_state()}  # dropout draws from them
        if torch.cuda.is_available():
            generators["cuda"] = torch.cuda.get_rng_state()
        random = {
            name: self.accelerator.gather(state[None].to(self.accelerator.device)).cpu()
            for name, state in generators.items()
        }
        scaler = self.accelerator.scaler
        progress = {
            "step": step,
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self.seconds,
            "scaler": None if scaler is None else scaler.state_dict(),
            "signature": self.signature,
        }

        def write(folder: Path) -> None:
            history = self.folder / HISTORY
            if history.is_file():
                flush(history)
            if not self.shards:
                self.paradigm.write(folder)
                save_file(dict(self._moments()), folder / "optimizer.safetensors")
            elif last:
                fill(self.full, StoredTensors(folder, "weights").whole)  # from the files: not all in memory
                self.full.write(folder)
                self.empty()
            save_file(random, folder / "random.safetensors")
            write_json(folder / "progress.json", progress)
            write_manifest(folder)

        target = checkpoint_folder(self.folder, step)
        with folder_by_main(target, WRITTEN, self.accelerator) as folder:
            if self.shards:
                weights = ((name, weight.detach()) for name, weight in self.paradigm.named_parameters())
                self._write_share(weights, folder, "weights")
                self._write_share(self._moments(), folder, "optimizer")
            by_main(lambda: write(folder), self.accelerator)
        by_main(lambda: remove_checkpoints(self.folder, self.keep, step), self.accelerator)

    def _write_share(self, tensors: Iterable[tuple[str, Tensor]], folder: Path, stem: str) -> None:
        """Gather one tensor after the other, and write every W-th of them, whole, in this process."""
        share = {}
        process = self.accelerator.process_index
        for n, (name, tensor) in enumerate(tensors):
            full = gathered(tensor)
            if n % self.accelerator.num_processes == process:
                share[name] = full.cpu().contiguous()
        by_each(lambda: save_file(share, folder / f"{stem}-{process}.safetensors"))

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the optimizer's tensors, named PARAMETER/KEY."""
        for name, parameter in self.paradigm.named_parameters():
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                yield f"{name}/{key}", torch.as_tensor(value).detach()

    def _load_weights(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint of shards, or of a paradigm, which the main process reads."""
        stored = StoredTensors(checkpoint, "weights")
        if not stored.names:
            read = not self.shards or self.accelerator.is_main_process
            model = type(self.paradigm).from_pretrained(checkpoint).state_dict() if read else {}
            if not self.shards:
                self.paradigm.load_state_dict(model)
                return
        with torch.no_grad():
            for name, weight in self.paradigm.named_parameters():
                part, rows = own_rows(weight)
                if stored.names:
                    part.copy_(stored.rows(name, rows))
                else:
                    part.copy_(from_main(model.get(name), weight, self.accelerator)[rows])

    def _load_moments(self, stored: "StoredTensors") -> None:
        """Load `_moments` into the optimizer, on each parameter's device and with its sharding."""
        parameters = dict(self.paradigm.named_parameters())
        ordered = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        places = {parameter: n for n, parameter in enumerate(ordered)}
        state: dict[int, dict[str, Tensor]] = {}
        for full_name in stored.names:
            name, key = full_name.rsplit("/", 1)
            parameter = parameters[name]
            if key == "step":
                placed = stored.whole(full_name)
            else:
                placed = torch.empty_like(parameter, requires_grad=False)
                part, rows = own_rows(placed)
                part.copy_(stored.rows(full_name, rows))
            state.setdefault(places[parameter], {})[key] = placed
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})


class StoredTensors:
    """Tensors by name, in one file STEM.safetensors or in files STEM-p.safetensors, mapped into memory."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.names: dict[str, Any] = {}
        for path in sorted(folder.glob(f"{stem}*.safetensors")):
            with naming(path):
                file = safe_open(path, "pt")
                self.names |= dict.fromkeys(file.keys(), file)

    def whole(self, name: str) -> Tensor:
        tensor: Tensor = self.names[name].get_tensor(name)
        return tensor

    def rows(self, name: str, rows: slice) -> Tensor:
        part: Tensor = self.names[name].get_slice(name)[rows]
        return part
