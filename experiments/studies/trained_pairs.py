"""A ColBERT and a T5-SEAL from the same T5, data and number of queries, for each seed: MVDR beside GR.

Wu et al. 2024 (arXiv:2404.00684), §6.2, compare T5-ColBERT and T5-SEAL. Experiments that ask how the two
align share their models: a pair that stands in the folder `models` is not trained again. Every model is in
its last state, which nothing chose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.pages import Section, print_sections, write_page, write_rows
from studies.shared_settings import PairSettings

from paradigms import GENERATIVE, PARADIGMS, Generative, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Problems, Run, Split, hold_out
from paradigms.evaluate import Interval
from paradigms.generative.small import small_t5
from paradigms.io.files import write_json
from paradigms.train.dev import candidates
from paradigms.train.job import (
    begin,
    environment,
    fit,
    fit_generative,
    keep_settings,
    open_collection,
    training_pairs,
    training_splits,
)
from paradigms.train.loop import TrainingSettings
from paradigms.train.state import by_main

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("colbert", "seal")  # the order in which a pair is given


TRAINING = (  # settings of the models; results under others are refused
    *("collection", "documents", "backbone", "vocabulary", "width", "layers", "steps", "batch_size"),
    *("learning_rate", "query_length", "document_length", "span", "precision"),
)


@dataclass(frozen=True)
class Bench:
    """A collection with its training and dev queries, the test queries that are measured, and BM25."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    bm25: BM25

    def pool(self, split: Split, depth: int) -> Run:
        """BM25's first `depth` documents of each query and the relevant ones, with BM25's scores."""
        return candidates(self.bm25.search(split.queries, depth), split.judgements, depth)


def open_bench(settings: PairSettings, console: Console) -> Bench:
    """The splits; without a dev split a tenth of the training queries, the same for every seed."""
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    if "test" not in collection.splits:
        raise SystemExit(f"{collection.name} has no split 'test'; it has {', '.join(collection.splits)}")
    train, dev = training_splits(collection, seed=0)
    if not (train.queries and dev.queries):
        raise SystemExit(f"{collection.name} has no training queries to train on and to choose by")
    test = some_queries(collection.split("test"), settings.queries)
    return Bench(collection, train, dev, test, BM25.build(collection.corpus, collection.corpus.ids))


def some_queries(split: Split, count: int) -> Split:
    """`count` of the split's queries, drawn by their ids alone; 0: all."""
    if not 0 < count < len(split.queries):
        return split
    return hold_out(split, count / len(split.queries))[1]


def keep_training(settings: PairSettings, bench: Bench) -> None:
    """Refuse a folder of models that were trained otherwise."""
    kept = {name: getattr(settings, name) for name in TRAINING}
    keep_settings(kept | {"fingerprint": bench.collection.fingerprint}, Path(settings.models), free=())


def trained_pair(
    seed: int, bench: Bench, settings: PairSettings, accelerator: Accelerator, console: Console
) -> tuple[Paradigm, Generative]:
    """The seed's ColBERT and SEAL, trained where they are not there yet."""
    folder = Path(settings.models) / f"seed-{seed}"
    missing = [name for name in NAMES if not (folder / name / "checkpoint").is_dir()]
    accelerator.wait_for_everyone()  # before any process can finish one
    backbone = settings.backbone
    if missing and backbone == "small":
        backbone = str(folder / "small-t5")
        texts = [*bench.collection.corpus, *bench.train.queries.values()]
        if accelerator.is_main_process and not Path(backbone).is_dir():
            # Dropout costs a T5 that starts from random weights more steps than it saves from over-fitting.
            sizes = {name: getattr(settings, name) for name in ("vocabulary", "width", "layers")}
            small_t5(texts, backbone, **sizes, dropout=0.0, seed=seed)
        accelerator.wait_for_everyone()
    for name in missing:
        console.print(f"{bench.collection.name}, seed {seed}: {name}")
        torch.manual_seed(seed)
        model = _fit(name, backbone, seed, bench, settings, folder / name / "training", accelerator, console)
        if accelerator.is_main_process:
            model.save_pretrained(folder / name / "checkpoint")
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    pair = (load(folder / name / "checkpoint").to(accelerator.device).eval() for name in NAMES)
    mvdr, generative = pair
    assert isinstance(mvdr, Paradigm)
    assert isinstance(generative, Generative)
    return mvdr, generative


