"""What do vectors, words and both together retrieve, what does reranking add, and at what time of search?

Luan et al. 2021 (TACL), §7: DE-BERT and ME-BERT before and after a round of hard-negative mining, BM25, their
hybrids, and cross-attention over the first candidates of each (Tables 1 and 2, Figure 6); quality against
milliseconds of approximate search with one vector and with m (Figure 7). Dev queries choose the round of
training, BM25's terms and λ. A model that stands in the results folder is not trained again, a seed not
measured again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings:
    """What is trained on what, retrieved, reranked and timed."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    vectors: int = 3
    """m: of each document of ME-BERT; 3 for passages and 4 for documents in the paper"""
    pooling: Literal["mean", "cls"] = "mean"
    """of DE-BERT's vectors and ME-BERT's query. The paper's is cls, and DE-BERT then ME-BERT with m = 1;
    all-MiniLM-L6-v2 has learned mean, and with cls its first vector wins every maximum of ME-BERT"""
    normalize: bool = False
    """cosines in place of the paper's inner products"""
    rounds: list[Literal["again", "mined"]] = field(default_factory=lambda: ["again", "mined"])
    """of training after the first, each from its end: mined, with the model's own hard negatives; again, with
    BM25's as before, which tells what more steps do from what other negatives do"""
    steps: int = 200
    """of each round"""
    batch_size: int = 32
    """queries per step and process"""
    negatives: int = 3
    """hard negatives per query, of the first 100 documents"""
    learning_rate: float = 5e-5
    rerank_steps: int = 400
    """of cross-attention"""
    rerank_negatives: int = 7
    """of each query of cross-attention, of BM25's first 100"""
    query_length: int = 32
    document_length: int = 128
    queries: int = 200
    """test queries that are measured, drawn at random; 0: all"""
    dev_queries: int = 200
    """dev queries that choose, drawn at random; 0: all"""
    depth: int = 100
    """documents that each system retrieves, of dense and sparse ones the candidates of their hybrid"""
    rerank_depths: list[int] = field(default_factory=lambda: [2, 5, 10, 20, 50])
    """first documents that cross-attention orders anew"""
    probes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    """lists that a query looks into"""
    repeats: int = 5
    """of each timed search, in turn with the others; the fastest counts, the first warms up"""
    output: str = ""
    """results folder; empty: results/hybrid-COLLECTION"""
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    def __post_init__(self) -> None:
        self.output = self.output or f"results/hybrid-{folder_name(self.collection)}"
        for name in ("seeds", "rerank_depths", "probes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise SystemExit(f"{name} must be different numbers, and at least one; got {values}")
            if name != "seeds" and min(values) < 1:
                raise SystemExit(f"{name} must be at least 1, got {values}")
        for name in ("vectors", "steps", "negatives", "rerank_steps", "rerank_negatives", "depth"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.repeats < 2:
            raise SystemExit("repeats must be at least 2: the first of a timed search warms it up")
        if max(self.rerank_depths) > self.depth:
            raise SystemExit(
                f"rerank_depths reach {max(self.rerank_depths)}, and {self.depth} documents are retrieved: "
                "set a larger depth"
            )


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.approximate_search import time_searches
from studies.hybrid_claims import DE, DENSE, MEASURES, RR, SPARSE, describe, draw, gather, hybrid_name
from studies.pages import Measured, publish, some_queries

from paradigms import PARADIGMS, CrossAttention, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import per_query
from paradigms.evaluate.hybrid import System, candidate_scores, combine, tune, union
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.io.terminal import shown
from paradigms.train.job import (
    NEGATIVES_DEPTH,
    begin,
    fit,
    keep_settings,
    open_collection,
    training_splits,
)
from paradigms.train.loop import TrainingSettings
from paradigms.train.mining import mine
from paradigms.train.state import by_main

RERANKER, RERANK_BATCH = "cross_attention", 8
FIRST = "first"  # the round that starts from the backbone
FOUND = 10  # documents that a timed search asks for: those that RR@10 looks at


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    bench = open_bench(settings, console)
    kept = asdict(settings) | {"fingerprint": bench.collection.fingerprint}
    kept |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    by_main(lambda: keep_settings(kept, folder, free={"seeds", "output", "tracker"}), accelerator)
    files = {seed: folder / f"seed-{seed}" / "measured.json" for seed in settings.seeds}
    # Before any process can finish one, so that all agree on which are left.
    missing = [seed for seed, file in files.items() if not file.is_file()]
    accelerator.wait_for_everyone()
    for seed in missing:
        try:
            train_all(seed, bench, settings, accelerator, console)
            console.print(f"{bench.collection.name}, seed {seed}: measuring")
            by_main(partial(finish, files[seed], seed, bench, settings, accelerator), accelerator)
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, seed {seed}: {shown(error)}") from error
    if accelerator.is_main_process:
        found = gather([json.loads(file.read_text(encoding="utf-8")) for file in files.values()])
        summary = (
            f"{len(bench.test.queries)} test queries over {len(bench.collection.corpus):,} documents; seeds "
            f"{settings.seeds}. Every model comes from {settings.backbone} and learns from "
            f"{len(bench.train.queries):,} queries: the dense ones in rounds of {settings.steps} steps of "
            f"{settings.batch_size} queries, cross-attention in {settings.rerank_steps} of "
            f"{RERANK_BATCH}. Intervals (95 %) resample seeds and queries."
        )
        page = describe(found, settings.vectors), draw(found)
        publish(settings, "Sparse, dense, hybrid", summary, *page, accelerator)
    accelerator.end_training()


@dataclass(frozen=True)
class Bench:
    """A collection, the queries that train, choose and are measured, and BM25 by its terms."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    sparse: dict[str, BM25]
    negatives: Run  # BM25's ranking of the training queries


def open_bench(settings: Settings, console: Console) -> Bench:
    """The collection's splits, the same for every seed."""
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    train, dev = training_splits(collection, seed=0)
    test = collection.splits.get("test", Split({}, {}))
    for name, split in (("training", train), ("dev", dev), ("test", test)):
        if not split.queries:
            raise SystemExit(
                f"{collection.name} has no {name} queries; its splits: {', '.join(collection.splits)}"
            )
    dev, test = some_queries(dev, settings.dev_queries), some_queries(test, settings.queries)
    corpus = collection.corpus
    sparse = {name: BM25.build(corpus, corpus.ids, ngrams=n) for n, name in enumerate(SPARSE, 1)}
    negatives = sparse[SPARSE[0]].search(train.queries, NEGATIVES_DEPTH)
    return Bench(collection, train, dev, test, sparse, negatives)


# --- training ---------------------------------------------------------------------------------------


def model_folder(name: str, round: str, seed: int, settings: Settings) -> Path:
    return Path(settings.output) / f"seed-{seed}" / f"{name}-{round}"


def train_all(
    seed: int, bench: Bench, settings: Settings, accelerator: Accelerator, console: Console
) -> None:
    """Every model of a seed that does not stand in its folder."""
    dense = [(name, round) for round in (FIRST, *settings.rounds) for name in DENSE]
    for name, round in [*dense, (RERANKER, FIRST)]:
        folder = model_folder(name, round, seed, settings)
        finished = (folder / "checkpoint").is_dir()
        accelerator.wait_for_everyone()  # before any process can finish it
        if finished:
            continue
        console.print(f"{bench.collection.name}, seed {seed}: {name}, {round}")
        torch.manual_seed(seed)
        model = start(name, round, seed, settings).to(accelerator.device)
        negatives = bench.negatives
        if round == "mined":
            assert isinstance(model, Paradigm)
            precision = accelerator.mixed_precision
            negatives = mine(
                model, bench.collection.corpus, bench.train, NEGATIVES_DEPTH, precision=precision
            )
        prefix = "rerank_" if name == RERANKER else ""
        training = TrainingSettings(
            steps=getattr(settings, f"{prefix}steps"),
            batch_size=RERANK_BATCH if name == RERANKER else settings.batch_size,
            learning_rate=settings.learning_rate,
            save_every=100,
            # Another order of the queries than that of the round before.
            seed=seed if round == FIRST else seed + 1_000,
        )
        count = getattr(settings, f"{prefix}negatives")
        splits, runs, own = (bench.train, bench.dev), (negatives, {}), folder / "training"
        fitted = fit(model, bench.collection, splits, runs, count, 0, training, own, accelerator)
        by_main(partial(fitted.save_pretrained, folder / "checkpoint"), accelerator)
        accelerator.free_memory()


def start(name: str, round: str, seed: int, settings: Settings) -> Any:
    """The model before a round: new, or as the first round left it."""
    if round != FIRST:
        return load(model_folder(name, FIRST, seed, settings) / "checkpoint")
    lengths: Any = {"query_length": settings.query_length, "document_length": settings.document_length}
    if name == RERANKER:
        return cross_attention(settings.backbone, pooling=settings.pooling, **lengths)
    first = {"first": settings.vectors} if name == "me_bert" else {}
    same = {"pooling": settings.pooling, "normalize": settings.normalize}
    return PARADIGMS[name](settings.backbone, **lengths, **same, **first)


# --- measuring --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dense:
    """A trained model, the documents' vectors, and what it finds for the test queries."""

    model: Paradigm
    index: ExactIndex
    system: System
    test: Run


def finish(file: Path, seed: int, bench: Bench, settings: Settings, accelerator: Accelerator) -> None:
    """Write what `measure` finds: the seed is measured."""
    write_json(file, measure(seed, bench, settings, accelerator))


def measure(seed: int, bench: Bench, settings: Settings, accelerator: Accelerator) -> Measured:
    """What a seed's systems do for the test queries, and what the dev queries choose among them."""
    dev, test, depth = bench.dev, bench.test, settings.depth
    with tempfile.TemporaryDirectory(dir=settings.output) as temporary:
        dense: dict[str, dict[str, Dense]] = {system: {} for system in DENSE.values()}
        on_dev: dict[str, Any] = {
            name: rr(of.search(dev.queries, depth), dev) for name, of in bench.sparse.items()
        }
        for name, system in DENSE.items():
            for round in (FIRST, *settings.rounds):
                folder = model_folder(name, round, seed, settings)
                dense[system][round] = of = opened(folder, bench, depth, temporary, accelerator)
                on_dev.setdefault(system, {})[round] = rr(of.system.search(dev.queries, depth), dev)
        chosen = {system: max(on_dev[system], key=on_dev[system].__getitem__) for system in dense}
        kept = {system: dense[system][round] for system, round in chosen.items()}
        runs = {name: of.search(test.queries, depth) for name, of in bench.sparse.items()}
        runs |= {system: of.test for system, of in kept.items()}
        weights = {}
        for system, of in kept.items():
            for name, bm25 in bench.sparse.items():
                both, hybrid = (of.system, System(bm25.search, bm25.rerank)), hybrid_name(system, name)
                λ = tune(*candidate_scores(*both, dev.queries, depth), dev, measure=RR).weight
                runs[hybrid] = combine(*candidate_scores(*both, test.queries, depth), λ)
                weights[hybrid] = {"round": chosen[system], "λ": λ}
        timed = time_searches(
            {system: (of.model, of.index) for system, of in kept.items()},
            test.queries,
            Path(temporary),
            probes=settings.probes,
            k=FOUND,
            repeats=settings.repeats,
        )
    reranker = load(model_folder(RERANKER, FIRST, seed, settings) / "checkpoint").to(accelerator.device)
    assert isinstance(reranker, CrossAttention)
    return {
        "seed": seed,
        "queries": per_query(runs[DE], test.judgements, (RR,)).queries,
        "dev": on_dev,
        "weights": weights,
        "retrieve": {system: values(run, test) for system, run in runs.items()},
        "rounds": {
            system: {round: values(of.test, test) for round, of in each.items()}
            for system, each in dense.items()
        },
        "rerank": rerank(reranker, runs, settings.rerank_depths, bench, accelerator.mixed_precision),
        "search": [
            {
                "system": way.system,
                "index": way.kind,
                "probes": way.probes,
                "ms/query": float(way.milliseconds.mean()),
                "bytes/document": way.index.bytes_per_document,
                RR: values(way.found, test)[RR],
            }
            for way in timed
        ],
    }


def opened(folder: Path, bench: Bench, depth: int, temporary: str, accelerator: Accelerator) -> Dense:
    """A saved dense model with its documents, searched exactly."""
    model = load(folder / "checkpoint").to(accelerator.device)
    assert isinstance(model, Paradigm)
    corpus, own = bench.collection.corpus, f"{temporary}/{folder.name}"
    index = ExactIndex.build(model, corpus.ids, corpus, own, precision=accelerator.mixed_precision)
    system = System(partial(index.search, model), partial(index.rerank, model))
    return Dense(model, index, system, system.search(bench.test.queries, depth))


def rerank(
    reranker: CrossAttention, runs: Mapping[str, Run], depths: list[int], bench: Bench, precision: str
) -> Measured:
    """system → depth → RR@10 of each query: its first documents in their new order, the others left out."""
    queries, corpus = bench.test.queries, bench.collection.corpus
    heads = {
        system: {q: {d: of[d] for d in best(of, max(depths))} for q, of in run.items()}
        for system, run in runs.items()
    }
    # A score depends on its pair alone: one pass over all systems' candidates serves each of them.
    scores = reranker.rerank(queries, corpus, union(*heads.values()), precision=precision, progress=True)
    found: Measured = {}
    for system, run in heads.items():
        found[system] = {}
        for depth in depths:
            anew = {q: {d: scores[q][d] for d in best(of, depth)} for q, of in run.items()}
            found[system][str(depth)] = values(anew, bench.test)[RR]
    return found


def best(scores: Mapping[str, float], count: int) -> list[str]:
    """The documents with the largest scores; of equal ones the smaller ids."""
    return sorted(scores, key=lambda document: (-scores[document], document))[:count]


def values(run: Run, split: Split) -> dict[str, list[float]]:
    """Each measure, one value per query."""
    return {name: of.tolist() for name, of in per_query(run, split.judgements, MEASURES).values.items()}


def rr(run: Run, split: Split) -> float:
    """What dev queries choose by."""
    return per_query(run, split.judgements, (RR,)).mean(RR)


if __name__ == "__main__":
    main(Settings(**given))
