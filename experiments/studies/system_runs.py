"""Run a comparison's systems: write, read, copy and fuse their runs, and time their searches."""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Names
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from studies import systems, trainings
from studies.model_runs import training_cost
from studies.system_settings import SystemSettings
from studies.systems import CUT, STAGES, ComparisonData, finished
from studies.trainings import Training

from paradigms.data import Run, check_answered, read_run, write_run
from paradigms.data.identical import own_documents, without_own
from paradigms.engines import EngineRetriever
from paradigms.evaluate import candidates, with_judgements
from paradigms.evaluate.tuning import tune_weights
from paradigms.io.checks import read_json
from paradigms.io.files import remove_folder, write_json
from paradigms.retrieve import AllProcesses, Model, Retriever, WithoutOwn, fuse
from paradigms.retrieve.wrappers import Wrapper
from paradigms.store.building import BUILT
from paradigms.train.parallel import by_main

# timed single queries, runs per query, and maximum seconds
TIMED = 50
ROUNDS = 3
SECONDS = 5.0


def write_runs(
    folder: Path, name: str, runs: Mapping[str, Run], queries: Mapping[str, Names[str]]
) -> dict[str, int]:
    """Write a system's run of each stage, and return the number of rows in each file, for costs.json.

    queries: stage -> queries. Raises ValueError if a run lacks one of these queries.
    """
    for stage, run in runs.items():
        check_answered(run, queries[stage], f"{name}, {stage}")
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


def copy_runs(source: str, name: str, queries: Mapping[str, Names[str]], folder: Path) -> None:
    """Write the runs of `source` as those of the untrained system `name`, which is then finished."""
    runs = {stage: read_stage(folder, source, stage) for stage in queries}
    write_json(folder / name / "costs.json", {"rows": write_runs(folder, name, runs, queries)})


def rows(run: Run) -> int:
    return sum(map(len, run.values()))


def run_bm25(data: ComparisonData) -> None:
    """Run BM25 on whole and on truncated documents; write runs, costs, and the candidates for rerank mode."""
    settings = data.settings
    test = data.test
    folder = Path(settings.output)
    pool = Run()
    for name, bm25 in {"bm25": data.bm25, CUT: data.cut}.items():
        if bm25 is None:
            continue
        retriever = WithoutOwn(bm25, data.document_queries)
        run = retriever.search(test.queries, settings.depth, progress=True)
        if name == "bm25":
            pool = candidates(run, settings.depth, test.judgements if settings.with_relevant else None)
            pool = without_own(pool, data.document_queries)
            write_run(folder / "runs" / "candidates.run", pool, tag="bm25")
        runs = {"retrieve": run, "rerank": bm25.rerank(test.queries, pool)}
        for split, other in data.others.items():
            runs[split] = retriever.search(other.queries, settings.depth, progress=True)
        written = write_runs(folder, name, runs, asked_of(data, pool))
        cost: dict[str, Any] = {"train s": None, "encode s": data.bm25_seconds if name == "bm25" else None}
        cost |= search_costs(retriever, None, test.queries, settings.depth)
        cost |= {"bytes/document": bm25.size_in_bytes() / max(1, len(data.collection.corpus))}
        cost |= dict.fromkeys(("parameters", "documents cut", "% of tokens cut"))
        write_json(folder / name / "costs.json", cost | {"rows": written})


def asked_of(data: ComparisonData, pool: Run) -> dict[str, Names[str]]:
    """Map each stage to the queries that systems answer in it. pool: candidates for rerank mode."""
    others = {name: split.queries for name, split in data.others.items()}
    return {"retrieve": data.test.queries, "rerank": pool, **others}


