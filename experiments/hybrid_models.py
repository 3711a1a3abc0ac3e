"""The models of hybrid.py: DE-BERT and ME-BERT in rounds of hard negatives, and cross-attention.

A model that stands in the results folder is not trained again. Every model is in its last state, which
nothing chose; the dev queries choose among rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from hybrid_claims import DENSE, SPARSE
from rich.console import Console
from trained_pairs import some_queries

from paradigms import PARADIGMS, Paradigm, load
from paradigms.cross_attention import cross_attention
from paradigms.data import Collection, Run, Split
from paradigms.lexical import BM25
from paradigms.train.job import NEGATIVES_DEPTH, fit, folder_name, open_collection, training_splits
from paradigms.train.loop import TrainingSettings
from paradigms.train.mining import mine
from paradigms.train.state import by_main

RERANKER = "cross_attention"
FIRST = "first"  # the round that starts from the backbone
FURTHER = ("again", "mined")  # rounds that go on from its end
APPROXIMATE = ("faiss", "compressed")  # kinds of index


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
    rounds: list[str] = field(default_factory=lambda: list(FURTHER))
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
    rerank_batch_size: int = 8
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
    indexes: list[str] = field(default_factory=lambda: ["faiss", "compressed"])
    """approximate searches that are timed"""
    lists: int = 0
    """of each approximate index, whose vectors they divide among them; 0: the square root of their number"""
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
        for name, known in (("rounds", FURTHER), ("indexes", APPROXIMATE)):
            unknown = [value for value in getattr(self, name) if value not in known]
            if unknown:
                raise SystemExit(f"{name} must be some of {', '.join(known)}; got {', '.join(unknown)}")
        for name in ("seeds", "rerank_depths", "probes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise SystemExit(f"{name} must be different numbers, and at least one; got {values}")
        ones = ("vectors", "steps", "negatives", "rerank_steps", "rerank_negatives", "depth")
        for name in (*ones, "rerank_depths", "probes"):
            values = getattr(self, name)
            if min(values if isinstance(values, list) else [values]) < 1:
                raise SystemExit(f"{name} must be at least 1, got {values}")
        if self.repeats < 2:
            raise SystemExit("repeats must be at least 2: the first of a timed search warms it up")
        if max(self.rerank_depths) > self.depth:
            raise SystemExit(
                f"rerank_depths reach {max(self.rerank_depths)}, and {self.depth} documents are retrieved: "
                "set a larger depth"
            )


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
