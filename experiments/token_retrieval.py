"""Does in-batch token retrieval retrieve better tokens, and can they alone rank? XTR beside ColBERT.

Lee et al. 2023 (arXiv:2304.01982), §3 and §5: both objectives train the same encoder on the same batches, XTR
with several k_train and batch sizes; the token retrieval and the scores of every model are measured alike. A
model that stands in the results folder is not trained again: seeds, k_train and batch sizes may be added.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings:
    """What is trained on what, and how far its tokens are searched."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    backbone: str = "offline"
    """an encoder, or a T5, by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package; small:
    a T5 with random weights and the collection's vocabulary"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    steps: int = 60
    batch_size: int = 16
    """queries per step and process of ColBERT and of the XTRs that are compared with it"""
    other_batch_sizes: list[int] = field(default_factory=lambda: [8, 32])
    """of further XTRs (Figure 7)"""
    k_train: list[int] = field(default_factory=lambda: [8, 32, 128])
    """tokens of the batch that each query token retrieves in training"""
    negatives: int = 0
    """hard negatives per query, mined from BM25's top 100"""
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    """of the projection, which starts untrained"""
    query_length: int = 32
    document_length: int = 96
    search_tokens: list[int] = field(default_factory=lambda: [3, 10, 30, 100, 300, 1000, 3000])
    """the k' that are tried"""
    table_tokens: int = 100
    """k' of the imputations (Table 5), of the costs (Table 1) and of the choice of k_train by dev queries"""
    queries: int = 0
    """test queries that are measured, drawn at random; 0: all"""
    output: str = ""
    """results folder; empty: results/token-retrieval-COLLECTION"""
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    def __post_init__(self) -> None:
        self.output = self.output or f"results/token-retrieval-{folder_name(self.collection)}"
        for name in ("seeds", "k_train", "search_tokens"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise SystemExit(f"{name} must be different numbers, and at least one; got {values}")
        for name in ("k_train", "search_tokens", "other_batch_sizes", "table_tokens", "batch_size"):
            values = getattr(self, name)
            if min(values if isinstance(values, list) else [values], default=1) < 1:
                raise SystemExit(f"{name} must be at least 1, got {values}")

    def searched(self) -> list[int]:
        """The k' that are measured, ascending."""
        return sorted({*self.search_tokens, self.table_tokens})

    def models(self) -> list[Model]:
        """ColBERT, and XTR with every k_train and batch size, of every seed."""
        sizes = dict.fromkeys([self.batch_size, *self.other_batch_sizes])
        kinds = [(None, self.batch_size), *((k, size) for size in sizes for k in self.k_train)]
        return [Model(*kind, seed) for seed in self.seeds for kind in kinds]


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from accelerate import Accelerator
from rich.console import Console
from studies import model_runs
from studies.token_claims import Model, describe, gather
from studies.token_measures import MEASURES, imputed_run, measure, token_search
from studies.trained_pairs import publish, some_queries

from paradigms import Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.colbert import colbert
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import per_query
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.train.job import begin, keep_settings, open_collection, t5_folder, training_splits
from paradigms.train.state import by_main
from paradigms.xtr import xtr

FREE = {"seeds", "k_train", "other_batch_sizes", "output", "tracker"}  # what may change in a results folder


@dataclass(frozen=True)
class Bench:
    """A collection with its training and dev queries, and the test queries that are measured."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    mined: Run  # BM25's ranking of the training queries, where hard negatives are drawn from it


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    collection, train, dev, test = open_splits(settings, console)
    bm25 = BM25.build(collection.corpus, collection.corpus.ids)
    bench = Bench(collection, train, dev, test, model_runs.mined(bm25, train, settings))
    kept = asdict(settings) | {"fingerprint": collection.fingerprint}
    kept |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    by_main(lambda: keep_settings(kept, folder, free=FREE), accelerator)
    files = {model: folder / model.name / "values.json" for model in settings.models()}
    model_runs.run_missing(
        files,
        lambda model, file: run_model(model, file, bench, settings, accelerator),
        collection.name,
        accelerator,
        console,
    )
    if accelerator.is_main_process:
        results = [json.loads(file.read_text(encoding="utf-8")) for file in files.values()]
        lexical = model_runs.lexical(bm25, test, MEASURES)
        found = gather(results, settings.searched(), settings.table_tokens, lexical)
        summary = (
            f"{len(lexical.queries)} test queries over {len(collection.corpus):,} documents; seeds "
            f"{settings.seeds}. ColBERT and XTR learn from {settings.backbone} in {settings.steps} steps of "
            f"{settings.batch_size * accelerator.num_processes} queries, the same ones in the same order. "
            "Intervals (95%) resample seeds and queries."
        )
        publish(settings, "Token retrieval", summary, *describe(found), accelerator)
    accelerator.end_training()


def open_splits(settings: Settings, console: Console) -> tuple[Collection, Split, Split, Split]:
    """The collection, its training and dev queries (held out where there are none), and the measured ones."""
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    train, dev = training_splits(collection, seed=0)
    test = some_queries(collection.splits.get("test", Split({}, {})), settings.queries)
    for name, split in (("training", train), ("dev", dev), ("test", test)):
        if not split.queries:
            raise SystemExit(
                f"{collection.name} has no {name} queries; its splits: {', '.join(collection.splits)}"
            )
    return collection, train, dev, test


def run_model(model: Model, file: Path, bench: Bench, settings: Settings, accelerator: Accelerator) -> None:
    """Train a model where it is not there yet, and measure it into `file`."""
    own = file.parent
    paradigm = trained(model, bench, settings, own, accelerator)

    def finish() -> None:
        corpus, k = bench.collection.corpus, settings.table_tokens
        with tempfile.TemporaryDirectory(dir=own) as folder:
            precision = accelerator.mixed_precision
            index = ExactIndex.build(paradigm, corpus.ids, corpus, f"{folder}/index", precision=precision)
            measured = measure(paradigm, index, corpus, bench.test, settings.searched(), k)
            measured["dev"] = dev_measure(paradigm, index, bench.dev, k)
        write_json(file, asdict(model) | measured)

    by_main(finish, accelerator)
    accelerator.free_memory()


def trained(model: Model, bench: Bench, settings: Settings, own: Path, accelerator: Accelerator) -> Paradigm:
    """The model after all steps: own/checkpoint."""
    finished = (own / "checkpoint").is_dir()
    accelerator.wait_for_everyone()  # before any process can finish it
    if not finished:
        backbone = t5_folder(
            settings.backbone, bench.collection, own.parent / "small-t5", model.seed, accelerator
        )
        torch.manual_seed(model.seed)
        # The same tokens for both objectives: the texts' own, punctuation included.
        lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
        options: dict[str, Any] = lengths | {"skip": "", "special_tokens": False}
        make = colbert if model.k_train is None else partial(xtr, k_train=model.k_train)
        paradigm = model_runs.trained(
            make(backbone, **options).to(accelerator.device),
            bench.collection,
            bench.train,
            bench.mined,
            model.seed,
            settings,
            own / "training",
            accelerator,
            batch_size=model.batch_size,
        )

        def keep() -> None:
            paradigm.save_pretrained(own / "checkpoint")
            shutil.rmtree(own / "training" / "checkpoints")  # of no use any more, each three times the model

        by_main(keep, accelerator)
    return Paradigm.from_pretrained(own / "checkpoint").to(accelerator.device).eval()


def dev_measure(paradigm: Paradigm, index: ExactIndex, dev: Split, k: int) -> list[float]:
    """RR@10 of every dev query by f_XTR' with k' = k: what k_train is chosen by."""
    with torch.inference_mode():
        searches = token_search(paradigm, index, dev.queries, k)
        run = {found.query: imputed_run(found, index, k) for found in searches}
    return per_query(run, dev.judgements, ("RR@10",)).values["RR@10"].tolist()


if __name__ == "__main__":
    main(Settings(**given))
