"""Compare our trainer's speed and memory with peers' trainers, on the same encoder, pairs and batches.

The model is ColBERT, trained with AdamW on the sum of MaxSim with in-batch negatives. The peers are the
multi-vector trainer of sentence-transformers and PyLate. `--peers '[sentence-transformers, pylate]'` installs
each peer with pip into a separate virtual environment, once. Every measurement runs in a new process; systems
take turns within a round, so that other load affects all systems alike. A loss without dropout checks that
all systems do the same work. Compare ratios: seconds depend on the machine.

With two threads, the default of 2 rounds takes about 45 minutes with both peers, and a quarter of this time
without peers. A peer's step at batch size 256 without gradient caching needs about 26 GiB, and counts as
failed if `memory` is smaller.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings for the trainers, their data and the numbers of steps."""

    peers: list[Literal["sentence-transformers", "pylate"]] = field(default_factory=list)
    """peers to compare with; missing peers are installed"""
    environments: str = "results/benchmarks/environments"
    """folder of the peers' virtual environments"""
    batches: list[int] = field(default_factory=lambda: [32, 128, 256])
    """batch sizes, in pairs"""
    mini_batch: int = 32
    """texts per forward pass of gradient caching (our `chunk`), for batches larger than this"""
    chunks: list[int] = field(default_factory=lambda: [64])
    """more values of our `chunk`: our dropout masks take one bit per element, so more texts fit into the
    memory of a peer's mini-batch"""
    examples: int = 256
    """timed training pairs per system and round, after a warm-up step: 8 steps at batch 32, 1 step from 256
    on"""
    rounds: int = 2
    """rounds, in each of which every system is measured once"""
    collection: str = "pydocs"
    """collection with the pairs: training queries, each with one relevant document"""
    encoder: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    dim: int = 128
    query_length: int = 32
    document_length: int = 180
    precision: Literal["no", "bf16"] = "no"
    """no: float32"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if available"""
    threads: int = 2
    memory: float = 0.0
    """GiB that a process may use on a CPU before it counts as out of memory; 0: three quarters of the free
    memory"""
    seed: int = 0
    output: str = "results/benchmarks/training"

    def __post_init__(self) -> None:
        for name in ("examples", "rounds", "mini_batch", "threads", "dim"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} must be at least 1, got {getattr(self, name)}")
        if min(self.chunks, default=1) < 1 or min(self.batches, default=0) < 2:
            raise SystemExit(
                "chunks must be at least 1 text, and batches at least 2 pairs, because a batch's other "
                f"documents are negatives; got {self.chunks}, {self.batches}"
            )
        if self.device == "cuda" and not torch.cuda.is_available():
            raise SystemExit("device is cuda, but torch finds no CUDA device")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if not self.memory and self.device == "cpu":
            self.memory = round(0.75 * memory("MemAvailable", "/proc/meminfo") / GiB, 1)

    def steps(self, batch: int) -> int:
        """Return the number of timed steps in a round."""
        return max(1, round(self.examples / batch))


if __name__ == "__main__":  # before the slow imports
    arguments = command_line(Settings, __doc__ or "")

import torch
from parts.shared import GiB, last_line, memory, run_worker
from parts.trainers import CHECKED, WARMUP, Job
from rich.table import Table
from safetensors.torch import save_file

from paradigms.data import Collection, load_collection
from paradigms.encoder.backbone import load_backbone, load_tokenizer, packaged, quiet
from paradigms.io.files import atomic_folder, atomic_text, contents, held, write_json
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal, shown
from paradigms.saving.layouts import SAVED

# Packages that pip installs for each peer; the peers' requirements conflict. [train] brings accelerate,
# datasets.
REQUIREMENTS = {
    "sentence-transformers": ("sentence-transformers[train]>=6", "torch<2.14"),
    "pylate": ("pylate", "torch<2.14"),
}
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|cannot allocate memory|out of memory|not enough memory|MemoryError|bad_alloc", re.I
)


@dataclass(frozen=True)
class Row:
    """A system at one batch size. mini_batch: texts per pass of gradient caching; 0 means no caching."""

    system: str
    batch: int
    mini_batch: int

    @property
    def name(self) -> str:
        return self.system + (f", cached {self.mini_batch}" if self.mini_batch else "")


