"""What a machine gives: bytes/s of memory, read in order and at random, and FLOP/s of the index's kernels."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"
from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from serving_parts.model import LINE

from paradigms.scoring.machine import shared

REPEATS = 15  # the best counts: what else the machine does only takes away
CACHED = 1 << 18  # bytes of vectors of a thread that lie in a second-level cache
BURST = 0.004  # seconds of a kernel at least
WORDS = LINE // 8


@njit(nogil=True)
def _in_order(words):
    total = np.int64(0)
    for n in range(words.shape[0]):
        total ^= words[n]
    return total


@njit(nogil=True)
def _at_random(words, lines):
    total = np.int64(0)
    for n in range(lines.shape[0]):
        total ^= words[np.int64(lines[n]) * WORDS]
    return total


def memory_speed(size: int, threads: int, seed: int) -> list[dict[str, Any]]:
    """Bytes/s that 1 to `threads` threads read of an array of `size` bytes, which no cache should hold.

    in order: a sum (xor) of all of it, a slice for each thread. at random: one number of a LINE each, as many
    lines as the array has, in an order drawn at random; the numbers of the lines, 4 bytes each, come in order
    and are not counted.
    """
    words = np.arange(size // LINE * WORDS, dtype=np.int64)
    lines = np.random.default_rng(seed).permutation(size // LINE).astype(np.uint32)
    _in_order(words[:WORDS]), _at_random(words, lines[:1])  # compiled
    found = []
    for count in range(1, threads + 1):
        ordered = _best(_in_order, np.array_split(words, count), count)
        scattered = _best(lambda part: _at_random(words, part), np.array_split(lines, count), count)
        found.append(
            {"threads": count, "in order": words.nbytes / ordered, "at random": LINE * len(lines) / scattered}
        )
    return found


def _best(function: Callable[[np.ndarray], Any], parts: list[np.ndarray], threads: int) -> float:
    """Seconds of the fastest of REPEATS runs over all parts, side by side."""

    def run() -> float:
        began = time.perf_counter()
        shared(function, parts, threads)
        return time.perf_counter() - began

    return min(run() for _ in range(REPEATS))


def kernel_speed(dim: int, lanes: int, threads: int, seed: int) -> float:
    """FLOP/s of the products that every kernel of the indexes is made of, with so many lanes of query vectors
    and document vectors of `dim` float32 that lie in a cache."""
    from paradigms.scoring import kernels, tiles

    draw = np.random.default_rng(seed)
    count = max(tiles.BLOCK, CACHED // (4 * dim))
    vectors = draw.standard_normal((count, dim)).astype(np.float32)
    queries = tiles.pack(draw.standard_normal((lanes, dim)).astype(np.float32))
    found = np.empty((threads, count, queries.lanes), np.float32)
    kernels.products(vectors, queries, found[0])  # compiled
    began = time.perf_counter()
    kernels.products(vectors, queries, found[0])
    rounds = max(1, round(BURST / (time.perf_counter() - began)))

    def burst(out: np.ndarray) -> None:
        for _ in range(rounds):
            kernels.products(vectors, queries, out)

    work = 2 * dim * found.size * rounds
    return work / _best(burst, list(found), threads)


def described() -> dict[str, Any]:
    """The machine, in words, and how busy it is."""
    info = Path("/proc/cpuinfo")
    models = (
        [l.partition(":")[2].strip() for l in info.read_text().splitlines() if l.startswith("model name")]
        if info.is_file()
        else []
    )
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load average before": round(os.getloadavg()[0], 2),
    }
