"""Token search on a processor: our indexes and the peers', on the same vectors, taking turns in one run.

Vectors are token states of the offline encoder, reduced by PCA and normalised, of documents of a collection
and of its test queries. Each system builds and searches in processes of its own, `token_parts`, once in every
round, so that its memory is its own; times are medians over queries and rounds. recall@10 is against exact
MaxSim. Peers live in environments of their own, whose folders `--peers` names; those that are not there are
named. Times belong to the machine, ratios travel.

Beside each of our rows stands the limit of the machine, measured in the same run: the time in which its
threads read in order the bytes that a query alone needs, and that in which a plain float32 GEMM does its
products. A batch reads the vectors once, so its limit is the GEMM.

A newer processor stands in for one with AVX2 if every library is told: ATEN_CPU_CAPABILITY=avx2
DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 LIBXSMM_TARGET=hsw (for maxsim-cpu) NUMBA_CPU_NAME=haswell
NUMBA_CPU_FEATURES= (empty). xtr-warp-rs chooses for itself.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """What is searched, and by whom."""

    collection: str = "pydocs"
    documents: int = 4173
    """documents of the collection: those relevant to the queries, and others drawn at random"""
    queries: int = 200
    """test queries"""
    document_length: int = 256
    dim: int = 128
    peers: list[str] = field(default_factory=list)
    """folders of virtual environments with maxsim-cpu, fast-plaid and xtr-warp-rs, any of them in each"""
    systems: list[str] = field(default_factory=list)
    """rows to run, by the beginning of their names; all where none is given"""
    rounds: int = 3
    threads: int = 2
    seed: int = 0
    output: str = "results/benchmarks/token_search"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from rich.table import Table
from token_parts.vectors import prepare

from paradigms.io.files import held, write_json
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal

K = 10
WORKER = Path(__file__).parent / "token_parts" / "systems.py"
MODULES = {"maxsim_cpu": "maxsim_cpu", "fast_plaid": "fast_plaid", "warp": "xtr_warp"}


@dataclass(frozen=True)
class Row:
    """A system with its settings. Rows of one `kind` do the same work; those of one `index` share it."""

    name: str
    kind: str  # exact, rerank, gather, impute
    system: str
    settings: dict[str, Any]
    index: str = ""

    @property
    def ours(self) -> bool:
        return self.system == "ours"


def rows() -> list[Row]:
    """All systems."""
    exact: dict[str, Any] = {"kind": "ExactIndex"}
    found = [
        Row("exact", "exact", "ours", exact, "exact"),
        Row("torch GEMM + scatter-max", "exact", "gemm_scatter", {}),
        Row("maxsim-cpu", "exact", "maxsim_cpu", {}),
        Row("rerank 100", "rerank", "ours", exact | {"rerank": True}, "exact"),
        Row("padded einsum, 100", "rerank", "padded_einsum", {}),
        Row("maxsim-cpu, 100", "rerank", "maxsim_cpu", {"rerank": True}),
    ]
    for bits in (4, 2):
        built = {"kind": "CompressedIndex", "build": {"bits": bits}}
        for probes, candidates, k in ((4, 32, 2000), (4, 64, 2000), (8, 64, 2000), (8, 128, 2000)):
            knobs = {"probes": probes, "candidates": candidates}
            name = f"gather, {bits} bits, {probes} lists, {candidates} candidates"
            settings = built | {"knobs": knobs, "search_tokens": k}
            found.append(Row(name, "gather", "ours", settings, f"compressed-{bits}"))
        for probes, k in ((2, 1000), (3, 2000), (4, 2000), (8, 4000), (16, 6000), (32, 10000)):
            settings = built | {"knobs": {"probes": probes}, "search_tokens": k, "impute": True}
            name = f"impute, {bits} bits, {probes} lists, k' = {k}"
            found.append(Row(name, "impute", "ours", settings, f"compressed-{bits}"))
    for bits, full, probes in ((4, 1024, 8), (4, 512, 4), (4, 256, 4), (2, 256, 4)):
        settings = {"build": {"nbits": bits}, "search": {"n_full_scores": full, "n_ivf_probe": probes}}
        name = f"fast-plaid, {bits} bits, n_full {full}, nprobe {probes}"
        found.append(Row(name, "gather", "fast_plaid", settings, f"plaid-{bits}"))
    for bits, probes in ((4, 8), (4, 16), (4, 32), (2, 32)):
        settings = {"build": {"nbits": bits}, "search": {"nprobe": probes}}
        found.append(
            Row(f"xtr-warp, {bits} bits, nprobe {probes}", "impute", "warp", settings, f"warp-{bits}")
        )
    return found


def main(settings: Settings) -> None:
    console = Terminal(width=max(150, Terminal().width))  # the table's
    folder = held(settings.output)
    chosen = [row for row in rows() if not settings.systems or row.name.startswith(tuple(settings.systems))]
    pythons, missing = interpreters(settings.peers)
    if missing:
        console.print(f"Not installed in the environments given, and left out: {', '.join(missing)}.")
    chosen = [row for row in chosen if row.system not in missing]
    vectors = prepare(settings, folder, console)
    indexes = {row.index: row for row in reversed(chosen) if row.index}
    measured: dict[str, Any] = {"built": {}, "searched": {row.name: [] for row in chosen}}
    with progress_bar(True) as bar:
        task = bar.add_task("token search", total=len(indexes) + settings.rounds * len(chosen))
        run = partial(run_job, settings, vectors, folder, pythons)
        for index, row in indexes.items():
            bar.update(task, description=f"build {index}")
            measured["built"][index] = built(
                partial(run, row, "build"), folder / "indexes" / f"{index}.json", vectors
            )
            bar.advance(task)
        for _ in range(settings.rounds):
            for row in chosen:
                bar.update(task, description=row.name)
                measured["searched"][row.name].append(run(row, "search"))
                bar.advance(task)
    speed = machine(settings.threads)
    table = summary(chosen, measured, vectors, speed)
    found = {"settings": asdict(settings), "machine": speed, "rows": table}
    write_json(folder / "token_search.json", found)
    show(console, settings, table, vectors, speed)


def machine(threads: int) -> dict[str, Any]:
    """The processor, bytes/s that its threads read in order, FLOP/s of their plain GEMM: the best of 5."""
    torch.set_num_threads(threads)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory, matrix = torch.ones(1 << 27), torch.ones(1536, 1536)

    def best(work: Callable[[], Any]) -> float:
        def once() -> float:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began

        return min(once() for _ in range(5))

    return {
        "processor": names[0] if names else platform.processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "bytes_per_s": 4 * memory.numel() / best(memory.sum),
        "flops_per_s": 2 * len(matrix) ** 3 / best(lambda: matrix @ matrix),
    }


# --- processes ----------------------------------------------------------------------------------------


def interpreters(environments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The interpreter for each system, and the peers that no environment has."""
    pythons = dict.fromkeys(("ours", "gemm_scatter", "padded_einsum"), sys.executable)
    for system, module in MODULES.items():
        for environment in environments:
            python = Path(environment) / "bin" / "python"
            if not python.is_file():
                raise SystemExit(f"--peers: {environment} is not a virtual environment ({python} is missing)")
            if not subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
                pythons[system] = str(python)
    return pythons, [system for system in MODULES if system not in pythons]