def rows(settings: Settings) -> list[Row]:
    """Return the rows to measure; batches larger than a mini-batch use gradient caching."""
    return [
        Row(system, batch, mini_batch)
        for batch in settings.batches
        for mini_batch in sorted({0, settings.mini_batch, *settings.chunks})
        for system in ("ours", *settings.peers)
        if mini_batch < batch and (system == "ours" or mini_batch in (0, settings.mini_batch))
    ]


def main(settings: Settings) -> None:
    folder, console = held(settings.output), Terminal()
    try:
        pythons = {peer: installed(peer, Path(settings.environments), console) for peer in settings.peers}
        work = prepare(settings, folder)
    except (OSError, ValueError, ImportError, subprocess.CalledProcessError) as error:
        raise SystemExit(shown(error)) from error
    pythons["ours"] = sys.executable
    measured: dict[Row, list[dict[str, Any]]] = {row: [] for row in rows(settings)}
    table: list[dict[str, Any]] = []
    with progress_bar() as bar:
        task = bar.add_task("training", total=settings.rounds * len(measured))
        for _ in range(settings.rounds):
            for row, answers in measured.items():
                bar.update(task, description=f"{row.name}, batch {row.batch}")
                if not failure(answers):
                    answers.append(run_job(settings, row, work, pythons[row.system]))
                    table = report(measured)
                    write_json(folder / "training.json", {"settings": asdict(settings), "rows": table})
                bar.advance(task)
    show(console, settings, table)
    console.print(f"Written to {folder / 'training.json'}.")


def installed(peer: str, environments: Path, console: Terminal) -> str:
    """Return the interpreter of a peer's environment, which is created if missing."""
    folder = environments.absolute() / peer
    python, done = str(folder / "bin" / "python"), folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[peer])
    if not (done.is_file() and done.read_text() == wanted):
        console.print(f"Installing {peer} into {folder}: a few minutes")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]], check=True)
        done.write_text(wanted)
    return python


def prepare(settings: Settings, folder: Path) -> Path:
    """Write the encoder, the projection and the pairs to the folder `Job.work`."""
    needed = max(CHECKED, *(b * (WARMUP + settings.steps(b)) for b in settings.batches))
    pairs = distinct_pairs(load_collection(settings.collection), needed, settings.seed)
    source = packaged(settings.encoder)
    backbone, tokenizer = load_backbone(source), load_tokenizer(source)
    torch.manual_seed(settings.seed)
    projection = torch.nn.init.orthogonal_(torch.empty(settings.dim, backbone.config.hidden_size))
    with atomic_folder(folder / "work", contents(*SAVED, "encoder/", "pairs.jsonl")) as work:
        with quiet():
            backbone.save_pretrained(work / "encoder")
        tokenizer.save_pretrained(work / "encoder")
        save_file({"projection": projection}, work / "projection.safetensors")
        with atomic_text(work / "pairs.jsonl") as file:
            for query, document in pairs:
                file.write(json.dumps({"query": query, "document": document}) + "\n")
    return folder / "work"


def distinct_pairs(collection: Collection, number: int, seed: int) -> list[tuple[str, str]]:
    """Draw `number` training queries, each with one of its relevant documents.

    No document is relevant to two of these queries, so every other document in a batch is a negative, whether
    or not a trainer knows the judgements.
    """
    split = collection.splits.get("train")
    if split is None:
        raise SystemExit(f"{collection.name} has no training queries")
    queries = sorted(split.judgements)
    places = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    for query in (queries[n] for n in places.tolist()):
        grades = split.judgements[query]
        ids = (id for id, grade in grades.items() if grade > 0)
        relevant = {collection.corpus[collection.corpus.position(id)] for id in ids}
        if relevant and not relevant & seen:
            seen |= relevant
            pairs.append((split.queries[query], min(relevant)))
        if len(pairs) == number:
            return pairs
    raise SystemExit(
        f"{collection.name} has {len(pairs)} training queries without a relevant document in common, and "
        f"{number} are needed: ask for smaller batches or fewer examples"
    )


