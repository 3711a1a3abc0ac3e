"""Train every missing model of a study to its last state, measure it once, and say which have not learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator
from rich.console import Console

from paradigms import Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import PerQuery, per_query
from paradigms.train.job import NEGATIVES_DEPTH, fit
from paradigms.train.loop import TrainingSettings

LEARNED = 0.5  # of BM25's measure: what a system below it does says nothing of its paradigm

Model = TypeVar("Model")


def run_missing(
    files: Mapping[Model, Path],
    run: Callable[[Model, Path], None],
    name: str,
    accelerator: Accelerator,
    console: Console,
) -> None:
    """run(model, file) for every model whose result file is missing; an error ends the program with a line.

    `run` writes the file last: it says that the model is finished.
    """
    missing = [model for model, file in files.items() if not file.is_file()]
    accelerator.wait_for_everyone()  # before any process can finish one, so that all agree on what is missing
    for n, model in enumerate(missing, 1):
        console.print(f"{name}, {model} ({n} of {len(missing)})")
        try:
            run(model, files[model])
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{name}, {model}: {error}") from error


def mined(bm25: BM25, train: Split, settings: Any) -> Run:
    """BM25's ranking of the training queries, where the settings draw hard negatives from it."""
    return bm25.search(train.queries, NEGATIVES_DEPTH) if settings.negatives else {}


def trained(
    paradigm: Paradigm,
    collection: Collection,
    train: Split,
    negatives: Run,
    seed: int,
    settings: Any,
    folder: Path,
    accelerator: Accelerator,
    **changes: Any,
) -> Paradigm:
    """The paradigm after all steps: no dev measure chooses one of its states.

    settings: a dataclass whose fields of TrainingSettings' names, and `negatives`, count; changes: of these.
    """
    names = TrainingSettings.__dataclass_fields__.keys() & asdict(settings).keys()
    training = TrainingSettings(
        **{name: getattr(settings, name) for name in names} | changes, seed=seed, save_every=100
    )
    splits, nothing = (train, Split({}, {})), Run()
    runs, count = (negatives, nothing), settings.negatives
    return fit(paradigm, collection, splits, runs, count, 0, training, folder, accelerator)


def lexical(bm25: BM25, test: Split, measures: tuple[str, ...], depth: int = 100) -> PerQuery:
    """BM25's measures on the test queries: what a model must come near to be heard."""
    return per_query(bm25.search(test.queries, depth), test.judgements, measures)


def unlearned(means: Mapping[str, float], bm25: float) -> str:
    """For `Claim.unlearned`: the first system below LEARNED times BM25's mean of the same measure, or ""."""
    return next((name for name, mean in means.items() if mean < LEARNED * bm25), "")
