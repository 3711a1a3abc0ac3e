"""Training speed and memory: our trainer and the peers', on the same encoder, pairs and batches.

ColBERT with the sum of MaxSim over in-batch negatives, AdamW: ours against the multi-vector trainer of
sentence-transformers and PyLate, each in its own environment, whose folders `--peers` names. Every
measurement is a process of its own; systems take turns within a round, so that other load hits all alike.
The same work is checked by a loss without dropout. Times belong to the machine, ratios travel.

The cost: on two threads a peer's step takes 4 s at batch 32 and about 40 s at 128; the default of 2 rounds
takes about 45 minutes with both peers, a quarter of that without. A peer's plain step at batch 256 wants
about 26 GiB, and is a failure where `memory` does not allow it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Who trains, on what, and for how many steps."""

    peers: list[str] = field(default_factory=list)
    """folders of virtual environments with sentence-transformers (6.0 or later) and with PyLate"""
    systems: list[str] = field(default_factory=list)
    """rows to run, by the beginning of their names, as in the table; all where none is given"""
    batches: list[int] = field(default_factory=lambda: [32, 128, 256])
    """pairs in a batch"""
    mini_batch: int = 32
    """texts per forward pass of gradient caching (our `chunk`), in batches that are larger"""
    chunks: list[int] = field(default_factory=lambda: [64])
    """more rows of ours: we keep the bits of dropout where the peers keep matrices, and fit more texts in the
    memory of their mini-batch"""
    examples: int = 256
    """timed in each round of a system: 8 steps at batch 32, 1 at 256 and beyond"""
    warmup: int = 1
    """steps before those"""
    rounds: int = 2
    """in each of which every system has its turn"""
    collection: str = "pydocs"
    """whose training queries, and for each one relevant document, are the pairs"""
    encoder: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    dim: int = 128
    query_length: int = 32
    document_length: int = 180
    temperature: float = 1.0
    """of the softmax over the sums of MaxSim; the peers' default"""
    learning_rate: float = 2e-5
    precision: str = "no"
    """no: float32; bf16"""
    device: str = "auto"
    """cpu, cuda; auto: cuda where there is one"""
    threads: int = 2
    memory: float = 0.0
    """GiB that a process may hold on a processor, beyond which it counts as out of memory; 0: three quarters
    of what is free at the start"""
    seed: int = 0
    output: str = "results/benchmarks/training"

    def __post_init__(self) -> None:
        for name in ("examples", "warmup", "rounds", "mini_batch", "threads", "dim"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} must be at least 1, got {getattr(self, name)}")
        if any(chunk < 1 for chunk in self.chunks):
            raise SystemExit(f"chunks must hold at least 1 text, got {self.chunks}")
        if not self.batches or min(self.batches) < 2:
            raise SystemExit(
                f"batches must hold 2 pairs or more: others of a batch are negatives, got {self.batches}"
            )
        if self.precision not in ("no", "bf16"):
            raise SystemExit(f"precision must be no or bf16, got {self.precision!r}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise SystemExit(f"device must be auto, cpu or cuda, got {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise SystemExit("device is cuda, and torch finds none here")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if not self.memory and self.device == "cpu":
            self.memory = round(0.75 * free_memory() / GiB, 1)

    def steps(self, batch: int) -> int:
        """Timed steps of a round."""
        return max(1, round(self.examples / batch))


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from rich.console import Console
from training_parts.pairs import prepare
from training_parts.tables import NAMES, GiB, Row, failure, report, show
from training_parts.trainers import Job

from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar

HERE = Path(__file__).parent
# A file that an environment has where it has the system.
MARKS = {
    "sentence_transformers": "sentence_transformers/multi_vector_encoder/trainer.py",
    "pylate": "pylate/losses/cached_contrastive.py",
}
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|cannot allocate memory|out of memory|not enough memory|MemoryError|bad_alloc", re.I
)


def rows(settings: Settings, systems: Iterable[str]) -> list[Row]:
    """What is measured; caching where a batch is more than one mini-batch."""
    found = [
        Row(system, batch, mini_batch)
        for batch in settings.batches
        for mini_batch in sorted({0, settings.mini_batch, *settings.chunks})
        for system in systems
        if mini_batch < batch and (system == "ours" or mini_batch in (0, settings.mini_batch))
    ]
    chosen = [row for row in found if row.name.startswith(tuple(settings.systems) or "")]
    if not chosen:
        raise SystemExit(
            f"no row is called {' or '.join(settings.systems)}: {', '.join({r.name for r in found})}"
        )
    return chosen


def main(settings: Settings) -> None:
    folder, console = Path(settings.output), Console()
    pythons = interpreters(settings.peers)
    for system in NAMES.keys() - pythons.keys():
        console.print(f"{NAMES[system]} is in none of the environments given, and left out.")
    chosen = rows(settings, pythons)
    try:
        work = prepare(settings, folder)
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(str(error)) from error
    measured: dict[Row, list[dict[str, Any]]] = {row: [] for row in chosen}
    found: dict[str, Any] = {}
    with progress_bar(True) as bar:
        task = bar.add_task("training", total=settings.rounds * len(chosen))
        for _ in range(settings.rounds):
            for row in chosen:
                bar.update(task, description=f"{row.name}, batch {row.batch}")
                if not failure(measured[row]):
                    measured[row].append(run_job(settings, row, work, pythons[row.system]))
                    found = report(settings, measured)
                    write_json(folder / "training.json", found)
                bar.advance(task)
    show(console, settings, found)
    console.print(f"Written to {folder / 'training.json'}.")


# --- processes ----------------------------------------------------------------------------------------


def interpreters(environments: Sequence[str]) -> dict[str, str]:
    """The interpreter of each system that is there: ours, and the peers of the environments."""
    pythons = {"ours": sys.executable}
    for environment in environments:
        python = Path(environment).absolute() / "bin" / "python"
        if not python.is_file():
            raise SystemExit(f"--peers: {environment} is not a virtual environment ({python} is missing)")
        for system, mark in MARKS.items():
            if any(Path(environment).glob(f"lib/python*/site-packages/{mark}")):
                pythons[system] = str(python)
    return pythons


def job_of(settings: Settings, row: Row, work: Path) -> Job:
    """What a process is told to do."""
    shared = {name: value for name, value in asdict(settings).items() if name in Job.__dataclass_fields__}
    own = {
        "work": str(work.resolve()),
        "memory": int(settings.memory * GiB),
        "steps": settings.steps(row.batch),
    }
    return Job(**shared | asdict(row) | own)


def run_job(settings: Settings, row: Row, work: Path, python: str) -> dict[str, Any]:
    """What `training_parts/trainers.py` answers; where it fails, why."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    threads = dict.fromkeys(names, str(settings.threads))
    more = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    with TemporaryDirectory() as scratch:
        write_json(Path(scratch) / "job.json", asdict(job_of(settings, row, work)))
        done = subprocess.run(
            [python, "-m", "training_parts.trainers", scratch],
            capture_output=True,
            text=True,
            cwd=HERE,  # where -m looks first
            env=os.environ | threads | more,
        )
        answer = Path(scratch) / "answer.json"
        if done.returncode or not answer.is_file():
            return {"failed": reason(done.returncode, done.stderr), "errors": done.stderr[-4000:]}
        return json.loads(answer.read_text())


def reason(status: int, errors: str) -> str:
    """Why a process failed, in a few words. A kernel that lacks memory kills (status -9)."""
    if status == -9 or OUT_OF_MEMORY.search(errors):
        return "out of memory"
    lines = errors.strip().splitlines()
    return lines[-1][:200] if lines else f"exit status {status}"


def free_memory() -> int:
    """Bytes that can be taken without swapping."""
    found = re.search(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text())
    assert found is not None
    return 1024 * int(found.group(1))


if __name__ == "__main__":
    main(Settings(**given))
