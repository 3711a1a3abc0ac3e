"""Compare token search on a CPU between our indexes and peers' indexes, on the same vectors.

Vectors are token states of the offline encoder for a collection's documents and test queries, reduced by PCA
and normalised. Each system builds and searches in separate processes (`parts`), once in every round, so that
memory is measured per system. Times are medians over queries and rounds. recall@10 is measured against exact
MaxSim. Each peer runs in a separate environment, whose folder `--peers` names; missing peers are listed.
Compare ratios: times depend on the machine.

Each row for one of our systems also gives the machine's limit, measured in the same run. For one query, the
limit is the longer of two times: reading the bytes that the query needs, sequentially and with all threads,
and computing its products in a plain float32 GEMM. A batch reads the vectors once, so its limit is the time
of the GEMM.

To emulate a processor with AVX2 on a newer one, restrict every library: ATEN_CPU_CAPABILITY=avx2
DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 LIBXSMM_TARGET=hsw (for maxsim-cpu) NUMBA_CPU_NAME=haswell
NUMBA_CPU_FEATURES= (empty). xtr-warp-rs cannot be restricted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings for the vectors and the systems that search them."""

    collection: str = "pydocs"
    documents: int = 4173
    """number of documents: those relevant to the queries, and others drawn at random"""
    queries: int = 200
    """number of test queries"""
    document_length: int = 256
    dim: int = 128
    peers: list[str] = field(default_factory=list)
    """folders of virtual environments, each with any of maxsim-cpu, fast-plaid and xtr-warp-rs"""
    systems: list[str] = field(default_factory=list)
    """prefixes of the names of rows to run; empty: all"""
    rounds: int = 3
    threads: int = 2
    seed: int = 0
    output: str = "results/benchmarks/token_search"


if __name__ == "__main__":  # before the slow imports
    arguments = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from parts.shared import MiB, last_line, run_worker, timed
from parts.vectors import prepare
from rich.table import Table

from paradigms.io.checks import json_or_empty, read_json
from paradigms.io.device import processor
from paradigms.io.files import held, remove_folder, write_json, write_text
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal

K = 10
COLUMNS = (  # heading, key of a row, decimal places
    ("build s", "build_s", 1),
    ("build MiB", "build_mib", 0),
    ("bytes/token", "bytes_per_token", 1),
    ("search MiB", "search_mib", 0),
    ("ms single", "single_ms", 2),
    ("limit", "single_limit_ms", 2),
    ("ms batch", "batch_ms", 2),
    ("limit", "batch_limit_ms", 2),
    ("recall@10", "recall", 3),
    ("MRR@10", "mrr", 3),
)
MODULES = {"maxsim_cpu": "maxsim_cpu", "fast_plaid": "fast_plaid", "warp": "xtr_warp"}


@dataclass(frozen=True)
class Row:
    """A measured system. Rows with equal `kind` do the same work; rows with equal `index` share one index."""

    name: str
    kind: str  # exact, rerank, gather, impute
    system: str
    settings: dict[str, Any]
    index: str = ""


def rows() -> list[Row]:
    """Return the rows of all systems."""
    exact: dict[str, Any] = {"kind": "exact"}
    listed = [
        Row("exact", "exact", "ours", exact, "exact"),
        Row("torch GEMM + scatter-max", "exact", "gemm_scatter", {}),
        Row("maxsim-cpu", "exact", "maxsim_cpu", {}),
        Row("rerank 100", "rerank", "ours", exact | {"rerank": True}, "exact"),
        Row("padded einsum, 100", "rerank", "padded_einsum", {"rerank": True}),
        Row("maxsim-cpu, 100", "rerank", "maxsim_cpu", {"rerank": True}),
    ]
    for bits in (4, 2):
        built = {"kind": "compressed", "build": {"bits": bits}}
        for probes, candidates, k in ((4, 32, 2000), (4, 64, 2000), (8, 64, 2000), (8, 128, 2000)):
            knobs = {"probes": probes, "candidates": candidates}
            name = f"gather, {bits} bits, {probes} lists, {candidates} candidates"
            settings = built | {"knobs": knobs, "search_tokens": k}
            listed.append(Row(name, "gather", "ours", settings, f"compressed-{bits}"))
        for probes, k in ((2, 1000), (3, 2000), (4, 2000), (8, 4000), (16, 6000), (32, 10000)):
            settings = built | {"knobs": {"probes": probes}, "search_tokens": k, "impute": True}
            name = f"impute, {bits} bits, {probes} lists, k' = {k}"
            listed.append(Row(name, "impute", "ours", settings, f"compressed-{bits}"))
    for bits, full, probes in ((4, 1024, 8), (4, 512, 4), (4, 256, 4), (2, 256, 4)):
        settings = {"build": {"nbits": bits}, "search": {"n_full_scores": full, "n_ivf_probe": probes}}
        name = f"fast-plaid, {bits} bits, n_full {full}, nprobe {probes}"
        listed.append(Row(name, "gather", "fast_plaid", settings, f"plaid-{bits}"))
    for bits, probes in ((4, 8), (4, 16), (4, 32), (2, 32)):
        settings = {"build": {"nbits": bits}, "search": {"nprobe": probes}}
        name = f"xtr-warp, {bits} bits, nprobe {probes}"
        listed.append(Row(name, "impute", "warp", settings, f"warp-{bits}"))
    return listed


