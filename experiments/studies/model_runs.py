"""Every model of a study: trained by one recipe where it is missing, indexed, and measured once."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.pages import Measured, some_queries
from studies.shared_settings import EncoderTraining

from paradigms import Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import PerQuery, per_query
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.io.terminal import shown
from paradigms.train.job import DEV_DEPTH, NEGATIVES_DEPTH, fit, open_collection, training_splits
from paradigms.train.loop import TrainingSettings, kept_step
from paradigms.train.state import by_main

LEARNED = 0.5  # of BM25's measure: what a system below it does says nothing of its paradigm


@dataclass(frozen=True)
class Bench:
    """A collection with its training and dev queries, the test queries that are measured, and BM25."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    bm25: BM25
    mined: Run  # BM25's ranking of the training queries, where hard negatives are drawn from it
    dev_run: Run  # BM25's

    def lexical(self, measures: tuple[str, ...]) -> PerQuery:
        """BM25's measures on the test queries."""
        return per_query(self.bm25.search(self.test.queries, 100), self.test.judgements, measures)


def open_bench(name: str, settings: Any, console: Console, needs: tuple[str, ...], queries: int = 0) -> Bench:
    """The collection `name` (dev queries held out where there are none); SystemExit where one of the `needs`
    has no queries. queries: test queries, drawn at random; 0: all."""
    collection = open_collection(name, settings.documents or None if name == "pydocs" else None, console)
    train, dev = training_splits(collection, seed=0)
    test = some_queries(collection.splits.get("test", Split({}, {})), queries)
    for kind, split in (("training", train), ("dev", dev), ("test", test)):
        if kind in needs and not split.queries:
            raise SystemExit(f"{name} has no {kind} queries; its splits: {', '.join(collection.splits)}")
    bm25 = BM25.build(collection.corpus, collection.corpus.ids)
    mined = bm25.search(train.queries, NEGATIVES_DEPTH) if settings.negatives and train.queries else {}
    return Bench(collection, train, dev, test, bm25, mined, bm25.search(dev.queries, DEV_DEPTH))


@dataclass(frozen=True)
class Job:
    """One model of a study: FOLDER/checkpoint, and what was measured of it, FOLDER/values.json."""

    name: str  # in messages
    folder: Path
    seed: int
    make: Callable[[], Paradigm]  # untrained; called after torch.manual_seed(seed)
    measure: Callable[[Paradigm, ExactIndex, Path], Measured]  # Path: a folder that is deleted afterwards
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the training settings
    load: Callable[[Path], Paradigm] = Paradigm.from_pretrained
    checkpoint: Path | None = None  # that is taken as it is


def run_jobs(
    jobs: Sequence[Job], bench: Bench, settings: EncoderTraining, accelerator: Accelerator, console: Console
) -> list[Measured]:
    """What was measured of every model; what stands in the results folder is not trained or measured again.

    "kept step": after how many steps training kept the model; 0: untrained; None: a checkpoint as it is.
    """
    missing = [job for job in jobs if not (job.folder / "values.json").is_file()]
    accelerator.wait_for_everyone()  # before any process can finish one, so that all agree on what is missing
    for n, job in enumerate(missing, 1):
        console.print(f"{bench.collection.name}, {job.name} ({n} of {len(missing)})")
        try:
            run_job(job, bench, settings, accelerator)
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, {job.name}: {shown(error)}") from error
    return [json.loads((job.folder / "values.json").read_text(encoding="utf-8")) for job in jobs]


def run_job(job: Job, bench: Bench, settings: EncoderTraining, accelerator: Accelerator) -> None:
    """Train the model, and measure it."""
    checkpoint, training = job.checkpoint or job.folder / "checkpoint", job.folder / "training"
    finished = checkpoint.is_dir()
    accelerator.wait_for_everyone()  # before any process can finish it
    if not finished:
        names = TrainingSettings.__dataclass_fields__.keys() & asdict(settings).keys()
        chosen = {name: getattr(settings, name) for name in names} | dict(job.changes)
        given = TrainingSettings(**chosen, seed=job.seed, save_every=100)
        torch.manual_seed(job.seed)
        paradigm = job.make().to(accelerator.device)
        splits, runs = (bench.train, bench.dev), (bench.mined, bench.dev_run)
        counts = settings.negatives, settings.dev_queries
        paradigm = fit(paradigm, bench.collection, splits, runs, *counts, given, training, accelerator)

        def keep() -> None:
            write_json(training / "kept.json", kept_step(training))
            paradigm.save_pretrained(checkpoint)
            for spent in ("checkpoints", "best"):  # of no use any more, several times the model
                shutil.rmtree(training / spent, ignore_errors=True)

        by_main(keep, accelerator)

    def finish() -> None:
        paradigm, corpus = job.load(checkpoint).to(accelerator.device).eval(), bench.collection.corpus
        job.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=job.folder) as own:
            precision = accelerator.mixed_precision
            index = ExactIndex.build(paradigm, corpus.ids, corpus, f"{own}/index", precision=precision)
            kept = (
                None if job.checkpoint else json.loads((training / "kept.json").read_text(encoding="utf-8"))
            )
            measured = {"kept step": kept} | job.measure(paradigm, index, Path(own))
            write_json(job.folder / "values.json", measured)

    by_main(finish, accelerator)
    accelerator.free_memory()


def unlearned(means: Mapping[str, float], bm25: float, models: Iterable[Measured] = ()) -> str:
    """For `Claim.unlearned`: the first system below LEARNED times BM25's mean of the same measure, or one of
    whose `models` the untrained encoder was kept; "" if there is none."""
    poor = next((name for name, mean in means.items() if mean < LEARNED * bm25), "")
    kept = any(model.get("kept step") == 0 for model in models)
    return poor or ("a model that training made worse on dev queries" if kept else "")
