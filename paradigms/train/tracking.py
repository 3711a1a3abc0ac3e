"""Set up a script's environment: lock the results folder, join the W&B run."""

import netrc
import os
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from paradigms.io.files import held, write_text
from paradigms.train.state import by_main, check_shared

# How long processes wait while another one searches a corpus; torch's default on GPUs is 10 minutes.
PATIENCE = timedelta(days=2)


def take(folder: Path, accelerator: Accelerator) -> None:
    """Lock the results folder. All processes raise SystemExit if it is locked or one does not see it."""
    by_main(lambda: held(folder), accelerator)
    try:
        check_shared(folder, accelerator)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error


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