def main(settings: Settings) -> None:
    console = Terminal(width=max(150, Terminal().width))  # width of the table
    folder = held(settings.output)
    chosen = [row for row in rows() if not settings.systems or row.name.startswith(tuple(settings.systems))]
    pythons, missing = interpreters(settings.peers)
    if missing:
        console.print(f"Not installed in the environments given, and left out: {', '.join(missing)}.")
    chosen = [row for row in chosen if row.system not in missing]
    vectors = prepare(settings, folder, console)
    indexes = {row.index: row for row in reversed(chosen) if row.index}
    built: dict[str, Any] = {}
    searched: dict[str, list[Any]] = {row.name: [] for row in chosen}
    with progress_bar(True) as bar:
        task = bar.add_task("token search", total=len(indexes) + settings.rounds * len(chosen))
        run = partial(run_job, settings, vectors, folder, pythons)
        for index, row in indexes.items():
            bar.update(task, description=f"build {index}")
            built[index] = made_once(partial(run, row, "build"), folder / f"indexes/{index}.json", vectors)
            bar.advance(task)
        for _ in range(settings.rounds):
            for row in chosen:
                bar.update(task, description=row.name)
                searched[row.name].append(run(row, "search"))
                bar.advance(task)
    speed = machine(settings.threads)
    table = summary(chosen, built, searched, vectors, speed)
    write_json(folder / "token_search.json", {"settings": asdict(settings), "machine": speed, "rows": table})
    show(console, settings, table, vectors, speed)


def machine(threads: int) -> dict[str, Any]:
    """Measure sequential reads in bytes/s and a plain GEMM in FLOP/s, each as the best of 5 runs."""
    torch.set_num_threads(threads)
    numbers, matrix = torch.ones(1 << 27), torch.ones(1536, 1536)
    read, multiply = (
        min(timed(work)[0] for _ in range(5)) for work in (numbers.sum, lambda: matrix @ matrix)
    )
    return {
        "processor": processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "bytes_per_s": 4 * numbers.numel() / read,
        "flops_per_s": 2 * len(matrix) ** 3 / multiply,
    }


