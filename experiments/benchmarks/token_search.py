"""Compare exact search and reranking by tokens on a CPU with maxsim-cpu, on the same vectors.

Vectors are token states of the offline encoder for a collection's documents and test queries, reduced by PCA
and normalised. Each system builds and searches in separate processes (`parts`), once in every round, so that
memory is measured per system. Times are medians over queries and rounds. recall@10 is measured against exact
MaxSim. maxsim-cpu runs in a separate environment, which `--peers` names; scale.py has other peers. Compare
ratios: times depend on the machine.

The rows of our index also give the machine's limit, measured in the same run. For one query, the limit is the
longer of two times: reading the bytes that the query needs, sequentially and with all threads, and computing
its products in a plain float32 GEMM. A batch reads the vectors once, so its limit is the time of the GEMM.

To emulate a processor with AVX2 on a newer one, restrict every library: ATEN_CPU_CAPABILITY=avx2
DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 LIBXSMM_TARGET=hsw (for maxsim-cpu) NUMBA_CPU_NAME=haswell
NUMBA_CPU_FEATURES= (empty).
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from parts.settings import Benchmark, Peers
from studies.settings import CollectionName, Documents, Queries, Rounds, Seed, Threads, launch

from paradigms.io.command_line import flags


@flags(documents=4173, queries=200, rounds=3, threads=2)
class Settings(Benchmark, Threads, Rounds, Seed, CollectionName, Documents, Queries, Peers):
    """Settings for the vectors and the systems that search them.

    The documents are those relevant to the queries, and others drawn at random.
    """


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import torch
from parts.measuring import MiB, interpreters, timed
from parts.stages import Stages
from parts.vectors import DIM, prepare
from studies.pages import Section, publish

from paradigms import PARADIGMS
from paradigms.io.device import processor
from paradigms.io.files import lock_until_exit
from paradigms.io.terminal import Terminal

K = 10
POOL = 100  # candidates of reranking
LENGTH = 256  # tokens of a document


OURS = "ours"
RERANK = {"rerank": True}
# Name -> a key of SYSTEMS in parts/systems.py, and the setting of its search.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": (OURS, {}),
    "maxsim-cpu": ("maxsim_cpu", {}),
    f"rerank {POOL}": (OURS, RERANK),
    f"maxsim-cpu, {POOL}": ("maxsim_cpu", RERANK),
}


def main(settings: Settings) -> None:
    console = Terminal()
    folder = lock_until_exit(settings.output).absolute()
    pythons = interpreters(settings.peers)
    if "maxsim_cpu" not in pythons:
        console.print("maxsim-cpu is in no environment given, and left out.")
    prefixes = tuple(settings.systems) or ""
    present = {name: row for name, row in ROWS.items() if row[0] in (OURS, *pythons)}
    chosen = {name: row for name, row in present.items() if name.startswith(prefixes)}
    vectors = prepare(
        PARADIGMS["colbert"]("offline", dim=None, skip="", document_length=LENGTH).eval(),
        {settings.collection: settings.documents},
        folder,
        console,
        queries=settings.queries,
        tokens=LENGTH,
        seed=settings.seed,
        forms=["tokens"],
    )
    stages = Stages(settings, vectors, console, pythons, k=K)
    documents = {"form": "tokens", "documents": stages.facts["documents"]}
    ours = documents | {"system": OURS, "folder": "indexes/exact"}
    truth = answer("exact", ours | {"stage": "truth", "k": POOL}, stages)["best"]
    built = answer("exact", ours | {"stage": "build", "kind": "exact", "build": {}}, stages)
    searched: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for number in range(settings.rounds):
        for name, (system, setting) in chosen.items():
            job = {"stage": "search", "system": system, "settings": [setting], "batch": True}
            result = answer(name, ours | job | {"candidates": truth}, stages, str(number))
            searched[name].append(result["rows"][0] | {"memory": result["memory"]})
    speed = machine(settings.threads)
    tokens = stages.facts["tokens"]
    table = []
    for name, (system, setting) in chosen.items():
        row = {"system": name, "build s": "–", "build MiB": "–", "bytes/token": "–"}
        limits: tuple[Any, Any] = ("–", "–")
        if system == OURS:
            row |= {"build s": built["wall"], "build MiB": built["memory"] / MiB}
            row["bytes/token"] = built["bytes"] / tokens
            limits = work(bool(setting), vectors, truth, speed)
        row |= summary(searched[name], truth)
        table.append(row | dict(zip(("single limit", "batch limit"), limits, strict=True)))
    text = (
        f"{tokens:,} tokens of {settings.documents} documents, {DIM} dimensions, {settings.queries} queries, "
        f"{settings.threads} threads of {processor()} ({torch.backends.cpu.get_cpu_capability()}): "
        f"{speed['bytes'] / 1e9:.1f} GB/s read in order, GEMM {speed['flops'] / 1e9:.0f} GFLOP/s."
    )
    publish(settings, "Token search", text, {"systems": Section("Token search, by system", "", table)})


def answer(name: str, job: dict[str, Any], stages: Stages, number: str = "") -> dict[str, Any]:
    result = stages.measure(name, job, number)
    if "failed" in result:
        raise SystemExit(f"{name} failed in {job['stage']}")
    return result


def machine(threads: int) -> dict[str, float]:
    """Measure sequential reads in bytes/s and a plain GEMM in FLOP/s, each as the best of 5 runs."""
    torch.set_num_threads(threads)
    numbers = torch.ones(1 << 27)
    matrix = torch.ones(1536, 1536)
    read = min(timed(numbers.sum, perf_counter)[0] for _ in range(5))
    multiply = min(timed(lambda: matrix @ matrix, perf_counter)[0] for _ in range(5))
    return {"bytes": 4 * numbers.numel() / read, "flops": 2 * len(matrix) ** 3 / multiply}


def summary(rounds: Sequence[dict[str, Any]], truth: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return medians over queries and rounds, and recall."""
    ranked = rounds[-1]["found"]
    hits = [len({*r[:K]} & {*exact[:K]}) / K for r, exact in zip(ranked, truth, strict=True)]
    costs = {"search MiB": max(r["memory"] for r in rounds) / MiB}
    costs["ms single"] = 1e3 * statistics.median(s for r in rounds for s in r["wall"])
    costs["ms batch"] = 1e3 * statistics.median(r["batch"] for r in rounds) / len(ranked)
    return costs | {"recall@10": float(np.mean(hits))}


def work(
    rerank: bool, vectors: Path, truth: Sequence[Sequence[int]], speed: Mapping[str, float]
) -> tuple[float, float]:
    """Return the fewest milliseconds of a query, alone and in a batch, which reads its vectors once."""
    lengths = np.load(vectors / "tokens.lengths.npy")
    query_lengths = np.load(vectors / "tokens.query_lengths.npy")
    read = [lengths[rows_read].sum() if rerank else lengths.sum() for rows_read in truth]
    size = 2 * DIM  # bytes of a token, and FLOPs of a pair of tokens
    gemm = 1e3 * size * float(np.mean(query_lengths * read)) / speed["flops"]
    return max(1e3 * size * float(np.mean(read)) / speed["bytes"], gemm), gemm
