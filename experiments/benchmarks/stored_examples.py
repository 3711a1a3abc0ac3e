"""Measure memory and time of training examples in files beside examples in memory, by number of pairs.

Each way runs in a process of its own: it makes the examples of a file of JSON lines, or opens them, and then
reads the batches of `batches` steps, with a permutation of all examples, as training does. Memory is the
process's anonymous memory after the batches, minus that before the examples; mapped pages of files, which the
system may drop at any time, are not counted.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
import time
from dataclasses import field
from pathlib import Path
from typing import Any

from parts.settings import Benchmark
from studies.settings import launch

from paradigms.io.command_line import flags


@flags()
class Settings(Benchmark):
    """Settings for pairs and batches."""

    pairs: list[int] = field(default_factory=lambda: [100_000, 1_000_000, 10_000_000])
    """numbers of pairs"""
    most: int = 1_000_000
    """most pairs to hold in memory"""
    batches: int = 500
    """batches to read, of 64 pairs"""


launch(__name__, Settings, __doc__)  # before the slow imports

from studies.pages import Section, publish

from paradigms.io.device import processor
from paradigms.train.order import step_batches
from paradigms.train.rows import examples_from_rows
from paradigms.train.stored import stored_rows

BATCH = 64
WORDS = [f"word{n}" for n in range(20_000)]


def main(settings: Settings) -> None:
    rows = []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        for count in settings.pairs:
            file = Path(temporary, f"{count}.jsonl")
            write(file, count)
            for way in ("in memory", "making files", "in files"):
                if way == "in memory" and count > settings.most:
                    continue
                with context.Pool(1) as pool:
                    rows.append(pool.apply(measured, (way, file, settings.batches)))
    text = f"{settings.batches} batches of {BATCH} pairs; one thread of {processor()}."
    sections = {"examples": Section("Training examples in memory and in files", rows=rows)}
    publish(settings, "Stored examples", text, sections)


def write(file: Path, count: int) -> None:
    """Write pairs of a query of 4 words and a document of 12."""
    draw = random.Random(0)
    with file.open("w", encoding="utf-8") as stream:
        for _ in range(count):
            words = draw.choices(WORDS, k=12)
            stream.write(json.dumps({"query": " ".join(words[:4]), "positive": " ".join(words)}) + "\n")


def measured(way: str, file: Path, batches: int) -> dict[str, Any]:
    """Make or open the examples of a file, and read batches."""
    before = anonymous()
    began = time.process_time()
    if way == "in memory":
        corpus, examples = examples_from_rows(file)
        texts: Any = corpus
    else:
        texts, examples = stored_rows(file, file.with_suffix(""))
    opened = time.process_time()
    for positions in step_batches(len(examples), BATCH, batches if way != "making files" else 0, seed=0):
        batch = [examples[n] for n in positions]
        assert all(texts[example.positive].startswith(example.query) for example in batch)
    read = time.process_time()
    return {
        "pairs": len(examples),
        "way": way,
        "CPU s before the first batch": opened - began,
        "ms / batch": 1000 * (read - opened) / batches if way != "making files" else None,
        "MiB": (anonymous() - before) / 2**20,
    }


def anonymous() -> int:
    """Return this process's anonymous resident memory in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024
