"""The models of hybrid.py: DE-BERT and ME-BERT in rounds of hard negatives, and cross-attention.

A model that stands in the results folder is not trained again. Every model is in its last state, which
nothing chose; the dev queries choose among rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.hybrid_claims import DENSE, SPARSE
from studies.hybrid_settings import Settings
from studies.trained_pairs import some_queries

from paradigms import PARADIGMS, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Collection, Run, Split
from paradigms.train.job import NEGATIVES_DEPTH, fit, open_collection, training_splits
from paradigms.train.loop import TrainingSettings
from paradigms.train.mining import mine
from paradigms.train.state import by_main

RERANKER = "cross_attention"
FIRST = "first"  # the round that starts from the backbone


@dataclass(frozen=True)
class Sparse:
    """BM25, and what it finds for dev and test queries."""

    bm25: BM25
    dev: Run
    test: Run


@dataclass(frozen=True)
class Bench:
    """A collection, the queries that train, choose and are measured, and BM25 by its terms."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    sparse: dict[str, Sparse]
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
    corpus, sparse = collection.corpus, {}
    for ngrams, name in enumerate(SPARSE, 1):
        bm25 = BM25.build(corpus, corpus.ids, ngrams=ngrams)
        sparse[name] = Sparse(bm25, *(bm25.search(split.queries, settings.depth) for split in (dev, test)))
    negatives = sparse[SPARSE[0]].bm25.search(train.queries, NEGATIVES_DEPTH)
    return Bench(collection, train, dev, test, sparse, negatives)


# --- training ---------------------------------------------------------------------------------------


def models(settings: Settings) -> list[tuple[str, str]]:
    """Every model of a seed and its round, in the order in which they are trained."""
    dense = [(name, round) for round in (FIRST, *settings.rounds) for name in DENSE]
    return [*dense, (RERANKER, FIRST)]


def model_folder(name: str, round: str, seed: int, settings: Settings) -> Path:
    return Path(settings.output) / f"seed-{seed}" / f"{name}-{round}"


def train_all(
    seed: int, bench: Bench, settings: Settings, accelerator: Accelerator, console: Console
) -> None:
    """Every model of a seed that does not stand in its folder."""
    for name, round in models(settings):
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
            batch_size=getattr(settings, f"{prefix}batch_size"),
            learning_rate=settings.learning_rate,
            save_every=100,
            # Another order of the queries than that of the round before.
            seed=seed if round == FIRST else seed + 1_000,
        )
        count = getattr(settings, f"{prefix}negatives")
        splits = bench.train, bench.dev
        fitted = fit(
            model,
            bench.collection,
            splits,
            (negatives, {}),
            count,
            0,
            training,
            folder / "training",
            accelerator,
        )
        by_main(partial(fitted.save_pretrained, folder / "checkpoint"), accelerator)
        accelerator.free_memory()


def start(name: str, round: str, seed: int, settings: Settings) -> Any:
    """The model before a round: new, or as the first round left it."""
    if round != FIRST:
        return load(model_folder(name, FIRST, seed, settings) / "checkpoint")
    lengths: dict[str, Any] = {
        "query_length": settings.query_length,
        "document_length": settings.document_length,
    }
    if name == RERANKER:
        return cross_attention(settings.backbone, pooling=settings.pooling, **lengths)
    first = {"first": settings.vectors} if name == "me_bert" else {}
    same = {"pooling": settings.pooling, "normalize": settings.normalize}
    return PARADIGMS[name](settings.backbone, **lengths, **same, **first)
