"""What the training benchmark says of its measurements: ratios, targets, tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from training_parts.trainers import CHECKED

NAMES = {"ours": "ours", "sentence_transformers": "sentence-transformers", "pylate": "PyLate"}
TARGETS = {32: 1.2, 128: 2.0, 256: 2.0}  # batch -> times faster than the faster peer
GiB = 2**30


@dataclass(frozen=True)
class Row:
    """A system on batches of one size. mini_batch: of gradient caching; 0 = without."""

    system: str
    batch: int
    mini_batch: int

    @property
    def name(self) -> str:
        return NAMES[self.system] + (f", cached {self.mini_batch}" if self.mini_batch else "")


def failure(answers: Sequence[Mapping[str, Any]]) -> str:
    """Why a row has failed; "" where it has not."""
    return next((answer["failed"] for answer in answers if "failed" in answer), "")


def report(settings: Any, measured: Mapping[Row, Sequence[dict[str, Any]]]) -> dict[str, Any]:
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
            "examples_per_cpu_s": statistics.mean(
                row.batch * len(a["cpu_seconds"]) / sum(a["cpu_seconds"]) for a in answers
            ),
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
        by_cpu = row["examples_per_cpu_s"] / rival["examples_per_cpu_s"]
        note = f"{row['name']} against {rival['name']}; {by_cpu:.2f} by CPU time"
        found.append(
            _target(f"batch {batch}: times faster", TARGETS[batch], ratio, ratio >= TARGETS[batch], note)
        )
        if limit is not None:
            memory, note = row["memory_gib"], f"{row['name']} against {cached[0]['name']}"
            found.append(_target(f"batch {batch}: GiB, at most", limit, memory, memory <= limit, note))
    return found


def _target(what: str, wanted: float, value: float, holds: bool, note: str) -> dict[str, Any]:
    return {"target": what, "wanted": wanted, "value": value, "holds": holds, "of": note}


def show(console: Console, settings: Any, found: Mapping[str, Any]) -> None:
    where = f"{settings.threads} threads" if settings.device == "cpu" else torch.cuda.get_device_name()
    precision = "float32" if settings.precision == "no" else settings.precision
    title = (
        f"Training on {settings.collection}: queries of {settings.query_length} tokens, documents of "
        f"{settings.document_length}, {settings.dim} dimensions, {precision}, {where}"
    )
    shown = Table(title=title)
    for name in ("batch", "system", "pairs/s", "per\nCPU s", "peak\nGiB", "times\nfaster"):
        shown.add_column(name, justify="left" if name == "system" else "right", no_wrap=True)
    for row in found["rows"]:
        bold = "bold" if row["system"] == "ours" else None
        if row["failed"]:
            shown.add_row(str(row["batch"]), row["name"], "failed", style=bold)
            continue
        shown.add_row(
            str(row["batch"]), row["name"], f"{row['examples_per_s']:.2f}",
            f"{row['examples_per_cpu_s']:.2f}", f"{row['memory_gib']:.2f}",
            "" if row["ratio"] is None else f"{row['ratio']:.2f}", style=bold,
        )  # fmt: skip
    console.print(shown)
    for row in found["rows"]:
        if row["failed"]:
            console.print(f"{row['name']}, batch {row['batch']}: {row['failed']}")
    memory = "the largest resident set" if settings.device == "cpu" else "the most that torch allocated"
    console.print(
        f"Means of {settings.rounds} rounds, in each {settings.examples} pairs after {settings.warmup} steps "
        "that do not count. Per CPU s: pairs per second that the processor spent, which other load "
        f"moves less. Peak: {memory}. Times faster: than the fastest peer. PyLate pads every text to the "
        "full length, the others to the longest of a forward pass."
    )
    if found["losses_differ_by"] is not None:
        console.print(
            f"The losses of {CHECKED} pairs without dropout differ by "
            f"{found['losses_differ_by']:.1e} of their value."
        )
    apart = max(
        (row["fastest"] / row["slowest"] - 1 for row in found["rows"] if not row["failed"]), default=0
    )
    if settings.rounds > 1:
        console.print(f"The rounds of a row lie up to {apart:.0%} apart.")
    busy = [row["examples_per_s"] / row["examples_per_cpu_s"] for row in found["rows"] if not row["failed"]]
    if busy and settings.device == "cpu":
        console.print(
            f"The processes had {min(busy):.2f} to {max(busy):.2f} processors at a time for "
            f"{settings.threads} threads: where that is far fewer, CPU time tells more."
        )
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
