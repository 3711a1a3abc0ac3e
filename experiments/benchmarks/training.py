"""Training speed and memory: our trainer and the peers', on the same encoder, pairs and batches.

ColBERT with the sum of MaxSim over in-batch negatives, AdamW: ours against the multi-vector trainer of
sentence-transformers and PyLate, each in its own environment, whose folders `--peers` names. Every
measurement is a process of its own; systems take turns within a round, so that other load hits all alike.
The same work is checked by a loss without dropout. Times belong to the machine, ratios travel.

The cost: on two threads a peer's step takes 4 s at batch 32 and about 40 s at 128; the default of 2 rounds of
3 steps takes about an hour with both peers, a quarter of that without. A peer's plain step at batch 256 wants
about 26 GiB, and is a failure where `memory` does not allow it.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from training_parts.pairs import prepare
from training_parts.trainers import CHECKED, Job

from paradigms.files import write_json
from paradigms.progress import progress_bar
from paradigms.settings import from_command_line

HERE = Path(__file__).parent
NAMES = {"ours": "ours", "sentence_transformers": "sentence-transformers", "pylate": "PyLate"}
# A file that an environment has where it has the system.
MARKS = {
    "sentence_transformers": "sentence_transformers/multi_vector_encoder/trainer.py",
    "pylate": "pylate/losses/cached_contrastive.py",
}
TARGETS = {32: 1.2, 128: 2.0, 256: 2.0}  # batch -> times faster than the faster peer
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|cannot allocate memory|out of memory|not enough memory|MemoryError|bad_alloc", re.I
)
GiB = 2**30


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
    steps: int = 2
    """timed steps of a round"""
    warmup: int = 1
    """steps before them"""
    rounds: int = 2
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
        for name in ("steps", "warmup", "rounds", "mini_batch", "threads", "dim"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} must be at least 1, got {getattr(self, name)}")
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


@dataclass(frozen=True)
class Row:
    """A system on batches of one size. mini_batch: of gradient caching; 0 = without."""

    system: str
    batch: int
    mini_batch: int

    @property
    def name(self) -> str:
        return NAMES[self.system] + (f", cached {self.mini_batch}" if self.mini_batch else "")


def rows(settings: Settings, systems: Iterable[str]) -> list[Row]:
    """What is measured; caching where a batch is more than one mini-batch."""
    found = [
        Row(system, batch, mini_batch)
        for batch in settings.batches
        for mini_batch in (0, settings.mini_batch)
        for system in systems
        if mini_batch < batch
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
    work = prepare(settings, folder)
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


# --- processes ----------------------------------------------------------------------------------------


def interpreters(environments: Sequence[str]) -> dict[str, str]:
    """The interpreter of each system that is there: ours, and the peers of the environments."""
    pythons = {"ours": sys.executable}
    for environment in environments:
        python = Path(environment) / "bin" / "python"
        if not python.is_file():
            raise SystemExit(f"--peers: {environment} is not a virtual environment ({python} is missing)")
        for system, mark in MARKS.items():
            if any(Path(environment).glob(f"lib/python*/site-packages/{mark}")):
                pythons[system] = str(python)
    return pythons


def job_of(settings: Settings, row: Row, work: Path) -> Job:
    """What a process is told to do."""
    shared = {name: value for name, value in asdict(settings).items() if name in Job.__dataclass_fields__}
    return Job(**shared | asdict(row) | {"work": str(work.resolve()), "memory": int(settings.memory * GiB)})


def run_job(settings: Settings, row: Row, work: Path, python: str) -> dict[str, Any]:
    """What `training_parts/trainers.py` answers; where it fails, why."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    threads = dict.fromkeys(names, str(settings.threads))
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    more = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    with TemporaryDirectory() as scratch:
        write_json(Path(scratch) / "job.json", asdict(job_of(settings, row, work)))
        done = subprocess.run(
            [python, "-m", "training_parts.trainers", scratch],
            capture_output=True,
            text=True,
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


# --- tables -------------------------------------------------------------------------------------------


def failure(answers: Sequence[Mapping[str, Any]]) -> str:
    """Why a row has failed; "" where it has not."""
    return next((answer["failed"] for answer in answers if "failed" in answer), "")


def report(settings: Settings, measured: Mapping[Row, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Everything that is written: settings, versions, a row each with its rounds, targets."""
    table = [summary(row, answers) for row, answers in measured.items() if answers]
    for row in table:
        peers = [r for r in table if r["batch"] == row["batch"] and r["system"] != "ours" and not r["failed"]]
        fastest = max(peers, key=lambda r: r["examples_per_s"], default=None)
        ours = row["system"] == "ours" and not row["failed"]
        row["ratio"] = row["examples_per_s"] / fastest["examples_per_s"] if fastest and ours else None
    versions = {row["system"]: row["rounds"][0]["versions"] for row in table if not row["failed"]}
    return {
        "settings": asdict(settings),
        "versions": versions,
        "rows": table,
        "losses_differ_by": disagreement(table),
        "targets": targets(table),
    }


def summary(row: Row, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over rounds of examples per second, of each its timed steps together; the largest peak memory."""
    failed = failure(answers)
    found: dict[str, Any] = asdict(row) | {"name": row.name, "failed": failed, "rounds": list(answers)}
    if not failed:
        rates = [row.batch * len(a["seconds"]) / sum(a["seconds"]) for a in answers]
        found |= {
            "examples_per_s": statistics.mean(rates),
            "slowest": min(rates),
            "fastest": max(rates),
            "memory_gib": max(a["memory"] for a in answers) / GiB,
            "loss": answers[0]["loss"],
            "first_loss": answers[0]["first_loss"],
        }
    return found


def disagreement(table: Sequence[Mapping[str, Any]]) -> float | None:
    """How far the losses without dropout lie apart, over the smallest: all are of the same pairs."""
    losses = [row["loss"] for row in table if not row["failed"]]
    return (max(losses) - min(losses)) / min(losses) if losses else None


def targets(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was wanted of each batch, and what it is, both of one row of ours.

    That is the fastest that holds no more memory than the cached loss of sentence-transformers; where none
    does, the fastest.
    """
    found: list[dict[str, Any]] = []
    good = [row for row in table if not row["failed"]]
    for batch in sorted({row["batch"] for row in good} & TARGETS.keys()):
        mine = [row for row in good if row["batch"] == batch and row["system"] == "ours"]
        peers = [row for row in good if row["batch"] == batch and row["system"] != "ours"]
        if not mine or not peers:
            continue
        cached = [r for r in peers if r["system"] == "sentence_transformers" and r["mini_batch"]]
        limit = cached[0]["memory_gib"] if cached else None
        able = [row for row in mine if limit is None or row["memory_gib"] <= limit]
        row = max(able or mine, key=lambda r: r["examples_per_s"])
        rival = max(peers, key=lambda r: r["examples_per_s"])
        ratio = row["examples_per_s"] / rival["examples_per_s"]
        note = f"{row['name']} against {rival['name']}"
        found.append(
            _target(f"batch {batch}: times faster", TARGETS[batch], ratio, ratio >= TARGETS[batch], note)
        )
        if limit is not None:
            memory, note = row["memory_gib"], f"{row['name']} against {cached[0]['name']}"
            found.append(_target(f"batch {batch}: GiB, at most", limit, memory, memory <= limit, note))
    return found


def _target(what: str, wanted: float, value: float, holds: bool, note: str) -> dict[str, Any]:
    return {"target": what, "wanted": wanted, "value": value, "holds": holds, "of": note}


def show(console: Console, settings: Settings, found: Mapping[str, Any]) -> None:
    where = f"{settings.threads} threads" if settings.device == "cpu" else torch.cuda.get_device_name()
    precision = "float32" if settings.precision == "no" else settings.precision
    title = (
        f"Training on {settings.collection}: queries of {settings.query_length} tokens, documents of "
        f"{settings.document_length}, {settings.dim} dimensions, {precision}, {where}"
    )
    shown = Table(title=title)
    columns = ("batch", "system", "examples/s", "rounds", "peak GiB", "loss", "first step", "times faster")
    for name in columns:
        shown.add_column(name, justify="left" if name == "system" else "right", no_wrap=name == "system")
    for row in found["rows"]:
        bold = "bold" if row["system"] == "ours" else None
        if row["failed"]:
            shown.add_row(str(row["batch"]), row["name"], "failed", style=bold)
            continue
        shown.add_row(
            str(row["batch"]), row["name"], f"{row['examples_per_s']:.2f}",
            f"{row['slowest']:.2f} to {row['fastest']:.2f}", f"{row['memory_gib']:.2f}",
            f"{row['loss']:.4f}", f"{row['first_loss']:.3f}",
            "" if row["ratio"] is None else f"{row['ratio']:.2f}", style=bold,
        )  # fmt: skip
    console.print(shown)
    for row in found["rows"]:
        if row["failed"]:
            console.print(f"{row['name']}, batch {row['batch']}: {row['failed']}")
    memory = (
        "largest resident set of the process" if settings.device == "cpu" else "most that torch allocated"
    )
    console.print(
        f"Means of {settings.rounds} rounds of {settings.steps} steps after {settings.warmup}, with the "
        f"slowest and the fastest. Peak: {memory}. Times faster: than the fastest peer. Loss: of {CHECKED} "
        "pairs without dropout; first step: with it, of a batch. PyLate pads every text to the full length, "
        "the others to the longest of a forward pass."
    )
    if found["losses_differ_by"] is not None:
        console.print(f"The losses without dropout differ by {found['losses_differ_by']:.1e} of their value.")
    for versions in found["versions"].values():
        console.print(", ".join(f"{package} {version}" for package, version in versions.items()))
    if found["targets"]:
        wanted = Table(title="Targets")
        for name in ("target", "wanted", "measured", "holds", "of"):
            wanted.add_column(name, justify="right" if name in ("wanted", "measured") else "left")
        for t in found["targets"]:
            holds = "yes" if t["holds"] else "no"
            wanted.add_row(t["target"], f"{t['wanted']:.2f}", f"{t['value']:.2f}", holds, t["of"])
        console.print(wanted)
    console.print(f"Written to {Path(settings.output) / 'training.json'}.")


if __name__ == "__main__":
    main(from_command_line(Settings, __doc__ or ""))
