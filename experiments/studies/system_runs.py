"""Write, read, copy and fuse the runs of a comparison's systems, and time their searches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Names
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from studies.system_settings import SystemSettings
from studies.systems import STAGES, ComparisonData, finished

from paradigms.data import Run, check_answered, read_run, write_run
from paradigms.data.identical import own_documents
from paradigms.evaluate import with_judgements
from paradigms.evaluate.tuning import tune_weights
from paradigms.find import open_index
from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.retrieve import AllProcesses, Model, Retriever, WithoutOwn, fuse
from paradigms.retrieve.wrappers import Wrapper

# timed single queries, runs per query, and maximum seconds
TIMED = 50
ROUNDS = 3
SECONDS = 5.0


def write_runs(
    folder: Path, name: str, runs: Mapping[str, Run], asked: Mapping[str, Names[str]]
) -> dict[str, int]:
    """Write a system's run of each stage, and return the number of rows in each file, for costs.json.

    asked: stage -> queries. Raises ValueError if a run lacks one of these queries.
    """
    for stage, run in runs.items():
        check_answered(run, asked[stage], f"{name}, {stage}")
    for stage, run in runs.items():
        write_run(folder / "runs" / f"{name}.{stage}.run", run, tag=name)
    return {stage: rows(run) for stage, run in runs.items()}


def read_stage(folder: Path, name: str, stage: str) -> Run:
    """Read a run written by `write_runs`. Raises ValueError if the file has fewer rows than were written."""
    file = folder / "runs" / f"{name}.{stage}.run"
    costs = folder / name / "costs.json"
    run = read_run(file)
    written = read_json(costs).get("rows", {}).get(stage, 1)
    if rows(run) < written:
        raise ValueError(
            f"{file} is damaged: it has {rows(run):,} rows, and {written:,} were written. "
            f"Delete {costs} to measure the system again"
        )
    return run


def copy_runs(source: str, name: str, asked: Mapping[str, Names[str]], folder: Path) -> None:
    """Write the runs of `source` as those of the untrained system `name`, which is then finished."""
    runs = {stage: read_stage(folder, source, stage) for stage in asked}
    write_json(folder / name / "costs.json", {"rows": write_runs(folder, name, runs, asked)})


def rows(run: Run) -> int:
    return sum(map(len, run.values()))


def run_fused(name: str, system: SystemSettings, data: ComparisonData, settings: Any) -> None:
    """Fuse runs of the first seed; the weights are given in the settings, equal, or chosen on dev queries."""
    folder = Path(settings.output)
    weights = tuple(system.weights)
    chosen = ""
    if system.fusion == "sum" and not weights:
        own_ids = own_documents(data.collection.corpus, data.dev, settings.identical_ids)
        parts = [WithoutOwn(finished(part, data, settings), own_ids) for part in system.fuse]
        runs = [part.search(data.dev.queries, settings.depth) for part in parts]
        dev = with_judgements(data.dev, data.collection.corpus, runs)
        weights = tune_weights(runs, dev)
        chosen = f", chosen on {len(data.dev.queries):,} dev queries"
    weights = weights or (1.0,) * len(system.fuse)
    fused = dict[str, Run]()
    queries = dict[str, list[str]]()
    for stage in (*STAGES, *data.others):
        runs = [read_stage(folder, part, stage) for part in system.fuse]
        depth = None if stage == "rerank" else settings.depth
        fused[stage] = fuse(runs, weights, system.fusion, depth)
        queries[stage] = [query for run in runs for query in run]
    written = write_runs(folder, name, fused, queries)
    by_part = dict(zip(system.fuse, weights, strict=True))
    fusion = {"fusion": system.fusion, "weights": by_part, "chosen": chosen}
    write_json(folder / name / "fusion.json", fusion)
    costs = [read_json(folder / part / "costs.json") for part in system.fuse]
    added = ("encode ms/query", "search ms/query", "bytes/document")
    total = {cost: sum(part[cost] or 0 for part in costs) for cost in added}
    write_json(folder / name / "costs.json", total | {"rows": written})


def search_costs(
    retriever: Retriever, model: Model | None, queries: Mapping[str, str], k: int
) -> dict[str, float | None]:
    """Return median milliseconds to encode one query, and to search with it, in this process.

    Queries are timed one at a time. The search time is the time of a whole query minus the encoding time.
    """
    texts = dict(islice(queries.items(), TIMED))
    encode = getattr(model, "encode_queries", None)
    local = _alone(retriever)
    searching = milliseconds(lambda query: local.search({query: texts[query]}, k), list(texts))
    if encode is None or searching is None:
        return {"encode ms/query": None, "search ms/query": searching}
    encoding = milliseconds(lambda query: encode([texts[query]]), list(texts)) or 0.0
    return {"encode ms/query": encoding, "search ms/query": max(0.0, searching - encoding)}


def index_recall(folder: Path, k: int) -> dict[str, float]:
    """Return the recall that the build of an index measured for searches of k documents, if it did."""
    choices = open_index(folder).choices if folder.is_dir() else []
    nearest = next((choice for choice in choices if k <= choice.k), choices[-1] if choices else None)
    return {f"recall@{nearest.k} of the index": nearest.recall} if nearest else {}


def _alone(retriever: Retriever) -> Retriever:
    if isinstance(retriever, AllProcesses):
        return retriever.retriever
    if isinstance(retriever, Wrapper):
        return replace(retriever, retriever=_alone(retriever.retriever))
    return retriever


def milliseconds(work: Callable[[str], Any], queries: Sequence[str]) -> float | None:
    """Return the median milliseconds of `work` for one query, after a warm-up; None if there are no queries.

    The queries run in up to ROUNDS rounds, until the total time exceeds SECONDS.
    """
    elapsed: list[float] = []
    for query in [*queries[:1], *queries * ROUNDS]:
        began = time.perf_counter()
        work(query)
        elapsed.append(1000 * (time.perf_counter() - began))
        if len(elapsed) > 1 and sum(elapsed[1:]) > 1000 * SECONDS:
            break
    return float(np.median(elapsed[1:])) if elapsed else None
