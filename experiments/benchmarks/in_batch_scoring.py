"""Peak memory and time of in_batch_rel beside the plain einsum `core.rel`, forward and backward.

Each case runs in a fresh process, which reads its peak memory from /proc (Linux). Printed as a table with
ratios, plain over in_batch_rel, and written as JSON. Absolute times belong to the machine, ratios travel.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which batches are scored."""

    batches: list[int] = field(default_factory=lambda: [32, 64, 128])
    """queries in a batch, and as many documents"""
    cases: list[str] = field(default_factory=lambda: ["colbert", "xtr", "aligner"])
    """which of colbert, coil, aligner, xtr, entropic"""
    query_tokens: int = 32
    document_tokens: int = 180
    dim: int = 128
    repeats: int = 3
    """measured repetitions, after one that is not; the median counts"""
    threads: int = 1
    output: str = "results/benchmarks/in_batch_scoring.json"

    def __post_init__(self) -> None:
        unknown = [name for name in self.cases if name not in CASES]
        if unknown:
            raise SystemExit(f"unknown case {', '.join(unknown)}; there are {', '.join(CASES)}")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from rich.console import Console
from rich.table import Table

from paradigms.align import ALIGNMENTS, NORMALISERS
from paradigms.core import Tokens, rel
from paradigms.io.files import write_json
from paradigms.scoring.in_batch import in_batch_rel

# What the paradigms train with. The soft alignment is here as the other of the two paths.
CASES: dict[str, tuple[str, dict[str, float], str]] = {
    "colbert": ("query_to_document", {}, "one"),
    "coil": ("equal_ids", {}, "one"),
    "aligner": ("top_k", {"k": 1}, "total"),
    "xtr": ("pool_top_k", {"k": 320}, "retrieved"),
    "entropic": ("entropic", {"k": 1, "eps": 0.01}, "total"),
}
MiB = 1 << 20


def main(settings: Settings) -> None:
    rows = []
    for name in settings.cases:
        for batch in settings.batches:
            plain, chunked = (measured(settings, name, batch, which) for which in ("plain", "in_batch_rel"))
            rows.append(
                {
                    "case": name,
                    "batch": batch,
                    "plain": plain,
                    "in_batch_rel": chunked,
                    "memory_ratio": plain["peak_mib"] / chunked["peak_mib"],
                    "time_ratio": plain["seconds"] / chunked["seconds"],
                }
            )
    write_json(settings.output, {"settings": asdict(settings), "torch": torch.__version__, "rows": rows})
    Console().print(as_table(rows, settings))


def measured(settings: Settings, name: str, batch: int, which: str) -> dict[str, float]:
    """One case in a process of its own, so that no earlier case's memory counts."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, settings, name, batch, which).result()


def measure(settings: Settings, name: str, batch: int, which: str) -> dict[str, float]:
    """Seconds of a forward and backward pass, and MiB above what the process held before."""
    torch.set_num_threads(settings.threads)
    align_name, knobs, normalise = CASES[name]
    align = partial(ALIGNMENTS[align_name].function, **knobs)
    score: Callable[..., torch.Tensor] = rel if which == "plain" else in_batch_rel
    documents, queries = random_tokens(settings, batch)

    def step() -> None:
        documents.vectors.grad = queries.vectors.grad = None
        score(documents, queries, align, NORMALISERS[normalise]).logsumexp(1).sum().backward()

    before = resident("VmRSS")
    step()
    peak = resident("VmHWM") - before
    seconds = []
    for _ in range(settings.repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds), "peak_mib": peak}


def random_tokens(settings: Settings, batch: int) -> tuple[Tokens, Tokens]:
    """Unit vectors; lengths uniform between half of the longest and the longest."""
    random = torch.Generator().manual_seed(0)

    def tokens(x: int, n: int, length: int) -> Tokens:
        vectors = torch.randn(x, n, length, settings.dim, generator=random)
        lengths = torch.randint(length // 2, length + 1, (x, n, 1), generator=random)
        ids = torch.randint(0, 1000, (x, n, length), generator=random)
        vectors = torch.nn.functional.normalize(vectors, dim=-1).requires_grad_()
        return Tokens(vectors, torch.arange(length) < lengths, ids)

    return tokens(1, batch, settings.document_tokens), tokens(batch, 1, settings.query_tokens)


def resident(line: str) -> float:
    """MiB of this process: VmRSS now, or VmHWM at most so far."""
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith(f"{line}:"):
            return int(entry.split()[1]) * 1024 / MiB
    raise RuntimeError(f"/proc/self/status has no {line}: this benchmark needs Linux")


def as_table(rows: list[dict], settings: Settings) -> Table:
    title = f"{settings.query_tokens} × {settings.document_tokens} tokens, dim {settings.dim}"
    table = Table(title=f"{title}, {settings.threads} thread(s)")
    for column in ("case", "batch", "plain MiB", "chunked MiB", "ratio", "plain s", "chunked s", "ratio "):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        plain, chunked = row["plain"], row["in_batch_rel"]
        memory = (f"{plain['peak_mib']:.0f}", f"{chunked['peak_mib']:.0f}", f"{row['memory_ratio']:.1f}")
        times = (f"{plain['seconds']:.3f}", f"{chunked['seconds']:.3f}", f"{row['time_ratio']:.1f}")
        table.add_row(row["case"], str(row["batch"]), *memory, *times)
    return table


if __name__ == "__main__":
    main(Settings(**given))
