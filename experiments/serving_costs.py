"""Which engine serves each paradigm at 1e5, 1e7 and 1e9 documents? Measured on some, by a cost model beyond.

Some documents of a collection are encoded by every paradigm and put into the exact index, the compressed
one, FAISS's token index and every engine that is installed: bytes a document, milliseconds a query (encoded
before, one at a time) and recall of the paradigm's own exact search. The machine's memory is timed, read in
order and at random, and the kernels on vectors in cache. The model, whose formulas experiments/serving_parts/
model.py states, is held against searches of several sizes: of a part of the documents, and beyond them of
SYNTHETIC copies, other vectors near the encoded ones. Then it says bytes, RAM, machines and seconds at the
sizes wanted, and stated rules choose an engine.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """What is measured, and what is asked of the model."""

    collection: str = "pydocs"
    """pydocs (built in), hf:OWNER/NAME, irds:IDENTIFIER, or the folder of a collection"""
    documents: int = 1200
    """documents that are encoded, drawn at random"""
    queries: int = 30
    """queries of the split, drawn at random"""
    split: str = "test"
    paradigms: list[str] = field(
        default_factory=lambda: ["dpr", "me_bert", "colbert", "coil", "aligner", "xtr"]
    )
    backbone: str = "offline"
    """offline (all-MiniLM-L6-v2), a hub name or a folder"""
    load: dict[str, str] = field(default_factory=dict)
    """saved paradigms in place of untrained ones: {"colbert": "results/colbert/checkpoint"}"""
    query_length: int = 32
    document_length: int = 128
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """more settings of a paradigm's encoder: {"colbert": {"dim": 64}}"""
    bits: list[int] = field(default_factory=lambda: [8, 4, 2, 1])
    """of the compressed index, a dimension; the most faithful first"""
    growth: list[float] = field(default_factory=lambda: [0.25, 1, 3, 16, 64])
    """sizes, in shares of the documents, at which measured seconds are held against the model"""
    most_vectors: int = 500_000
    """larger collections are not made for that"""
    k: int = 10
    rounds: int = 3
    threads: int = 0
    """0: one for each core"""
    sizes: list[int] = field(default_factory=lambda: [10**5, 10**7, 10**9])
    """documents that the model is asked about"""
    machine_memory: float = 64.0
    """GiB of a machine that index and process may fill"""
    machine_bandwidth: float = 0.0
    """GB/s that memory gives in order; 0: as measured (at random it always is)"""
    latency: float = 0.1
    """seconds a query may take"""
    recall: float = 0.9
    """of the exact search's documents, what an index has to find"""
    most_machines: int = 32
    """of a cluster of another engine"""
    read: float = 1.0
    """GiB of memory that are read to time it; more than any cache"""
    seed: int = 0
    output: str = "results/serving_costs"

    def __post_init__(self) -> None:
        for name in ("paradigms", "load", "options"):
            unknown = [paradigm for paradigm in getattr(self, name) if paradigm not in PARADIGMS]
            if unknown:
                raise SystemExit(f"--{name}: {unknown[0]!r} is none of {', '.join(PARADIGMS)}")
        for name in ("documents", "queries", "k", "rounds", "most_machines"):
            if getattr(self, name) < 1:
                raise SystemExit(f"--{name} must be at least 1, got {getattr(self, name)}")
        for name in ("machine_memory", "latency", "read"):
            if getattr(self, name) <= 0:
                raise SystemExit(f"--{name} must be positive, got {getattr(self, name)}")
        for name in ("bits", "growth", "sizes", "paradigms"):
            values = getattr(self, name)
            if not values or (name in ("growth", "sizes") and min(values) <= 0):
                raise SystemExit(f"--{name} needs at least one value, and none below 0: got {values}")
        if set(self.bits) - {1, 2, 4, 8}:
            raise SystemExit(f"--bits are of 1, 2, 4 and 8, got {self.bits}")
        self.threads = self.threads or os.cpu_count() or 1

    @property
    def checked(self) -> int:
        """The bits of the compressed index that is measured at every size."""
        return 4 if 4 in self.bits else self.bits[0]


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from rich.console import Console
from serving_parts.machine import described, memory_speed
from serving_parts.model import Machine
from serving_parts.paradigm import measure
from serving_parts.tables import sections
from studies.pages import Section, print_sections, write_rows

from paradigms import PARADIGMS
from paradigms.io.files import write_json, write_text
from paradigms.train.job import open_collection

GIB = 1 << 30


def main(settings: Settings) -> None:
    console = Console()
    torch.set_num_threads(settings.threads)
    where = described()
    collection = open_collection(settings.collection, None, console)
    speeds = memory_speed(int(settings.read * GIB), settings.threads, settings.seed)
    machine = Machine(
        settings.machine_bandwidth * 1e9 or max(row["in order"] for row in speeds),
        max(row["at random"] for row in speeds),
        settings.machine_memory * GIB,
    )
    work = Path(settings.output) / "work"
    shutil.rmtree(work, ignore_errors=True)
    try:
        measured = [measure(name, collection, settings, work, console) for name in settings.paradigms]
    except (ValueError, OSError, KeyError) as error:
        raise SystemExit(str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    where["load average after"] = round(os.getloadavg()[0], 2)
    found = sections(settings, where, speeds, machine, measured)
    print_sections(list(found.values()))
    write(Path(settings.output), settings, where, found)
    console.print(f"Written to {settings.output}: tables.md, and each table as .json, .csv and .md.")


def write(
    folder: Path,
    settings: Settings,
    where: dict[str, Any],
    sections: dict[str, Section],
) -> None:
    """Every table as .json, .csv and .md; all of them, with what they are, in tables.md."""
    text = []
    for name, section in sections.items():
        write_rows(folder / name, section.rows)
        table = (folder / f"{name}.md").read_text(encoding="utf-8")
        text.append(f"### {section.heading}\n\n{section.text}\n\n{table}")
    write_text(folder / "tables.md", "\n".join(text))
    write_json(folder / "settings.json", {"settings": asdict(settings), "machine": where})


if __name__ == "__main__":
    main(Settings(**given))
