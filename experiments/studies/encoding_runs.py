"""DSI, GENRE and SEAL with and without PAWA and NP-decoding, and DPR: trained from one T5, and measured.

ColBERT and T5-SEAL are those of `trained_pairs`; the others are trained here from the same T5 on the same
queries. Every model is in its last state, which nothing chose. A model that stands in the results folder is
not trained again, a system not measured again.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.encoding_settings import SYSTEMS, Settings
from studies.trained_pairs import Bench, Measured, keep_training, open_bench, query_share, trained_pair

from paradigms import GENERATIVE, PARADIGMS, Generative, Paradigm, load
from paradigms.data import Problems, Run
from paradigms.evaluate import per_query
from paradigms.generative.pairs import Pair, indexing_pairs, retrieval_pairs
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.train.job import begin, fit, keep_settings, training_pairs
from paradigms.train.likelihood import Likelihood
from paradigms.train.loop import TrainingSettings, train, training_seconds
from paradigms.train.state import by_main

MEASURES = ("R@1", "R@10", "RR@10", "nDCG@10")
STAGES = ("retrieve", "rerank")
BM25 = "BM25"
PAIR = ("colbert", "seal")


FREE = {"systems", "seeds", "models", "output", "tracker"}  # what may change in a results folder


def run_all(settings: Settings) -> tuple[Bench, dict[int, dict[str, Measured]], Accelerator]:
    """seed -> system -> its measures per query and stage, and its training; trained where not there yet."""
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    bench = open_bench(settings, console)
    kept = asdict(settings) | {"fingerprint": bench.collection.fingerprint}
    by_main(lambda: keep_training(settings, bench), accelerator)
    by_main(lambda: keep_settings(kept, folder, free=FREE), accelerator)
    pool = bench.pool(bench.test, settings.depth)
    files = {
        (seed, system): folder / f"seed-{seed}" / f"{system}.json"
        for seed in settings.seeds
        for system in settings.systems
    }
    missing = [key for key, file in files.items() if not file.is_file()]
    accelerator.wait_for_everyone()  # before any process can finish one
    for seed, system in missing:
        try:
            model, took = trained(SYSTEMS[system][0], seed, bench, settings, accelerator, console)
            if accelerator.is_main_process:
                console.print(f"{bench.collection.name}, seed {seed}: measuring {system}")
                measured = measure(search_by(model, system, settings), bench, pool) | {"cost": took}
                write_json(files[seed, system], measured)
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, seed {seed}, {system}: {error}") from error
        accelerator.wait_for_everyone()
    found: dict[int, dict[str, Measured]] = {seed: {BM25: lexical(bench, pool)} for seed in settings.seeds}
    for (seed, system), file in files.items():
        found[seed][system] = json.loads(file.read_text(encoding="utf-8"))
    return bench, found, accelerator


# --- training ---------------------------------------------------------------------------------------


def trained(
    name: str, seed: int, bench: Bench, settings: Settings, accelerator: Accelerator, console: Console
) -> tuple[Paradigm | Generative, Measured]:
    """The seed's model as saved, or as trained now; and what its training took."""
    own = Path(settings.models) / f"seed-{seed}"
    small = settings.backbone == "small"
    if name in PAIR or (small and not (own / "small-t5").is_dir()):
        pair = trained_pair(seed, bench, settings, accelerator, console)
        if name in PAIR:
            return pair[PAIR.index(name)], cost(own / name / "training")
    folder = Path(settings.output) / f"seed-{seed}" / name
    finished = (folder / "checkpoint").is_dir()
    accelerator.wait_for_everyone()  # before any process can finish it
    if not finished:
        if name.startswith("dsi") and not settings.embedder:
            trained("dpr", seed, bench, settings, accelerator, console)
        console.print(f"{bench.collection.name}, seed {seed}: {name}")
        torch.manual_seed(seed)
        backbone = str(own / "small-t5") if small else settings.backbone
        model = _fit(name, backbone, seed, bench, settings, folder / "training", accelerator, console)
        if accelerator.is_main_process:
            model.save_pretrained(folder / "checkpoint")
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    saved = load(folder / "checkpoint")
    assert isinstance(saved, Paradigm | Generative)
    saved.to(accelerator.device).eval()
    return saved, cost(folder / "training")


