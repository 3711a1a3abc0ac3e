"""What a script asks of where it runs: its folder for itself, precision, patience, and a W&B run."""

import netrc
import os
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from paradigms.io.files import held, write_text
from paradigms.train.state import by_main

# How long processes wait for the one that searches a corpus; the default, 10 minutes on GPUs, ends the job.
PATIENCE = timedelta(days=2)


def take(folder: Path, accelerator: Accelerator) -> None:
    """The results folder is `held` on the main process: SystemExit of all while another run lives."""
    by_main(lambda: held(folder), accelerator)


def native_precision() -> str:
    """ "bf16" where matrix products in bfloat16 run natively, else "no"."""
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    # Others, and this one where ATEN_CPU_CAPABILITY makes it older, emulate it, slower than float32.
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if wide and native else "no"


def start_wandb(accelerator: Accelerator, settings: dict[str, Any], folder: Path) -> None:
    """Join the folder's W&B run, without a question.

    Offline without a key and WANDB_MODE, or where the server does not answer in 15 s; a line says so then.
    """
    import wandb

    file = folder / "wandb" / "run-id.txt"  # one W&B run for all that is trained here, however interrupted
    if not file.is_file():
        write_text(file, secrets.token_hex(4))
    options: dict[str, Any] = {"id": file.read_text(encoding="utf-8"), "resume": "allow", "dir": str(folder)}
    options["settings"] = wandb.Settings(init_timeout=15, silent=True)
    config = {  # which takes no lists
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