def run_system(name: str, trial: Training, data: ComparisonData, console: Console) -> None:
    """Train or load a system, search and rerank; costs.json, written last, marks it as finished."""
    settings = data.settings
    accelerator = data.accelerator
    folder = Path(settings.output, name)
    runs = Path(settings.output, "runs")
    system = settings.chosen[trial.system]
    pool = read_run(runs / "candidates.run")
    if twin := trainings.twin(trial, settings):
        by_main(partial(copy_runs, twin, name, asked_of(data, pool), folder.parent), accelerator)
        return
    model = systems.trained(trial, data, folder)
    progress = accelerator.is_main_process
    cut = None if trial.untrained else model.count_cut(data.pieces.corpus)
    if cut and cut.cut:
        console.print(f"{name}: {cut.summary}")
    began = time.perf_counter()
    retriever = systems.retriever(model, system, data, folder / "index")
    others = WithoutOwn(retriever, data.document_queries)
    encoded = time.perf_counter()
    ranked = {"retrieve": others.search(data.test.queries, settings.depth, progress=progress)}
    ranked["rerank"] = retriever.rerank(data.test.queries, pool, progress=progress)
    for split, other in data.others.items():
        ranked[split] = others.search(other.queries, settings.depth, progress=progress)
    if accelerator.is_main_process:
        written = write_runs(Path(settings.output), name, ranked, asked_of(data, pool))
        if trial.untrained:
            remove_folder(folder / "index", BUILT)
            write_json(folder / "costs.json", {"rows": written})
    if accelerator.is_main_process and not trial.untrained:
        searched = retriever
        while isinstance(searched, Wrapper):
            searched = searched.retriever
        size = retriever.size_in_bytes() / max(1, len(data.collection.corpus))
        if not (folder / "checkpoint").is_dir():  # the model was not trained
            model.save_pretrained(folder / "checkpoint")
        cost = {
            "train s": training_cost(folder).get("seconds"),
            "encode s": None if system.index else encoded - began,
            **search_costs(others, model, data.test.queries, settings.depth),
            "bytes/document": None if isinstance(searched, EngineRetriever) else size,
            "parameters": sum(p.numel() for p in model.parameters()),
            "documents cut": cut and cut.cut,
            "% of tokens cut": cut and 100 * cut.share,
            "rows": written,
        }
        write_json(folder / "costs.json", cost)
    accelerator.wait_for_everyone()
    accelerator.free_memory()


def run_fused(name: str, system: SystemSettings, data: ComparisonData) -> None:
    """Fuse runs of the first seed; the weights are given in the settings, equal, or chosen on dev queries."""
    settings = data.settings
    folder = Path(settings.output)
    weights = tuple(system.weights)
    chosen = ""
    if system.fusion == "sum" and not weights:
        own_ids = own_documents(data.collection.corpus, data.dev, settings.identical_ids)
        parts = [WithoutOwn(finished(part, data), own_ids) for part in system.fuse]
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
    added = ("encode ms/query", "search ms/query")
    total = {cost: sum(part[cost] or 0 for part in costs) for cost in added}
    sizes = [part["bytes/document"] for part in costs]
    total["bytes/document"] = None if None in sizes else sum(sizes)
    write_json(folder / name / "costs.json", total | {"rows": written})


def search_costs(
    retriever: Retriever, model: Model | None, queries: Mapping[str, str], k: int
) -> dict[str, float | None]:
    """Return median milliseconds to encode one query, and to search with it, in this process."""
    texts = dict(islice(queries.items(), TIMED))
    encode = getattr(model, "encode_queries", None)
    local = _alone(retriever)
    searching = milliseconds(lambda query: local.search({query: texts[query]}, k), list(texts))
    if encode is None or searching is None:
        return {"encode ms/query": None, "search ms/query": searching}
    encoding = milliseconds(lambda query: encode([texts[query]]), list(texts)) or 0.0
    return {"encode ms/query": encoding, "search ms/query": max(0.0, searching - encoding)}


def _alone(retriever: Retriever) -> Retriever:
    if isinstance(retriever, AllProcesses):
        return retriever.retriever
    if isinstance(retriever, Wrapper):
        return replace(retriever, retriever=_alone(retriever.retriever))
    return retriever


def milliseconds(work: Callable[[str], Any], queries: Sequence[str]) -> float | None:
    """Return a query's median milliseconds after a warm-up, in ROUNDS or SECONDS; None without queries."""
    elapsed: list[float] = []
    for query in [*queries[:1], *list(queries) * ROUNDS]:
        began = time.perf_counter()
        work(query)
        elapsed.append(1000 * (time.perf_counter() - began))
        if len(elapsed) > 1 and sum(elapsed[1:]) > 1000 * SECONDS:
            break
    return float(np.median(elapsed[1:])) if elapsed else None
