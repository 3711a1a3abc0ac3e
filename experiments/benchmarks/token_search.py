"""Compare token search on a CPU between our indexes and peers' indexes, on the same vectors.

Vectors are token states of the offline encoder for a collection's documents and test queries, reduced by PCA
and normalised. Each system builds and searches in separate processes (`parts`), once in every round, so that
memory is measured per system. Times are medians over queries and rounds. recall@10 is measured against exact
MaxSim. Each peer runs in a separate environment, whose folder `--peers` names; missing peers are listed.
Compare ratios: times depend on the machine.

The exact rows of our index also give the machine's limit, measured in the same run. For one query, the limit
is the longer of two times: reading the bytes that the query needs, sequentially and with all threads, and
computing its products in a plain float32 GEMM. A batch reads the vectors once, so its limit is the time of
the GEMM.

To emulate a processor with AVX2 on a newer one, restrict every library: ATEN_CPU_CAPABILITY=avx2
DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 LIBXSMM_TARGET=hsw (for maxsim-cpu) NUMBA_CPU_NAME=haswell
NUMBA_CPU_FEATURES= (empty). xtr-warp-rs cannot be restricted.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from parts.measuring import PEERS, MiB, interpreters, timed
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


@dataclass(frozen=True)
class Row:
    """A measured system. Rows with equal `kind` do the same work; rows with equal `index` share one index."""

    name: str
    kind: str  # exact, rerank, gather, impute
    system: str  # a key of SYSTEMS in parts/systems.py
    setting: dict[str, Any] = field(default_factory=dict)  # of the search
    index: str = ""
    built: dict[str, Any] = field(default_factory=dict)  # kind and build settings of the index


EXACT = {"kind": "exact", "build": {}}
CODED = {"kind": "compressed", "build": {"bits": 4}}
PEERS_CODED = {"build": {"nbits": 4}}
RERANK = {"rerank": True}
GATHER = {"probes": 8, "candidates": 128, "search_tokens": 2000}
IMPUTE = {"probes": 32, "candidates": 512, "search_tokens": 10_000, "search": "impute"}
ROWS = (
    Row("exact", "exact", "ours", {}, "exact", EXACT),
    Row("torch GEMM + scatter-max", "exact", "gemm_scatter"),
    Row("maxsim-cpu", "exact", "maxsim_cpu"),
    Row(f"rerank {POOL}", "rerank", "ours", RERANK, "exact", EXACT),
    Row(f"maxsim-cpu, {POOL}", "rerank", "maxsim_cpu", RERANK),
    Row("gather, 4 bits, 8 lists", "gather", "ours", GATHER, "compressed", CODED),
    Row("fast-plaid, 4 bits, nprobe 8", "gather", "fast_plaid", {"n_ivf_probe": 8}, "plaid", PEERS_CODED),
    Row("impute, 4 bits, 32 lists", "impute", "ours", IMPUTE, "compressed", CODED),
    Row("xtr-warp, 4 bits, nprobe 8", "impute", "warp", {"nprobe": 8}, "warp", PEERS_CODED),
    Row("xtr-warp, 4 bits, nprobe 32", "impute", "warp", {"nprobe": 32}, "warp", PEERS_CODED),
)


def main(settings: Settings) -> None:
    console = Terminal()
    folder = lock_until_exit(settings.output).absolute()
    pythons = interpreters(settings.peers)
    if missing := PEERS.keys() - pythons:
        console.print(f"Not installed in the environments given, and left out: {', '.join(missing)}.")
    prefixes = tuple(settings.systems) or ""
    chosen = [row for row in ROWS if row.system not in missing and row.name.startswith(prefixes)]
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
    truth = answer("exact", documents | {"system": "ours", "stage": "truth", "k": POOL}, stages)["best"]
    built = {}
    for row in chosen:
        if row.index and row.index not in built:
            job = {"stage": "build", "system": row.system, "folder": f"indexes/{row.index}"}
            built[row.index] = answer(row.index, documents | row.built | job, stages)
    searched: dict[str, list[dict[str, Any]]] = {row.name: [] for row in chosen}
    for number in range(settings.rounds):
        for row in chosen:
            job = {"stage": "search", "system": row.system, "settings": [row.setting], "batch": True}
            job |= documents | {"folder": f"indexes/{row.index}", "candidates": truth}
            result = answer(row.name, job, stages, str(number))
            searched[row.name].append(result["rows"][0] | {"memory": result["memory"]})
    speed = machine(settings.threads)
    tokens = stages.facts["tokens"]
    limits = {row.name: work(row, vectors, truth, speed) for row in chosen if row.index == "exact"}
    table = [summary(row, built.get(row.index), searched[row.name], truth, tokens) for row in chosen]
    for row in table:
        row["single limit"], row["batch limit"] = limits.get(row["system"], ("–", "–"))
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


def summary(
    row: Row,
    built: dict[str, Any] | None,
    rounds: Sequence[dict[str, Any]],
    truth: Sequence[Sequence[int]],
    tokens: int,
) -> dict[str, Any]:
    """Make a row of the table: costs, medians over queries and rounds, and recall."""
    ranked = rounds[-1]["found"]
    hits = [len({*r[:K]} & {*exact[:K]}) / K for r, exact in zip(ranked, truth, strict=True)]
    costs: dict[str, Any] = {"system": row.name} | dict.fromkeys(("build s", "build MiB", "bytes/token"), "–")
    if built:
        costs |= {"build s": built["wall"], "build MiB": built["memory"] / MiB}
        costs["bytes/token"] = built["bytes"] / tokens
    costs["search MiB"] = max(r["memory"] for r in rounds) / MiB
    costs["ms single"] = 1e3 * statistics.median(s for r in rounds for s in r["wall"])
    costs["ms batch"] = 1e3 * statistics.median(r["batch"] for r in rounds) / len(ranked)
    return costs | {"recall@10": float(np.mean(hits))}


def work(
    row: Row, vectors: Path, truth: Sequence[Sequence[int]], speed: Mapping[str, float]
) -> tuple[float, float]:
    """Return the fewest milliseconds of a query, alone and in a batch, which reads its vectors once."""
    lengths = np.load(vectors / "tokens.lengths.npy")
    query_lengths = np.load(vectors / "tokens.query_lengths.npy")
    read = [lengths[rows_read].sum() if row.kind == "rerank" else lengths.sum() for rows_read in truth]
    size = 2 * DIM  # bytes of a token, and FLOPs of a pair of tokens
    gemm = 1e3 * size * float(np.mean(query_lengths * read)) / speed["flops"]
    return max(1e3 * size * float(np.mean(read)) / speed["bytes"], gemm), gemm
