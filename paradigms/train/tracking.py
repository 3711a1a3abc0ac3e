"""One accelerator per script: device, precision, processes, and where its numbers are logged."""

import netrc
import os
import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from paradigms.io.files import held, write_text
from paradigms.train.state import by_main

Started = TypeVar("Started")
PRECISIONS = ("auto", "no", "bf16", "fp16")
# How long processes wait for the one that searches a corpus; the default, 10 minutes on GPUs, ends the job.
PATIENCE = timedelta(days=2)


def start(*, tracker: str, precision: str, config: dict[str, Any], folder: Path) -> Accelerator:
    """An Accelerator that logs to `tracker`: "wandb" (`wandb_or_offline`), or "none".

    precision: "no", "bf16", "fp16", or "auto": bf16 where the hardware multiplies it natively. SystemExit
    says what is wrong with either, such as fp16 on a CPU, which would run in float32.
    """
    if precision not in PRECISIONS:
        raise SystemExit(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if tracker not in ("wandb", "none"):
        raise SystemExit(f"tracker must be wandb or none, got {tracker!r}")
    precision = native_precision() if precision == "auto" else precision
    accelerator = Accelerator(
        mixed_precision=precision,
        log_with=None if tracker == "none" else tracker,
        project_dir=folder,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
    )
    if precision == "fp16" and accelerator.device.type == "cpu":
        raise SystemExit("precision fp16 needs a GPU: a processor would silently compute in float32")
    if tracker == "wandb":
        take(folder, accelerator)  # before its W&B run is joined
        _start_wandb(accelerator, config, folder)
    return accelerator


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


def _start_wandb(accelerator: Accelerator, config: dict[str, Any], folder: Path) -> None:
    if not accelerator.is_main_process:  # which alone logs
        return
    file = folder / "wandb" / "run-id.txt"  # one W&B run for all that is trained here, however interrupted
    if not file.is_file():
        write_text(file, secrets.token_hex(4))
    goes_on = {"id": file.read_text(encoding="utf-8"), "resume": "allow"}

    def begin(options: dict[str, Any]) -> None:
        accelerator.init_trackers("retrieval-paradigms", config, {"wandb": options | goes_on})

    wandb_or_offline(begin, folder, accelerator.print)


def wandb_or_offline(
    begin: Callable[[dict[str, Any]], Started], folder: Path, say: Callable[[str], object] = print
) -> Started:
    """begin(options of wandb.init) under the W&B policy of every script: logs in `folder`, never a question.

    Offline without a key and WANDB_MODE, or where the server does not answer in 15 s; `say` gets a line then.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"dir": str(folder), "settings": wandb.Settings(init_timeout=15, silent=True)}
    offline = options | {"mode": "offline"}
    if "WANDB_MODE" not in os.environ and not _has_key():
        say(f"W&B: no key, logging offline to {folder / 'wandb'} (--tracker none: not at all)")
        return begin(offline)
    try:
        return begin(options)
    except wandb.errors.CommError as error:
        say(f"W&B: no connection ({error}), logging offline to {folder / 'wandb'}")
        return begin(offline)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1]
    try:
        return netrc.netrc().authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
