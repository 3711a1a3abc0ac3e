"""What a comparison trains and measures: its systems' trainings, queries, BM25 and passages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from studies.system_settings import System

from paradigms import GENERATIVE
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Run, Split
from paradigms.data.by_document import Passages
from paradigms.data.identical import own_documents
from paradigms.generative.settings import TRAINING
from paradigms.train.job import DEV_DEPTH, NEGATIVES_DEPTH, training_splits
from paradigms.train.loop import TrainingSettings


@dataclass
class Data:
    """A collection as every system of a comparison sees it."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    others: dict[str, Split]  # more queries, of other splits
    bm25: BM25
    bm25_seconds: float  # to build
    dev_run: Run  # BM25's
    train_run: Run
    own: frozenset[str] = frozenset()  # ids of queries that are documents themselves, which are left out
    pieces: Passages | None = None  # of the documents, where these are split


def training_settings(system: System, settings: Any) -> TrainingSettings | None:
    """How the system is trained; None where it is not. settings: those of compare.py."""
    if system.checkpoint or system.fuse:
        return None
    if system.paradigm in GENERATIVE:
        chosen = TRAINING | {"seed": settings.seed} | system.training
        chosen = {"evaluate_every": max(1, chosen["steps"] // 2)} | chosen
    else:
        chosen = settings.training() | system.training
    return TrainingSettings(**chosen) if chosen["steps"] else None


def training_runs(settings: Any) -> dict[str, tuple[str, int]]:
    """Folder -> system and seed of each training and measurement; without training there is one seed.

    Fused systems come last, after what they fuse.
    """
    names = sorted(settings.chosen, key=lambda name: bool(settings.chosen[name].fuse))
    found = {name: (name, settings.seed) for name in names}
    for seed in range(settings.seed + 1, settings.seed + settings.seeds):
        for name, system in settings.chosen.items():
            if training_settings(system, settings):
                found[f"{name}.seed-{seed}"] = (name, seed)
    return found


def divided(collection: Collection, settings: Any) -> tuple[Split, Split, Split, dict[str, Split]]:
    """Queries to train on, dev queries, test queries, those of the splits `also`; SystemExit without them.

    Without a dev split a tenth of the training queries is held out for it; test queries choose nothing.
    """
    also = settings.also or []
    for option, name in [("split", settings.split), *(("also", name) for name in also)]:
        if name not in collection.splits:
            raise SystemExit(
                f"{collection.name} has no split {name!r}; it has {', '.join(collection.splits)}: "
                f"choose one with --{option}"
            )
    test = collection.split(settings.split)
    train_split, dev = training_splits(collection, settings.seed, settings.split, *also)
    if not train_split.queries and any(training_settings(of, settings) for of in settings.chosen.values()):
        raise SystemExit(
            f"{collection.name} has no training queries: --steps 0 compares encoders without training, and "
            "a system with a checkpoint was trained elsewhere"
        )
    for name, of in settings.chosen.items():
        if of.fuse and of.fusion == "sum" and not of.weights and not dev.queries:
            raise SystemExit(
                f"system {name}: {collection.name} has no dev queries to choose weights on: give them"
            )
    return train_split, dev, test, {name: collection.split(name) for name in also}


def prepare(
    collection: Collection,
    splits: tuple[Split, Split, Split, dict[str, Split]],
    settings: Any,
    *,
    progress: bool = False,
) -> Data:
    """The splits that `divided` gives, and BM25 with what training needs of it."""
    train_split, dev, test, others = splits
    began = time.perf_counter()
    bm25 = BM25.build(collection.corpus, collection.corpus.ids, progress=progress)
    seconds = time.perf_counter() - began
    dev_run = bm25.search(dev.queries, DEV_DEPTH, progress=progress)
    mined = train_split.queries if settings.negatives else {}
    train_run = bm25.search(mined, NEGATIVES_DEPTH, progress=progress and bool(mined))
    asked = (own_documents(collection.corpus, of, settings.identical_ids) for of in (test, *others.values()))
    own = frozenset().union(*asked)
    corpus = collection.corpus
    pieces = Passages(corpus, settings.passages, settings.best_passages) if settings.passages else None
    return Data(collection, train_split, dev, test, others, bm25, seconds, dev_run, train_run, own, pieces)
