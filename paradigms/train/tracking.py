"""Set up a script's environment: lock the results folder, check the launch, join the W&B run."""

import netrc
import os
import secrets
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from paradigms.io.files import held, write_text
from paradigms.train.state import by_main

# How long processes wait while another one searches a corpus; torch's default on GPUs is 10 minutes.
PATIENCE = timedelta(days=2)


def take(folder: Path, accelerator: Accelerator) -> None:
    """Lock the results folder. All processes raise SystemExit while another run holds the lock."""
    by_main(lambda: held(folder), accelerator)


def check_launch() -> None:
    """Raise SystemExit if `accelerate launch` started processes for GPUs and this machine has none.

    Otherwise, a single process would train on the CPU, and each of several processes would run as if it were
    alone. A launch of one process without a configuration sets no LOCAL_RANK; it uses a GPU or the CPU.
    """
    cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")
    if cpu or torch.accelerator.is_available() or "LOCAL_RANK" not in os.environ:
        return
    if os.environ["LOCAL_RANK"] != "0":
        time.sleep(2)  # only the first process prints; the launcher then ends the others
        raise SystemExit(1)
    raise SystemExit(
        "accelerate launch is configured for GPUs, and torch finds none on this machine: launch one process "
        "without --config_file, or two with ACCELERATE_USE_CPU=true and experiments/configs/cpu_2.yaml"
    )


def start_wandb(accelerator: Accelerator, settings: dict[str, Any], folder: Path) -> None:
    """Join the folder's W&B run without prompts.

    W&B logs offline, and a line is printed, if there is neither a key nor WANDB_MODE, or if the server does
    not answer within 15 s.
    """
    import wandb

    file = folder / "wandb" / "run-id.txt"  # one W&B run per folder, over all interruptions
    if not file.is_file():
        write_text(file, secrets.token_hex(4))
    options: dict[str, Any] = {"id": file.read_text(encoding="utf-8"), "resume": "allow", "dir": str(folder)}
    options["settings"] = wandb.Settings(init_timeout=15, silent=True)
    config = {  # W&B does not accept lists
        name: value if isinstance(value, int | float | str) else str(value)
        for name, value in settings.items()
    }

    def join(**mode: str) -> None:
        accelerator.init_trackers("retrieval-paradigms", config, {"wandb": options | mode})

    try:
        if "WANDB_MODE" not in os.environ and not _has_key():
            raise wandb.errors.CommError("no key")
        join()
    except wandb.errors.CommError as error:
        where = folder / "wandb"
        accelerator.print(f"W&B: {error}, logging offline to {where} (--tracker none: not at all)")
        join(mode="offline")


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1]
    try:
        return netrc.netrc().authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
