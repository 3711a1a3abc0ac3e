"""Measure memory and time of training examples in files beside examples in memory, by number of pairs.

Each way runs in a process of its own: it makes the examples of a file of JSON lines, or opens them, and then
reads 500 batches, with a permutation of all examples, as training does. Memory is the
process's anonymous memory after the batches, minus that before the examples; mapped pages of files, which the
system may drop at any time, are not counted.
"""

import json
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


launch(__name__, Settings, __doc__)  # before the slow imports

from parts.measuring import MiB, memory, new_process
from studies.pages import Section, publish

from paradigms.io.device import processor
from paradigms.train.order import mixed_batches
from paradigms.train.rows import examples_from_rows, stored_rows

MOST = 1_000_000  # pairs to hold in memory
BATCHES = 500
BATCH = 64
WORDS = [f"word{n}" for n in range(20_000)]


def main(settings: Settings) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for count in settings.pairs:
            file = Path(temporary, f"{count}.jsonl")
            write(file, count)
            for way in ("in memory", "making files", "in files"):
                if way == "in memory" and count > MOST:
                    continue
                with new_process() as process:
                    rows.append(process.submit(measure_way, way, file).result())
    text = f"{BATCHES} batches of {BATCH} pairs; one thread of {processor()}. MiB: of making files the peak, "
    text += "else what the process holds besides mapped files."
    sections = {"examples": Section("Training examples in memory and in files", rows=rows)}
    publish(settings, "Stored examples", text, sections)


def write(file: Path, count: int) -> None:
    """Write pairs of a query of 4 words and a document of 12."""
    draw = random.Random(0)
    with file.open("w", encoding="utf-8") as stream:
        for _ in range(count):
            words = draw.choices(WORDS, k=12)
            stream.write(json.dumps({"query": " ".join(words[:4]), "positive": " ".join(words)}) + "\n")


def measure_way(way: str, file: Path) -> dict[str, Any]:
    kind = "VmHWM" if way == "making files" else "RssAnon"
    before = memory(kind)
    began = time.process_time()
    texts: Any
    examples: Any
    if way == "in memory":
        texts, examples = examples_from_rows(file)
    else:
        texts, examples = stored_rows(file, file.with_suffix(""))
    ready = time.process_time()
    batches = 0 if way == "making files" else BATCHES
    for positions in mixed_batches([len(examples)], [1.0], BATCH, batches, seed=0):
        batch = [examples[n] for n in positions]
        assert all(texts[example.positive].startswith(example.query) for example in batch)
    read = time.process_time()
    row = {"pairs": len(examples), "way": way, "CPU s before the first batch": ready - began}
    row["ms / batch"] = 1000 * (read - ready) / batches if batches else None
    return row | {"MiB": (memory(kind) - before) / MiB}
