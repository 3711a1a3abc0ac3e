"""Compare in_batch_rel with the plain einsum `core.rel`: peak memory and time, forward and backward.

On a CPU, each case runs in a new process, which reads its peak memory from /proc (Linux). On a GPU, the
Triton kernels (`paradigms.scoring.fused`) are a third method, for alignments that take a maximum over
document tokens, and peak memory is the memory allocated by torch. Compare ratios: absolute times depend on
the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import field
from typing import Literal

from parts.settings import Benchmark
from studies.settings import launch

from paradigms.io.command_line import flags


@flags(rounds=3)
class Settings(Benchmark):
    """Settings for the batches to score."""

    batches: list[int] = field(default_factory=lambda: [32, 64, 128])
    """batch sizes: the number of queries, which is also the number of documents"""
    dtype: Literal["float32", "bfloat16", "float16", "tf32"] = "float32"
    """type of the vectors; tf32: float32, multiplied in TF32"""


launch(__name__, Settings, __doc__)  # before the slow imports

import torch
from parts.measuring import MiB, memory, new_process
from studies.pages import Rows, Section, publish

from paradigms.align import NORMALISERS, Alignment, PoolTopK, QueryToDocument, TopK
from paradigms.core import Tokens, rel
from paradigms.io.device import chosen_device, processor
from paradigms.scoring import in_batch

QUERY_TOKENS = 32
DOCUMENT_TOKENS = 180
DIM = 128
# Alignments that paradigms train with.
CASES: dict[str, tuple[Alignment, str]] = {
    "colbert": (QueryToDocument(), "one"),
    "xtr": (PoolTopK(k=320), "retrieved"),
    "aligner": (TopK(k=1), "total"),
}


def main(settings: Settings) -> None:
    on_gpu = chosen_device().type == "cuda"
    rows: Rows = []
    for name in CASES:
        ways = ["plain", "in_batch_rel"]
        if on_gpu and CASES[name][0].is_maximum():
            ways.append("fused")
        for batch in settings.batches:
            costs = {way: measured(settings, name, batch, way) for way in ways}
            for way, (seconds, peak) in costs.items():
                row = {"case": name, "batch": batch, "way": way, "MiB": peak, "ms": 1000 * seconds}
                plain_seconds, plain_peak = costs["plain"]
                rows.append(row | {"fewer": plain_peak / peak, "faster": plain_seconds / seconds})
    machine = torch.cuda.get_device_name() if on_gpu else f"{settings.threads} thread(s) of {processor()}"
    text = (
        f"{QUERY_TOKENS} × {DOCUMENT_TOKENS} tokens, {DIM} dimensions, {settings.dtype}; {machine}; "
        f"torch {torch.__version__}. fewer and faster: the plain einsum's costs divided by these."
    )
    publish(settings, "In-batch scoring", text, {"costs": Section("Forward and backward", rows=rows)})


def measured(settings: Settings, name: str, batch: int, way: str) -> tuple[float, float]:
    """Run `measure` on one case; on a CPU, a new process does this to exclude earlier memory use."""
    if chosen_device().type == "cuda":
        return measure(settings, name, batch, way)
    with new_process() as process:
        return process.submit(measure, settings, name, batch, way).result()


def measure(settings: Settings, name: str, batch: int, way: str) -> tuple[float, float]:
    """Measure the time (s) and additional memory (MiB) of a forward and backward pass."""
    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")
    in_batch.FUSED = {"cuda"} if way == "fused" else set()
    align = CASES[name][0]
    normalise = NORMALISERS[CASES[name][1]]
    score: Callable[..., torch.Tensor] = rel if way == "plain" else in_batch.in_batch_rel
    documents, queries = random_tokens(settings, batch)
    on_gpu = chosen_device().type == "cuda"

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
    return statistics.median(step() for _ in range(settings.rounds)), peak


def random_tokens(settings: Settings, batch: int) -> tuple[Tokens, Tokens]:
    """Draw unit vectors for texts with random lengths, uniform between half the maximum and the maximum."""
    random = torch.Generator().manual_seed(settings.seed)
    device = chosen_device()
    dtype = getattr(torch, settings.dtype.replace("tf32", "float32"))

    def tokens(x: int, n: int, length: int) -> Tokens:
        vectors = torch.randn(x, n, length, DIM, generator=random)
        lengths = torch.randint(length // 2, length + 1, (x, n, 1), generator=random)
        ids = torch.randint(0, 1000, (x, n, length), generator=random)
        vectors = torch.nn.functional.normalize(vectors, dim=-1).to(device, dtype)
        mask = torch.arange(length) < lengths
        return Tokens(vectors.requires_grad_(), mask.to(device), ids.to(device))

    return tokens(1, batch, DOCUMENT_TOKENS), tokens(batch, 1, QUERY_TOKENS)
