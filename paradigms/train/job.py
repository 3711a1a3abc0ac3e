"""What every training script does around the loop: keep settings, open data, make splits, fit, tell where."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from collections.abc import Collection as Names
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console

from paradigms.data import Collection, Run, Split, hold_out, load
from paradigms.files import write_json
from paradigms.model import Paradigm
from paradigms.train.contrastive import Contrastive
from paradigms.train.dev import dev_measure
from paradigms.train.examples import build_examples
from paradigms.train.loop import TrainingSettings, train

# What each paradigm changes of the shared settings. all-MiniLM-L6-v2 was trained with mean pooling.
OPTIONS: dict[str, dict[str, Any]] = {
    "dpr": {"pooling": "mean"},
    "me_bert": {"pooling": "mean", "first": 8},
    "coil": {"pooling": "mean", "pooled_dim": 384},
}
DEV_DEPTH = 10  # first documents of the dev queries' run that the dev measure reranks
NEGATIVES_DEPTH = 100  # first documents of the training queries' run that hard negatives are drawn from


def folder_name(collection: str) -> str:
    """A collection's part of a results folder's name: hf-BeIR-scifact, or the name of its own folder."""
    if collection.startswith(("hf:", "irds:")):
        return collection.replace(":", "-").replace("/", "-")
    return Path(collection).resolve().name


def keep_settings(settings: dict[str, Any], folder: Path, free: Names[str]) -> None:
    """Write config.json; a folder with results of other settings, the `free` ones apart, is refused."""
    file = folder / "config.json"
    if file.is_file():
        old = json.loads(file.read_text(encoding="utf-8"))
        changed = [k for k in settings if k not in free and old.get(k) != settings[k]]
        if changed:
            raise SystemExit(
                f"{folder} holds results with other settings ("
                + "; ".join(f"{k}: {old.get(k)} then, {settings[k]} now" for k in changed)
                + "). Choose another --output, or delete that folder."
            )
    write_json(file, settings)


def open_collection(name: str, documents: int | None, console: Console) -> Collection:
    """The collection, with its size and its problems told; what cannot be opened ends the program.

    documents: size of a fixed subset, of pydocs alone.
    """
    try:
        collection = load(name, documents=documents)
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(str(error)) from error
    queries = ", ".join(f"{len(split.queries):,} {name}" for name, split in collection.splits.items())
    console.print(f"{collection.name}: {len(collection.corpus):,} documents; queries: {queries}")
    if collection.problems:
        console.print(f"Problems in the data:\n{collection.problems}")
    return collection


def training_splits(collection: Collection, seed: int) -> tuple[Split, Split]:
    """(train, dev); without a dev split a tenth of the training queries is held out for it."""
    queries = collection.splits.get("train", Split({}, {}))
    if "dev" in collection.splits:
        return queries, collection.splits["dev"]
    return hold_out(queries, share=0.1, seed=seed)


def fit(
    paradigm: Paradigm,
    collection: Collection,
    splits: tuple[Split, Split],
    runs: tuple[Run, Run],
    negatives: int,
    dev_queries: int,
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
) -> Paradigm:
    """The paradigm trained on splits[0] and chosen by nDCG@10 on the first `dev_queries` of splits[1].

    runs: a first ranking of each split's queries, to draw hard negatives from and to rerank. Without dev
    queries the last state is the result.
    """
    corpus, (queries, dev_split), (train_run, dev_run) = collection.corpus, splits, runs
    examples = build_examples(
        corpus, queries, train_run, negatives, depth=NEGATIVES_DEPTH, seed=training.seed
    )
    dev: Callable[[Paradigm], float] | None = None
    if dev_split.queries and dev_queries:
        dev = dev_measure(corpus, dev_split, dev_run, dev_queries, DEV_DEPTH, accelerator.mixed_precision)
    objective = Contrastive(paradigm, corpus, examples, training.temperature)
    trained = train(paradigm, objective, training, folder, accelerator=accelerator, dev=dev)
    return trained.to(accelerator.device)


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Where a result was made: versions, device, processes, precision."""
    packages = ("torch", "transformers", "accelerate", "numpy", "bm25s", "ir-measures")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(accelerator.device),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "precision": accelerator.mixed_precision,
    } | {name: version(name) for name in packages}