def _fit(
    name: str,
    backbone: str,
    seed: int,
    bench: Bench,
    settings: PairSettings,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
) -> Paradigm | Generative:
    splits = bench.train, bench.dev
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    if name == "colbert":
        paradigm = PARADIGMS[name](backbone, **lengths).to(accelerator.device)
        training = _training(settings, settings.steps, seed)
        return fit(
            paradigm,
            bench.collection,
            splits,
            ({}, {}),
            0,
            0,
            training,
            folder,
            accelerator,
        )
    options: dict[str, Any] = lengths | {"decode": "spans", "span": settings.span}
    model = GENERATIVE[name](backbone, bench.collection.corpus, **options).to(accelerator.device)
    training = _training(settings, round(settings.steps / query_share(model, bench, seed)), seed)
    return fit_generative(
        model,
        bench.collection,
        splits,
        {},
        0,
        training,
        folder,
        accelerator,
        console,
    )


def _training(settings: PairSettings, steps: int, seed: int) -> TrainingSettings:
    return TrainingSettings(
        steps=steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup=0.05,
        save_every=100,
        seed=seed,
    )


def query_share(model: Generative, bench: Bench, seed: int) -> float:
    """Share of SEAL's training pairs whose source is a query; those of the others are passages."""
    pairs = training_pairs(model, bench.collection.corpus, bench.train, Problems(), seed)
    queries = set(bench.train.queries.values())
    return sum(pair.source in queries for pair in pairs) / len(pairs)


# --- what every experiment on pairs does around its measuring ---------------------------------------

Measured = dict[str, Any]  # of one seed, as JSON holds it
Rows = list[dict[str, Any]]


def measure_pairs(
    settings: PairSettings, measure: Callable[[Paradigm, Generative, Bench], Measured]
) -> tuple[Bench, list[Measured], Accelerator]:
    """`measure` of every seed's pair; what stands in the results folder is not measured again."""
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    bench = open_bench(settings, console)
    by_main(lambda: keep_training(settings, bench), accelerator)
    kept = asdict(settings) | {"fingerprint": bench.collection.fingerprint}
    by_main(lambda: keep_settings(kept, folder, free={"seeds", "models", "output", "tracker"}), accelerator)
    files = {seed: folder / f"seed-{seed}.json" for seed in settings.seeds}
    missing = [seed for seed, file in files.items() if not file.is_file()]
    accelerator.wait_for_everyone()  # before any process can finish one
    for seed in missing:
        try:
            pair = trained_pair(seed, bench, settings, accelerator, console)
            if accelerator.is_main_process:
                console.print(f"{bench.collection.name}, seed {seed}: measuring")
                write_json(files[seed], measure(*pair, bench))
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, seed {seed}: {error}") from error
        accelerator.wait_for_everyone()
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files.values()]
    return bench, found, accelerator


def publish(
    settings: Any,
    title: str,
    summary: str,
    sections: Mapping[str, Section],
    figures: Mapping[str, Figure],
    accelerator: Accelerator,
) -> None:
    """Each section's rows as NAME.csv, NAME.json and NAME.md, the figures as PNG, and all on one page.

    settings: a dataclass with an output folder.
    """
    folder, where = Path(settings.output), environment(accelerator)
    for name, section in sections.items():
        write_rows(folder / name, section.rows)
    write_json(folder / "environment.json", where)
    page = write_page(folder, title, summary, list(sections.values()), figures, asdict(settings) | where)
    print_sections(list(sections.values()))
    Console().print(f"{summary}\nReport: {page}")
    if accelerator.trackers:
        import wandb

        run = accelerator.get_tracker("wandb").tracker
        run.log({name: wandb.Image(str(folder / f"{name}.png")) for name in figures})


def trained_on(settings: PairSettings) -> str:
    """What the models have seen, for a summary."""
    seen = settings.steps * settings.batch_size
    return (
        f"seeds {settings.seeds} of a ColBERT and a SEAL from the T5 {settings.backbone!r}, trained on "
        f"{seen:,} queries each (SEAL on passages besides)"
    )


def shown(interval: Interval, sign: str = "") -> str:
    """mean [low, high]; sign: "+" for differences."""
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"
