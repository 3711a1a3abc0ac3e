"""The device that models run on: the best one of this machine, or that of --device.

accelerate reads the same environment variable.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIABLE = "ACCELERATE_TORCH_DEVICE"
HELP = "cpu, cuda, cuda:N or mps; by default the GPU if there is one"


def choose_device(name: str) -> None:
    """Run the models of this process on a device: cpu, cuda, cuda:N or mps. "" chooses nothing.

    Raises ValueError if this machine has no such device, or if this process is one of several: a launch
    gives each of them its device.
    """
    if not name:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--device is for one process: a launch of several chooses the device of each")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"--device must be cpu, cuda, cuda:N or mps, got {name!r}")
    import torch

    kind, _, number = name.partition(":")
    best = torch.accelerator.current_accelerator(check_available=True)
    there = best is not None and best.type == kind and int(number or 0) < torch.accelerator.device_count()
    if kind != "cpu" and not there:
        raise ValueError(f"--device {name}: torch finds no such device on this machine")
    os.environ[VARIABLE] = name


def chosen_device() -> torch.device:
    """Return the device of `choose_device`; if none was chosen, the GPU if there is one, or the CPU."""
    import torch

    return torch.device(os.environ.get(VARIABLE) or ("cuda" if torch.cuda.is_available() else "cpu"))