def interpreters(environments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the interpreter for each system, and the peers that none of the environments contains."""
    pythons = dict.fromkeys(("ours", "gemm_scatter", "padded_einsum"), sys.executable)
    for system, module in MODULES.items():
        for environment in environments:
            python = Path(environment).absolute() / "bin" / "python"
            if not python.is_file():
                raise SystemExit(f"--peers: {environment} is not a virtual environment ({python} is missing)")
            if not subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
                pythons[system] = str(python)
    return pythons, [system for system in MODULES if system not in pythons]


def run_job(
    settings: Settings, vectors: Path, folder: Path, pythons: dict[str, str], row: Row, phase: str
) -> dict[str, Any]:
    """Run `parts/systems.py` for one job and return its answer."""
    place = folder / "indexes" / (row.index or "none")
    if phase == "build":
        begun = place.with_name(f".{place.name}.begun")  # marks a folder whose file names a peer chooses
        remove_folder(place, lambda _: ("*", "*/") if begun.is_file() else None)
        write_text(begun, "")
    job = {"system": row.system, "settings": row.settings, "phase": phase, "vectors": str(vectors.resolve())}
    job |= {"folder": str(place.resolve()), "threads": settings.threads, "k": K}
    done = run_worker("systems", job, pythons[row.system], settings.threads)
    if done.returncode:
        raise SystemExit(f"{row.name} failed in {phase}:\n{done.stderr[-2000:]}")
    return last_line(done.stdout)


def made_once(build: Callable[[], dict[str, Any]], file: Path, vectors: Path) -> dict[str, Any]:
    """Return the answer stored in `file` for these vectors, or call `build` and store its answer."""
    made = read_json(vectors / "vectors.json")
    if (then := json_or_empty(file)).get("vectors") != made:
        then = {"vectors": made, "built": build()}
        write_json(file, then)
    return then["built"]


def summary(
    chosen: Sequence[Row],
    built: dict[str, Any],
    searched: dict[str, list[Any]],
    vectors: Path,
    speed: dict[str, Any],
) -> list[dict[str, Any]]:
    """Make a result for each chosen row, with times in milliseconds, memory in MiB, recall and MRR@10."""
    tokens = read_json(vectors / "vectors.json")["tokens"]
    truth, relevant = (
        json.loads((vectors / f"{name}.json").read_text()) for name in ("candidates", "relevant")
    )
    table = []
    for row in chosen:
        rounds, index = searched[row.name], built.get(row.index)
        ranked, work = [name[:K] for name in rounds[-1]["found"]], rounds[-1]["work"]
        hits = [len({*f} & {*t[:K]}) / K for f, t in zip(ranked, truth, strict=True)]
        ranks = [
            next((1 / n for n, id in enumerate(f, 1) if id in r), 0.0)
            for f, r in zip(ranked, relevant, strict=True)
        ]
        gemm = work and work["flops"] / speed["flops_per_s"]
        table.append(
            {
                "name": row.name,
                "kind": row.kind,
                "ours": row.system == "ours",
                "index": row.index,
                "build_s": index and index["seconds"],
                "build_mib": index and index["memory"] / MiB,
                "bytes_per_token": index and index["bytes"] / tokens,
                "search_mib": max(r["memory"] for r in rounds) / MiB,
                "single_ms": 1e3 * statistics.median(s for r in rounds for s in r["single"]),
                "single_limit_ms": work and 1e3 * max(work["bytes"] / speed["bytes_per_s"], gemm),
                "batch_ms": 1e3 * statistics.median(r["batch"] for r in rounds) / len(ranked),
                "batch_limit_ms": work and 1e3 * gemm,
                "recall": float(np.mean(hits)),
                "mrr": float(np.mean(ranks)),
            }
        )
    for row in table:
        row["ratio"] = ratio(row, table) if row["ours"] else None
    return table


def ratio(row: dict[str, Any], table: Sequence[dict[str, Any]]) -> tuple[float, str] | None:
    """Return the speed relative to the fastest peer with equal or better recall, and the peer's name.

    The speed is for one query at a time. If no peer reaches the recall, the peer with the highest recall is
    used and marked. Returns None if no peer does this kind of work.
    """
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
    made = read_json(vectors / "vectors.json")
    title = (
        f"{made['tokens']:,} tokens of {settings.documents} documents, {settings.dim} dimensions, "
        f"{settings.queries} queries, {settings.threads} threads of {speed['processor']} "
        f"({speed['vectors']}): {speed['bytes_per_s'] / 1e9:.1f} GB/s read in order, "
        f"GEMM {speed['flops_per_s'] / 1e9:.0f} GFLOP/s"
    )
    shown = Table("system", title=title)
    for name, _, _ in COLUMNS:
        shown.add_column(name, justify="right")
    shown.add_column("times faster than")
    for row in table:
        cells = ["" if row[key] is None else f"{row[key]:.{places}f}" for _, key, places in COLUMNS]
        faster = f"{row['ratio'][0]:.1f} {row['ratio'][1]}" if row["ratio"] else ""
        shown.add_row(row["name"], *cells, faster, style="bold" if row["ours"] else None)
    console.print(shown)
    console.print(f"Written to {Path(settings.output) / 'token_search.json'}.")


if __name__ == "__main__":
    main(Settings(**arguments))