def build(name: str, backbone: str, seed: int, bench: Bench, settings: Settings) -> Generative:
    """The generative model of this name, untrained. PAWA and NP-decoding change its output vectors alone."""
    identifiers, _, encoding = name.partition("-")
    options: dict[str, Any] = {
        "query_length": settings.query_length,
        "document_length": settings.document_length,
    }
    if encoding == "pawa":
        options["pawa_rank"] = settings.text_rank
    elif encoding:
        options |= {"tokens": "clusters", "clusters": settings.clusters}
    if encoding == "np-async":
        options["refresh"] = settings.refresh
    if identifiers == "seal":
        options |= {"decode": "spans", "span": settings.span}
    if identifiers == "dsi":
        own_encoder = Path(settings.output) / f"seed-{seed}" / "dpr" / "checkpoint" / "backbone"
        options["embedder"] = settings.embedder or str(own_encoder)
        options |= {"branching": settings.branching, "seed": seed}
        if encoding == "pawa":
            options |= {"pawa_rank": settings.digit_rank or _width(backbone), "softmax": "place"}
    return GENERATIVE[identifiers](backbone, bench.collection.corpus, **options)


def pairs_of(
    model: Generative, bench: Bench, settings: Settings, seed: int, problems: Problems
) -> list[Pair]:
    """Queries and passages with the identifiers of their documents; spans where identifiers are text."""
    corpus, ids = bench.collection.corpus, model.identifiers
    if ids.kind == "text":
        return training_pairs(model, corpus, bench.train, problems, seed)
    return retrieval_pairs(bench.train, ids) + indexing_pairs(
        corpus,
        ids,
        problems,
        words=settings.passage_words,
        passages=settings.passages,
        spread="randomly",
        seed=seed,
    )


def _fit(
    name: str,
    backbone: str,
    seed: int,
    bench: Bench,
    settings: Settings,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
) -> Paradigm | Generative:
    training = TrainingSettings(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup=0.05,
        save_every=100,
        seed=seed,
    )
    if name == "dpr":
        lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
        dense = PARADIGMS[name](backbone, pooling="mean", **lengths).to(accelerator.device)
        splits = bench.train, bench.dev
        return fit(dense, bench.collection, splits, ({}, {}), 0, 0, training, folder, accelerator)
    model = build(name, backbone, seed, bench, settings).to(accelerator.device)
    problems = Problems()
    pairs = pairs_of(model, bench, settings, seed, problems)
    for found in (model.identifiers.problems, problems):
        if found:
            console.print(f"{name}: {found}")
    steps = settings.generative_steps
    if model.identifiers.kind == "text":
        steps = round(settings.steps / query_share(model, bench, seed))
    objective = Likelihood(model, bench.collection.corpus, pairs)
    return train(model, objective, replace(training, steps=steps), folder, accelerator=accelerator)


def _width(backbone: str) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(backbone).d_model)


def cost(folder: Path) -> Measured:
    """Steps, seconds, and the loss at the first and last logged step."""
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    history = [json.loads(line) for line in lines]
    losses = [line for line in history if "loss" in line]
    return {
        "steps": losses[-1]["step"],
        "seconds": training_seconds(folder),
        "first loss": losses[0]["loss"],
        "last loss": losses[-1]["loss"],
    }


# --- measuring --------------------------------------------------------------------------------------


def search_by(model: Paradigm | Generative, system: str, settings: Settings) -> Paradigm | Generative:
    """The model, decoding as the system does."""
    if isinstance(model, Generative):
        decode: Any = SYSTEMS[system][1] or model.settings.decode
        model.settings = replace(model.settings, decode=decode, beams=settings.beams)
    return model


def measure(model: Paradigm | Generative, bench: Bench, pool: Run) -> Measured:
    """End to end and rerank: each measure, one value per test query."""
    queries, corpus = bench.test.queries, bench.collection.corpus
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, Generative):
            retriever = GenerativeRetriever(model)
            search, rerank = retriever.search, retriever.rerank
        else:
            index = ExactIndex.build(model, corpus.ids, corpus, f"{folder}/index", precision="no")
            search, rerank = partial(index.search, model), partial(index.rerank, model)
        runs = {"retrieve": search(queries, 10), "rerank": rerank(queries, pool)}
    return values(runs, bench)


def lexical(bench: Bench, pool: Run) -> Measured:
    """BM25's own runs."""
    queries = bench.test.queries
    runs = {"retrieve": bench.bm25.search(queries, 10), "rerank": bench.bm25.rerank(queries, pool)}
    return values(runs, bench)


def values(runs: dict[str, Run], bench: Bench) -> Measured:
    found: Measured = {}
    for stage, run in runs.items():
        results = per_query(run, bench.test.judgements, MEASURES)
        found[stage] = {measure: of.tolist() for measure, of in results.values.items()}
        found["queries"] = results.queries
    return found
