"""Start a training script: check settings, lock the output folder, open the collection."""

import hashlib
import netrc
import os
import platform
import secrets
from collections.abc import Collection as Names
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import InitProcessGroupKwargs
from rich.console import Console

from paradigms.data import Collection, check_collection, load_collection
from paradigms.data.trec import check_ids
from paradigms.encoder.backbone import check_backbone
from paradigms.encoder.precision import choose_precision, native_precision
from paradigms.encoder.sources import cached
from paradigms.io.checks import differences, read_json
from paradigms.io.device import chosen_device
from paradigms.io.files import lock_until_exit, sha256, write_json, write_text
from paradigms.io.plugins import LOADED
from paradigms.io.terminal import Terminal, printable
from paradigms.train.checkpoints import STATES
from paradigms.train.heartbeat import start_heartbeat
from paradigms.train.parallel import by_main, check_shared, sharded

# How long processes wait while another one searches a corpus; torch's default on GPUs is 10 minutes.
PATIENCE = timedelta(days=2)
BEFORE_RESULTS = {"config.json", "environment.json", "wandb", STATES}  # left by a run that fails at the start


def begin(settings: Any) -> tuple[Accelerator, Console]:
    """Check a script's settings and lock its output folder; return the accelerator and a console.

    settings: an object with the fields output, precision and, optionally, tracker. Precision "auto" is bf16
    if the hardware multiplies it natively. Only the main process's console prints. Raises SystemExit if
    another run has locked the folder, if precision is fp16 on a CPU, or if the launch needs GPUs that are
    missing. If the collection or backbone does not exist, SystemExit is raised before the folder is created.
    """
    check_names(settings)
    folder = Path(settings.output)
    tracker = getattr(settings, "tracker", "none")
    automatic = settings.precision == "auto"
    accelerator = Accelerator(
        mixed_precision=native_precision(chosen_device()) if automatic else settings.precision,
        log_with=None if tracker == "none" else tracker,
        project_dir=folder,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
    )
    start_heartbeat()
    choose_precision(accelerator.mixed_precision)
    if settings.precision == "fp16" and accelerator.device.type == "cpu":
        raise SystemExit("precision fp16 needs a GPU: a processor would silently compute in float32")
    lock_output(folder, accelerator)  # before joining the folder's W&B run
    if tracker == "wandb" and accelerator.is_main_process:  # only the main process logs
        start_wandb(accelerator, asdict(settings), folder)
    return accelerator, Terminal(quiet=not accelerator.is_main_process)


def check_names(settings: Any) -> None:
    """Raise SystemExit if a collection or a backbone in a script's settings does not exist."""
    systems = getattr(settings, "chosen", {}).values()
    names = [getattr(settings, name, "") for name in ("backbone", "second")]
    try:
        for collection in [getattr(settings, "collection", ""), *getattr(settings, "collections", [])]:
            if collection:
                check_collection(collection)
        for name in dict.fromkeys([*names, *(system.backbone for system in systems)]):
            if name and name != "small":
                check_backbone(name)
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(printable(error)) from error


def keep_settings(settings: dict[str, Any], folder: Path, free: Names[str]) -> None:
    """Write config.json. Raises SystemExit if the folder contains results made with different settings.

    A setting that names a file, folder or collection may have another value if its `content`, or the
    collection's "fingerprint", is the same. A content that config.json lacks, such as that of a checkpoint
    which was downloaded later, is not compared. free: names of settings that may differ. Another setting that
    one side lacks, because it was introduced later or has been removed, counts as different only if its value
    on the other side is true or non-empty.
    """
    file = folder / "config.json"
    if file.is_file() and any(entry.name not in BEFORE_RESULTS for entry in folder.iterdir()):
        old = read_json(file)
        free = {*free, *(["collection"] if "fingerprint" in settings else [])}
        for name in settings:
            content_name = f"content of {name}"
            if content_name not in old:
                free.add(content_name)
            elif content_name in settings:
                free.add(name)
        now = {name: value for name, value in settings.items() if name not in free}
        before = {name: value for name, value in old.items() if name not in free}
        before = {n: v for n, v in before.items() if n in now or not n.startswith("content of ")}
        if changed := differences(before, now):
            raise SystemExit(
                f"{folder} holds results with other settings ({changed}). Choose another --output, or delete "
                "that folder."
            )
    write_json(file, settings)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = "".join(f"{sha256(file)} {file.relative_to(path)}\n" for file in files)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


