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

from paradigms.index.codes import padded_width
from paradigms.index.threads import shared

REPEATS = 5  # the best counts: what else the machine does only takes away
CACHED = 1 << 18  # bytes of vectors of a thread that lie in a second-level cache
BURST = 0.02  # seconds of a kernel at least
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


def kernel_speed(dim: int, lanes: int, tokens: float, bits: int, threads: int, seed: int) -> float:
    """FLOP/s, of those in 2 h q' per token, of the kernel that an index scores with, its vectors in cache.

    bits 16: documents of `tokens` float16 vectors; fewer: codes, list by list, as if one long document.
    """
    from paradigms.index import kernels

    draw, width = np.random.default_rng(seed), dim if bits == 16 else padded_width(dim, bits)
    queries = kernels.pack(draw.standard_normal((lanes, width)).astype(np.float32))
    count = max(kernels.ROWS, CACHED // (width * bits // 8))
    each = max(1, round(tokens)) if bits == 16 else count
    starts = np.arange(0, count, each, dtype=np.int64)
    stops = np.minimum(starts + each, count)
    if bits == 16:
        padded = -(-width // kernels.LANES) * kernels.LANES  # the kernel reads whole lanes of a row
        vectors = draw.standard_normal((count, padded)).astype(np.float16).view(np.uint16)
        packed = kernels.pack(np.zeros((lanes, padded), np.float32))
        width = padded

        def score(best: np.ndarray) -> None:
            kernels.maxima(vectors, starts, stops, packed, best)

    else:
        coded = kernels.Coded(
            draw.integers(0, 256, (count, width * bits // 8), dtype=np.uint8),
            bits,
            draw.integers(0, 256, count, dtype=np.uint8),
            np.ones(256, np.float32),
            np.zeros(count, np.uint16),
        )
        similarities = np.zeros((1, queries.shape[0] * kernels.LANES), np.float32)
        query = kernels.CodedQuery(similarities, queries, similarities[0])

        def score(best: np.ndarray) -> None:
            kernels.coded_maxima(coded, query, starts, stops, best)

    bests = [np.empty((len(starts), queries.shape[0] * kernels.LANES), np.float32) for _ in range(threads)]
    score(bests[0])  # compiled
    began = time.perf_counter()
    score(bests[0])
    rounds = max(1, round(BURST / (time.perf_counter() - began)))

    def burst(best: np.ndarray) -> None:
        for _ in range(rounds):
            score(best)

    work = 2 * width * queries.shape[0] * kernels.LANES * count * rounds * threads
    return work / _best(burst, bests, threads)


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
