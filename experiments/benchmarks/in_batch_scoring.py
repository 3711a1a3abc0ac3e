"""Compare in_batch_rel with the plain einsum `core.rel`: peak memory and time, forward and backward.

On a CPU, each case runs in a new process, which reads its peak memory from /proc (Linux). On a GPU, the
Triton kernels (`paradigms.scoring.fused`) are a third method, for alignments that take a maximum over
document tokens, and peak memory is the memory allocated by torch. Results are printed as a table with ratios
(plain einsum divided by each method) and written as JSON. Compare ratios: absolute times depend on the
machine.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Literal

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings for the batches to score."""

    batches: list[int] = field(default_factory=lambda: [32, 64, 128])
    """batch sizes: the number of queries, which is also the number of documents"""
    cases: list[Literal["colbert", "coil", "aligner", "xtr", "entropic"]] = field(
        default_factory=lambda: ["colbert", "xtr", "aligner"]
    )
    query_tokens: int = 32
    document_tokens: int = 180
    dim: int = 128
    repeats: int = 3
    """measured repetitions, after a warm-up; the median is reported"""
    threads: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if available"""
    dtype: Literal["float32", "bfloat16", "float16", "tf32"] = "float32"
    """type of the vectors; tf32: float32, multiplied in TF32"""
    output: str = "results/benchmarks/in_batch_scoring.json"


if __name__ == "__main__":  # before the slow imports
    arguments = command_line(Settings, __doc__ or "")

import torch
from parts.shared import MiB, memory
from rich.table import Table

from paradigms.align import NORMALISERS, Alignment, Entropic, EqualIds, PoolTopK, QueryToDocument, TopK
from paradigms.core import Tokens, rel
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal
from paradigms.scoring import in_batch

# The alignments that paradigms train with. The soft alignment (entropic) uses the other code path.
CASES: dict[str, tuple[Alignment, str]] = {
    "colbert": (QueryToDocument(), "one"),
    "coil": (EqualIds(), "one"),
    "aligner": (TopK(k=1), "total"),
    "xtr": (PoolTopK(k=320), "retrieved"),
    "entropic": (Entropic(k=1, eps=0.01), "total"),
}


def main(settings: Settings) -> None:
    if settings.device == "auto":
        settings.device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for name in settings.cases:
        ways = ["plain", "in_batch_rel"]
        if settings.device == "cuda" and CASES[name][0].is_maximum():
            ways.append("fused")
        for batch in settings.batches:
            for way in ways:
                row = {"case": name, "batch": batch, "way": way} | measured(settings, name, batch, way)
                rows.append(row)
                plain = rows[-1 - ways.index(way)]
                for figure in ("seconds", "peak_mib") if way != "plain" else ():
                    row[f"{figure}_ratio"] = plain[figure] / row[figure]
    results = {"settings": asdict(settings), "torch": torch.__version__, "machine": machine(settings)}
    write_json(settings.output, results | {"rows": rows})
    Terminal().print(as_table(rows, settings))


def machine(settings: Settings) -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name() if settings.device == "cuda" else f"{settings.threads} CPU thread(s)"


def measured(settings: Settings, name: str, batch: int, way: str) -> dict[str, float]:
    """Run `measure` on one case; on a CPU, a new process does this to exclude earlier memory use."""
    if settings.device == "cuda":
        return measure(settings, name, batch, way)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, settings, name, batch, way).result()


def measure(settings: Settings, name: str, batch: int, way: str) -> dict[str, float]:
    """Measure the time (s) and additional memory (MiB) of a forward and backward pass."""
    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")
    in_batch.FUSED = {"cuda"} if way == "fused" else set()
    align, normalise = CASES[name][0], NORMALISERS[CASES[name][1]]
    score: Callable[..., torch.Tensor] = rel if way == "plain" else in_batch.in_batch_rel
    documents, queries = random_tokens(settings, batch)
    on_gpu = settings.device == "cuda"

    def step() -> float:
        documents.vectors.grad = queries.vectors.grad = None
        start = time.perf_counter()
        score(documents, queries, align, normalise).float().logsumexp(1).sum().backward()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    if on_gpu:
        step()  # compiles and tunes kernels
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / MiB
        step()
        peak = torch.cuda.max_memory_allocated() / MiB - before
    else:
        before = memory("VmRSS") / MiB
        step()
        peak = memory("VmHWM") / MiB - before
    return {"seconds": statistics.median(step() for _ in range(settings.repeats)), "peak_mib": peak}


def random_tokens(settings: Settings, batch: int) -> tuple[Tokens, Tokens]:
    """Draw unit vectors for texts with random lengths, uniform between half the maximum and the maximum."""
    random = torch.Generator().manual_seed(0)

    def tokens(x: int, n: int, length: int) -> Tokens:
        vectors = torch.randn(x, n, length, settings.dim, generator=random)
        lengths = torch.randint(length // 2, length + 1, (x, n, 1), generator=random)
        ids = torch.randint(0, 1000, (x, n, length), generator=random)
        vectors = torch.nn.functional.normalize(vectors, dim=-1).to(
            settings.device, getattr(torch, settings.dtype.replace("tf32", "float32"))
        )
        return Tokens(
            vectors.requires_grad_(), *(t.to(settings.device) for t in (torch.arange(length) < lengths, ids))
        )

    return tokens(1, batch, settings.document_tokens), tokens(batch, 1, settings.query_tokens)


def as_table(rows: list[dict], settings: Settings) -> Table:
    title = (
        f"{settings.query_tokens} × {settings.document_tokens} tokens, dim {settings.dim}, {settings.dtype}"
    )
    table = Table(title=f"{title}, {machine(settings)}")
    for column in ("case", "batch", "way", "MiB", "fewer", "ms", "faster"):
        table.add_column(column, justify="left" if column in ("case", "way") else "right")
    for row in rows:
        fewer, faster = (
            f"{row[key]:.1f}×" if key in row else "" for key in ("peak_mib_ratio", "seconds_ratio")
        )
        values = (f"{row['peak_mib']:.0f}", fewer, f"{row['seconds'] * 1000:.2f}", faster)
        table.add_row(row["case"], str(row["batch"]), row["way"], *values)
    return table


if __name__ == "__main__":
    main(Settings(**arguments))