def content(**paths: str) -> dict[str, str]:
    """Return what identifies the given files, folders and checkpoints of the hub; missing ones have nothing.

    This is the checksum of a file or folder, and the commit of a checkpoint of the hub in the local cache.
    """
    contents = {}
    for name, path in paths.items():
        if not path:
            continue  # Path("") is the current folder
        if Path(path).exists():
            contents[f"content of {name}"] = checksum(Path(path))
        elif snapshot := cached(path):
            contents[f"content of {name}"] = snapshot.name
    return contents


def open_collection(name: str, documents: int | None, console: Console) -> Collection:
    """Open a collection and print its size and problems. Raises SystemExit if it cannot be opened.

    One process of a launch reads it; the others receive ids, queries, and the places of texts in files.
    documents: size of a fixed subset, for pydocs only. All ids must be valid in TREC runs.
    """

    def read() -> Collection:
        try:
            collection = load_collection(name, documents=documents)
            check_ids(collection.corpus.ids, "document id")
            for split in collection.splits.values():
                check_ids(split.queries, "query id")
        except (OSError, ValueError, ImportError) as error:
            raise SystemExit(printable(error)) from error
        return collection

    collection = by_main(read, PartialState())
    queries = ", ".join(f"{len(split.queries):,} {name}" for name, split in collection.splits.items())
    console.print(f"{collection.name}: {len(collection.corpus):,} documents; queries: {queries}")
    if collection.problems:
        console.print(f"Problems in the data:\n{collection.problems}")
    return collection


def environment(accelerator: Accelerator) -> dict[str, Any]:
    packages = ("torch", "transformers", "accelerate", "numpy", "bm25s", "ir-measures")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(accelerator.device),
        "processes": accelerator.num_processes,
        "sharded": sharded(),
        "threads": torch.get_num_threads(),
        "precision": accelerator.mixed_precision,
        **{f"plug-in {file.name}": sha256(file) for file in LOADED},
    } | {name: version(name) for name in packages}


def lock_output(folder: Path, accelerator: Accelerator) -> None:
    """Lock the results folder. All processes raise SystemExit if it is locked or one does not see it."""
    by_main(lambda: lock_until_exit(folder), accelerator)
    try:
        check_shared(folder, accelerator)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error


def start_wandb(accelerator: Accelerator, settings: dict[str, Any], folder: Path) -> None:
    """Join the results folder's W&B run without prompts.

    W&B writes only below the folder. It logs offline, and a line is printed, if there is neither a key nor
    WANDB_MODE, or if the server does not answer within 15 s.
    """
    import wandb

    file = folder / "wandb" / "run-id.txt"  # one W&B run per folder, over all interruptions
    if not file.is_file():
        write_text(file, secrets.token_hex(4))
    options = {
        "id": file.read_text(encoding="utf-8"),
        "resume": "allow",
        "dir": str(folder),
        "settings": wandb.Settings(init_timeout=15, silent=True),
    }
    for name in ("cache", "data"):  # by default in the home folder
        os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(file.with_name(name).resolve()))
    launched = {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}

    def join(**mode: str) -> None:
        accelerator.init_trackers("retrieval-paradigms", settings | launched, {"wandb": options | mode})

    try:
        if "WANDB_MODE" not in os.environ and not _has_wandb_key():
            raise wandb.errors.CommError("no key")
        join()
    except wandb.errors.CommError as error:
        where = folder / "wandb"
        accelerator.print(f"W&B: {error}, logging offline to {where} (--tracker none: not at all)")
        join(mode="offline")


def summarise(accelerator: Accelerator, values: Mapping[str, float]) -> None:
    if accelerator.trackers:
        accelerator.get_tracker("wandb").tracker.summary.update(dict(values))


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1]
    try:
        return netrc.netrc().authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