def job_of(settings: Settings, row: Row, work: Path) -> Job:
    """Return the job that a worker process runs for a row."""
    shared = {name: value for name, value in asdict(settings).items() if name in Job.__dataclass_fields__}
    limits = {"work": str(work.resolve()), "memory": int(settings.memory * GiB)}
    return Job(**shared | asdict(row) | limits | {"steps": settings.steps(row.batch)})


def run_job(settings: Settings, row: Row, work: Path, python: str) -> dict[str, Any]:
    """Return the answer of `parts/trainers.py`, or the reason for a failure.

    Exit status −9 means out of memory.
    """
    done = run_worker("trainers", asdict(job_of(settings, row, work)), python, settings.threads)
    if not done.returncode:
        return last_line(done.stdout)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    full = done.returncode == -9 or OUT_OF_MEMORY.search(done.stderr)
    return {"failed": "out of memory" if full else lines[-1][:200], "errors": done.stderr[-4000:]}


def failure(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return the reason why a row failed, or "" if it succeeded."""
    return next((answer["failed"] for answer in answers if "failed" in answer), "")


def report(measured: Mapping[Row, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Make rows of means over rounds; `ratio` is our speed divided by the fastest peer's, per batch size."""
    table = [summary(row, answers) for row, answers in measured.items() if answers]
    good = [row for row in table if not row["failed"]]
    for row in good:
        peers = [r["pairs_per_s"] for r in good if r["batch"] == row["batch"] and r["system"] != "ours"]
        row["ratio"] = row["pairs_per_s"] / max(peers) if peers and row["system"] == "ours" else None
    return table


def summary(row: Row, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row's pairs per second of wall-clock and CPU time, and the largest peak memory."""
    measured: dict[str, Any] = asdict(row) | {"name": row.name, "failed": failure(answers)}
    measured["rounds"] = list(answers)
    if measured["failed"]:
        return measured
    rates, of_cpu = (
        [row.batch * len(answer[name]) / sum(answer[name]) for answer in answers]
        for name in ("seconds", "cpu_seconds")
    )
    return measured | {
        "pairs_per_s": statistics.mean(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "pairs_per_cpu_s": statistics.mean(of_cpu),
        "memory_gib": max(answer["memory"] for answer in answers) / GiB,
        "loss": answers[0]["loss"],
    }


def show(console: Terminal, settings: Settings, rows: Sequence[Mapping[str, Any]]) -> None:
    where = f"{settings.threads} threads" if settings.device == "cpu" else torch.cuda.get_device_name()
    good, table = [row for row in rows if not row["failed"]], Table(title=f"Training, {where}")
    for name in ("batch", "system", "pairs/s", "per\nCPU s", "peak\nGiB", "times\nfaster"):
        table.add_column(name, justify="left" if name == "system" else "right", no_wrap=True)
    for row in rows:
        names = ("pairs_per_s", "pairs_per_cpu_s", "memory_gib", "ratio")
        cells = [f"{row[name]:.2f}" if row.get(name) else "" for name in names]
        style = "bold" if row["system"] == "ours" else None
        table.add_row(str(row["batch"]), row["name"], *(["failed"] if row["failed"] else cells), style=style)
    console.print(table)
    for row in rows:
        if row["failed"]:
            console.print(f"{row['name']}, batch {row['batch']}: {row['failed']}")
    console.print(
        f"Means of {settings.rounds} rounds of {settings.examples} pairs. Per CPU s: pairs per second of CPU "
        "time, which other load moves less. Times faster: than the fastest peer. PyLate pads texts to the "
        "full length, the others to the longest of a forward pass."
    )
    if good:
        losses = [row["loss"] for row in good]
        apart = max(row["fastest"] / row["slowest"] - 1 for row in good)
        console.print(
            f"The losses of {CHECKED} pairs without dropout differ by "
            f"{(max(losses) - min(losses)) / min(losses):.1e} of their value; rounds of a row by up to "
            f"{apart:.0%}."
        )


if __name__ == "__main__":
    main(Settings(**arguments))
