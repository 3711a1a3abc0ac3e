"""Everything that a training run is made of between two steps: agreed on, kept, found again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from paradigms.files import atomic_folder, settle, write_json, write_text
from paradigms.model import Trainable
from paradigms.train import checkpoint


def signature(
    paradigm: Trainable, settings: Mapping[str, Any], examples: Sequence[Any], accelerator: Accelerator
) -> dict[str, Any]:
    """What must be equal for a checkpoint to be gone on with, as JSON holds it."""
    found = {
        "settings": dict(settings),
        "paradigm": paradigm.description(),
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "examples": _digest(examples),
    }
    return json.loads(json.dumps(found))


def agree(signature: dict[str, Any], name: str, accelerator: Accelerator) -> None:
    """ValueError where processes have not been given the same: each would learn something else."""
    whole = hashlib.sha256(json.dumps(signature).encode()).digest()
    own = torch.tensor(list(whole), dtype=torch.uint8, device=accelerator.device)
    every = accelerator.gather(own[None])
    if bool((every != own).any()):
        raise ValueError(
            f"the processes that train {name} have different examples, identifiers or "
            "settings: give all of them the same collection, backbone and arguments"
        )


class RunState:
    """The state of a training run: what a checkpoint holds."""

    def __init__(
        self,
        paradigm: Trainable,
        optimizer: Optimizer,
        folder: Path,
        accelerator: Accelerator,
        signature: dict[str, Any],
    ) -> None:
        self.paradigm, self.optimizer, self.folder = paradigm, optimizer, folder
        self.accelerator, self.signature = accelerator, signature
        self.best, self.best_step, self.seconds = -math.inf, 0, 0.0

    # --- the full state on the main process: what sharded parameters would change, and nothing else does ----

    def full_model(self) -> Trainable:
        """The paradigm with all of its weights, to be written or measured. Every process calls this."""
        return self.paradigm

    def full_optimizer(self) -> dict[str, Tensor]:
        """The optimizer's tensors by parameter name, whole. Every process calls this."""
        return checkpoint.optimizer_tensors(self.optimizer, self.paradigm)

    def put_back(self, model: Trainable, optimizer: dict[str, Tensor]) -> None:
        """Take the weights of `model`, and what `full_optimizer` gave. Every process calls this."""
        self.paradigm.load_state_dict(model.state_dict())
        checkpoint.put_optimizer(self.optimizer, self.paradigm, optimizer)

    # --- files ----------------------------------------------------------------------------------------------

    def resume(self) -> int:
        """Load folder/last where there is one, and return the step to go on from."""
        last = self.folder / "last"
        if self.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            settle(last)
            settle(self.folder / "best")
        self.accelerator.wait_for_everyone()
        found = checkpoint.read_progress(last)
        if found is None:
            if self.accelerator.is_main_process:
                (self.folder / "history.jsonl").unlink(missing_ok=True)
            return 0
        if found["signature"] != self.signature:
            changed = _differences(found["signature"], self.signature)
            raise ValueError(
                f"{last} was trained with other settings ({changed}); choose another folder, or delete it "
                "to start again"
            )
        tensors = load_file(last / "optimizer.safetensors")
        self.put_back(type(self.paradigm).from_pretrained(last), tensors)
        checkpoint.load_random(last / "random.safetensors", self.accelerator.process_index)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(found["scaler"])
        self.best, self.best_step, self.seconds = found["best"], found["best_step"], found["seconds"]
        if self.accelerator.is_main_process:
            self._cut_history(found["step"])
        return int(found["step"])

    def save(self, step: int) -> None:
        """Replace folder/last by the state after `step` steps. Every process calls this."""
        random = {
            name: self.accelerator.gather(state[None].to(self.accelerator.device)).cpu()
            for name, state in checkpoint.random_states().items()
        }
        model, optimizer = self.full_model(), self.full_optimizer()
        if self.accelerator.is_main_process:
            with atomic_folder(self.folder / "last") as folder:
                model.write(folder)
                save_file(optimizer, folder / "optimizer.safetensors")
                save_file(random, folder / "random.safetensors")
                scaler = self.accelerator.scaler
                write_json(
                    folder / "progress.json",
                    {
                        "step": step,
                        "best": self.best,
                        "best_step": self.best_step,
                        "seconds": self.seconds,
                        "scaler": None if scaler is None else scaler.state_dict(),
                        "signature": self.signature,
                    },
                )
        self.accelerator.wait_for_everyone()

    def _cut_history(self, step: int) -> None:
        """Forget what was logged after the checkpoint: the steps are about to be taken again."""
        file = self.folder / "history.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
        whole = [line for line in lines if line.endswith("\n")]  # a killed process may leave half a line
        write_text(file, "".join(line for line in whole if json.loads(line)["step"] <= step))


def _digest(examples: Sequence[Any]) -> str:
    """sha256 of repr(list(examples)), of which no more than one example's is ever in memory."""
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
