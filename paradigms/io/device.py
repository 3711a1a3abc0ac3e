"""Choose the device for all models: the value of --device or, by default, the GPU if there is one.

The choice is stored in an environment variable that accelerate also reads.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIABLE = "ACCELERATE_TORCH_DEVICE"
HELP = "cpu, cuda, cuda:N or mps; by default the GPU if there is one"


def choose_device(name: str) -> None:
    """Choose the device for this process's models: cpu, cuda, cuda:N or mps; "" keeps the default."""
    if not name:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--device is for a single process: a launch of several processes sets their devices")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"--device must be cpu, cuda, cuda:N or mps, got {name!r}")
    import torch

    kind, _, number = name.partition(":")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    exists = gpu is not None and gpu.type == kind and int(number or 0) < torch.accelerator.device_count()
    if kind != "cpu" and not exists:
        raise ValueError(f"--device {name}: torch finds no such device on this machine")
    os.environ[VARIABLE] = name


def chosen_device() -> torch.device:
    """Return the device set by `choose_device`. The default is the GPU if there is one, else the CPU."""
    import torch

    return torch.device(os.environ.get(VARIABLE) or ("cuda" if torch.cuda.is_available() else "cpu"))


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    names = re.search(r"^model name\s*:\s*(.*)", info.read_text() if info.is_file() else "", re.M)
    return names[1] if names else platform.processor() or platform.machine()