def run_job(
    settings: Settings, vectors: Path, folder: Path, pythons: dict[str, str], row: Row, phase: str
) -> dict[str, Any]:
    """What `token_parts/systems.py` answers to one job."""
    place = folder / "indexes" / (row.index or "none")
    if phase == "build":
        shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    job = {
        "system": row.system, "settings": row.settings, "phase": phase, "vectors": str(vectors.resolve()),
        "folder": str(place.resolve()), "threads": settings.threads, "k": K,
    }  # fmt: skip
    write_json(folder / "job.json", job)
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(settings.threads)
    )
    done = subprocess.run(
        [
            pythons[row.system],
            str(Path(__file__).parent / "token_parts" / "systems.py"),
            str(folder / "job.json"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | threads | {"OMP_WAIT_POLICY": "passive"},
    )
    if done.returncode:
        raise SystemExit(f"{row.name} failed in {phase}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def built(build: Callable[[], dict[str, Any]], file: Path, vectors: Path) -> dict[str, Any]:
    """What `build` answers; of an index that was built before, on the same vectors, what it answered then."""
    made = json.loads((vectors / "vectors.json").read_text())
    if file.is_file():
        then = json.loads(file.read_text())
        if then["vectors"] == made:
            return then["built"]
    answer = build()
    write_json(file, {"vectors": made, "built": answer})
    return answer


# --- tables -------------------------------------------------------------------------------------------


def summary(
    chosen: Sequence[Row], measured: dict[str, Any], vectors: Path, speed: dict[str, Any]
) -> list[dict[str, Any]]:
    """What is printed of each row: times in milliseconds, memory in MiB."""
    tokens = json.loads((vectors / "vectors.json").read_text())["tokens"]
    truth = json.loads((vectors / "candidates.json").read_text())
    relevant = json.loads((vectors / "relevant.json").read_text())
    table = []
    for row in chosen:
        rounds, built = measured["searched"][row.name], measured["built"].get(row.index)
        found = rounds[-1]["found"]
        hits = [len(set(f[:K]) & set(t[:K])) / K for f, t in zip(found, truth, strict=True)]
        ranks = [
            next((1 / (n + 1) for n, id in enumerate(f[:K]) if id in r), 0.0)
            for f, r in zip(found, relevant, strict=True)
        ]
        memory, work = max(r["memory"] for r in rounds), rounds[-1]["work"]
        gemm = work and work["flops"] / speed["flops_per_s"]
        table.append(
            {
                "name": row.name,
                "kind": row.kind,
                "ours": row.ours,
                "index": row.index,
                "build_s": built and built["seconds"],
                "build_mib": built and built["memory"] / 2**20,
                "bytes_per_token": built and built["bytes"] / tokens,
                "search_mib": memory / 2**20,
                "single_ms": 1e3 * statistics.median(s for r in rounds for s in r["single"]),
                "batch_ms": 1e3 * statistics.median(r["batch"] for r in rounds) / len(found),
                "single_limit_ms": work and 1e3 * max(work["bytes"] / speed["bytes_per_s"], gemm),
                "batch_limit_ms": work and 1e3 * gemm,
                "recall": float(np.mean(hits)),
                "mrr": float(np.mean(ranks)),
            }
        )
    for row in table:
        row["ratio"] = ratio(row, table) if row["ours"] else None
    return table


def ratio(row: dict[str, Any], table: Sequence[dict[str, Any]]) -> tuple[float, str] | None:
    """How many times faster, one query at a time, than the fastest peer of equal or better recall; where no
    peer finds as much, than the one that finds most, which is marked."""
    peers = [other for other in table if other["kind"] == row["kind"] and not other["ours"]]
    if not peers:
        return None
    enough = [other for other in peers if other["recall"] >= row["recall"] - 1e-9]
    if enough:
        rival = min(enough, key=lambda other: other["single_ms"])
    else:
        rival = max(peers, key=lambda other: other["recall"])
    less = "" if enough else " (finds less)"
    return rival["single_ms"] / row["single_ms"], rival["name"] + less


def show(
    console: Terminal,
    settings: Settings,
    table: Sequence[dict[str, Any]],
    vectors: Path,
    speed: dict[str, Any],
) -> None:
    made = json.loads((vectors / "vectors.json").read_text())
    title = (
        f"{made['tokens']:,} tokens of {settings.documents} documents, {settings.dim} dimensions, "
        f"{settings.queries} queries, {settings.threads} threads of {speed['processor']} "
        f"({speed['vectors']}): {speed['bytes_per_s'] / 1e9:.1f} GB/s read in order, "
        f"GEMM {speed['flops_per_s'] / 1e9:.0f} GFLOP/s"
    )
    shown = Table(title=title)
    for name in ("system", "build s", "build MiB", "bytes/token", "search MiB", "ms single", "limit",
                 "ms batch", "limit", "recall@10", "MRR@10", "times faster than"):  # fmt: skip
        shown.add_column(name, justify="left" if name in ("system", "times faster than") else "right")
    for row in table:
        faster = row["ratio"] and f"{row['ratio'][0]:.1f} {row['ratio'][1]}"
        shown.add_row(
            row["name"], _number(row["build_s"], 1), _number(row["build_mib"], 0),
            _number(row["bytes_per_token"], 1), _number(row["search_mib"], 0), _number(row["single_ms"], 2),
            _number(row["single_limit_ms"], 2), _number(row["batch_ms"], 2),
            _number(row["batch_limit_ms"], 2), _number(row["recall"], 3),
            _number(row["mrr"], 3), faster or "",
            style="bold" if row["ours"] else None,
        )  # fmt: skip
    console.print(shown)
    console.print(f"Written to {Path(settings.output) / 'token_search.json'}.")


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


if __name__ == "__main__":
    main(Settings(**given))
