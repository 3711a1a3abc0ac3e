"""Everything a training run needs to go on exactly where it was, without a pickle.

A checkpoint folder holds the paradigm (`Paradigm.write`), optimizer.safetensors (AdamW's moments by
parameter name), random.safetensors (the generator states of each process) and progress.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's per-parameter tensors as PARAMETER/KEY, on the processor."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def put_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back `optimizer_tensors`, onto each parameter's device; AdamW's step count stays on CPU."""
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        name, key = full.rsplit("/", 1)
        if name not in parameters:
            raise ValueError(f"the checkpoint has optimizer state of {name}, which this model does not have")
        where = torch.device("cpu") if key == "step" else parameters[name].device
        optimizer.state[parameters[name]][key] = value.to(where)


def random_states() -> dict[str, Tensor]:
    """This process's torch generator states: what dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def load_random(file: Path, process: int) -> None:
    """Set the generators of process number `process` from a file of all states, [process, bytes] each."""
    states = load_file(file)
    torch.set_rng_state(states["cpu"][process].clone())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"][process].clone())


def read_progress(folder: Path) -> dict[str, Any] | None:
    """progress.json of a checkpoint, or None where there is no checkpoint."""
    file = folder / "progress.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
