"""Train, retrieve, rerank, measure, test and explain the paradigms side by side on one collection.

BM25 and every chosen paradigm are compared; paradigms are trained from the same encoder, with the same data
and number of steps. All results go to one folder. An interrupted run resumes; running a finished comparison
again only renews its report.
"""

import math
import os
import time
from collections.abc import Collection as Names
from contextlib import suppress
from dataclasses import asdict, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from studies.settings import (
    DENSE,
    Backbone,
    CollectionName,
    IndexKind,
    Options,
    Ranking,
    Results,
    Seeds,
    StudyTraining,
    TimeLimit,
    at_least,
    different,
    launch,
    refusing,
)
from studies.system_settings import SystemSettings, read_systems

from paradigms.io.command_line import flags, folder_name


@flags(dev_queries=0, seeds=[0])
class Settings(
    Results, CollectionName, StudyTraining, TimeLimit, Backbone, Seeds, Options, IndexKind, Ranking
):
    """Settings for the systems to compare, and the training of each paradigm."""

    split: str = "test"
    """split whose queries compare the systems; never used to train or choose. MIRACL has dev; LoTTE has
    search and forum"""
    also: list[str] | None = None
    """more splits whose queries search the same documents, each with its own table; default: the split named
    parameters for pydocs with the split test, otherwise none"""
    size: Literal["small", "full"] = "small"
    """small: a fixed subset of pydocs; full: the whole collection"""
    systems: list[str] | dict[str, dict[str, Any]] = field(default_factory=lambda: [*DENSE])
    """paradigms (dpr, me_bert, colbert, coil, aligner, xtr, splade; generative: dsi, ripor, genre,
    seal), names of systems in the --config file, or systems by name:
    '{"colbert-32": {"paradigm": "colbert", "options": {"dim": 32}}, "mine": {"checkpoint":
    "results/mine"}}'. Fields of a system: paradigm (default: the system's name); options and training, which
    override the settings below; backbone (for generative paradigms a T5, a BART, or an encoder, which is
    frozen; small: a T5 with random weights); checkpoint, a saved model that is compared without training
    (options may change the alignment: align, as "TopK(k=2)", and normalise; a reranker ranks BM25's results);
    index, which experiments/encode.py or `paradigms index`, also in an engine (in a local folder: for one
    process), made with the checkpoint;
    fuse, as in '{"colbert": {}, "hybrid": {"fuse": ["bm25", "colbert"]}}', with fusion rrf (reciprocal
    ranks) or sum (scores from 0 to 1) and
    weights (by default, sum chooses them on dev); teacher, as in '{"colbert": {}, "dpr": {"teacher":
    "colbert", "distil": {"temperature": 0.02}}}', a system whose scores of the relevant document and the
    hard negatives are learned in addition to the labels"""
    with_relevant: bool = False
    """also rerank the relevant documents that are not among the candidates"""
    baseline: str = "bm25"
    """system to test the others against"""

    def __post_init__(self) -> None:
        self.chosen = read_systems(self.systems)
        at_least(self, depth=1, best_passages=1)
        different(self, "seeds")
        self.ends = time.monotonic() + 60 * self.minutes if self.minutes else math.inf
        for name, system in self.chosen.items():
            where = f"system {name}, training: " if system.training else ""  # else from the options above
            with refusing(where, options=True):
                trainings.training_settings(system, self, self.seeds[0])
        if self.index not in INDEXES:
            raise SystemExit(f"index must be one of {', '.join(INDEXES)}, got {self.index!r}")
        if self.baseline not in ["bm25", *self.chosen]:
            raise SystemExit(f"the baseline {self.baseline!r} is not among the compared systems")
        if self.also is None:
            self.also = ["parameters"] if (self.collection, self.split) == ("pydocs", "test") else []
        split = "" if self.split == "test" else f"-{self.split}"
        self.output = self.output or f"results/compare-{folder_name(self.collection)}{split}"


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from rich.console import Console
from rich.table import Table
from studies import system_runs, systems, trainings
from studies.comparison_report import make_report, show
from studies.pages import spent
from studies.systems import ComparisonData

from paradigms import GENERATIVE, PARADIGMS
from paradigms.data import Collection, load_collection
from paradigms.data.identical import left_out
from paradigms.encoder.text import ENCODERS
from paradigms.evaluate import MEASURES, on_split, with_judgements
from paradigms.find import INDEXES
from paradigms.io.checks import read_json
from paradigms.io.plugins import LOADED, plugin_of
from paradigms.train.checkpoints import STATES
from paradigms.train.fit import deleted_after
from paradigms.train.loop import Paused
from paradigms.train.parallel import by_main
from paradigms.train.script import begin, content, environment, keep_settings, open_collection

SMALL = 2000  # documents of the subset of pydocs
# Seconds on two CPU cores with AVX2 and the default encoder: per training pair, document and query of an
# encoder; the same for a generative paradigm, which encodes passages; and for BM25 and the report.
ENCODER = (0.042, 0.0085, 0.014)
GENERATOR = (0.0009, 0.018, 0.035)
REST = 45.0
FROZEN = 0.02  # seconds per document of the pass over frozen layers that all encoders share


def reopened(folder: Path) -> tuple[Settings, Collection]:
    """Return the settings and collection of a finished comparison. Raises SystemExit if there is none."""
    file = folder / "config.json"
    if not file.is_file():
        raise SystemExit(f"{folder} holds no results: run `make compare`, or name a folder with --results")
    with refusing(f"{file}: ", options=True):
        values = read_json(file)
        names = {field.name for field in fields(Settings)}
        settings_values = {name: value for name, value in values.items() if name in names}
        settings = Settings(**settings_values | {"output": str(folder)})
    small = settings.collection == "pydocs" and settings.size == "small"
    return settings, load_collection(settings.collection, documents=SMALL if small else None)


def main(settings: Settings) -> int:
    """Compare the systems, and return the exit status.

    The status is 0, or 75 (EX_TEMPFAIL) if the time limit (`minutes`) was reached.
    """
    began = time.perf_counter()
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    # Read this before any process can finish a system, so that all processes agree on the remaining systems.
    finished = {run for run in trainings.training_runs(settings) if (folder / run / "costs.json").is_file()}
    small = settings.collection == "pydocs" and settings.size == "small"
    collection = open_collection(settings.collection, SMALL if small else None, console)
    systems.divided(collection, settings)
    for name, system in settings.chosen.items():
        if name not in finished:
            with refusing(f"system {name}: ", options=True):
                systems.check(system, collection, settings)
    if small:
        console.print(f"A fixed subset of pydocs, {SMALL:,} documents; --size full takes all of it.")
    queries = collection.splits[settings.split].queries
    announce(settings, finished, len(collection.corpus), len(queries), console)
    bound_settings = asdict(settings) | {"fingerprint": collection.fingerprint}
    bound_settings |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    bound_settings |= content(backbone=settings.backbone)
    free = {"systems", "seeds", "minutes", "tracker", "baseline", "output"}
    by_main(lambda: keep_settings(bound_settings, folder, free), accelerator)
    resumed = any((folder / run).exists() for run in trainings.training_runs(settings))
    for run, trial in trainings.training_runs(settings).items():
        bound_settings = bound(settings.chosen[trial.system], settings, trial.seed)
        by_main(partial(keep_settings, bound_settings, folder / run, ()), accelerator)
    data = systems.prepare(collection, settings, accelerator)
    if data.document_queries:
        console.print(left_out(data.document_queries))
    if settings.passages:
        documents = len(collection.corpus)
        passages = len(data.pieces.corpus)
        console.print(
            f"{documents:,} documents in {passages:,} passages of at most {settings.passages} words"
        )
    with refusing():
        for run in sorted(finished):
            for stage in (*systems.STAGES, *data.others):
                system_runs.read_stage(folder, run, stage)
    if accelerator.is_main_process:
        system_runs.run_bm25(data)
    accelerator.wait_for_everyone()
    try:
        with deleted_after(folder / STATES, accelerator):
            run_all(data, finished, console)
    except Paused as paused:
        console.print(f"Paused: {paused}. The same command resumes.")
        accelerator.end_training()
        return os.EX_TEMPFAIL
    if accelerator.is_main_process:
        seconds = time.perf_counter() - began
        report = make_report(data, environment(accelerator), seconds, resumed)
        show(report, data, console)
    accelerator.end_training()
    return 0


def run_all(data: ComparisonData, finished: Names[str], console: Console) -> None:
    """Train and measure every unfinished system. Raises Paused when the time limit (`minutes`) is reached."""
    settings: Settings = data.settings
    accelerator = data.accelerator
    runs = trainings.training_runs(settings)
    untrained = [run for run, trial in runs.items() if trial.untrained]
    first = True
    for number, (run, trial) in enumerate(runs.items(), 1):
        if untrained and not trial.untrained:
            console.print(preview(["bm25", *untrained], data))
            untrained = []
        if run in finished:
            console.print(f"{run}: finished before, its runs are taken from {settings.output}/runs")
            continue
        # At least one system runs in each call, so that every call makes progress.
        if by_main(lambda: time.monotonic() > settings.ends, accelerator) and not first:
            raise Paused(f"before {run}")
        first = False
        console.print(f"{run}, {number} of {len(runs)}")
        try:
            with refusing(f"{run}: "):
                if (system := settings.chosen[trial.system]).fuse:
                    by_main(partial(system_runs.run_fused, trial.system, system, data), accelerator)
                else:
                    system_runs.run_system(run, trial, data, console)
        finally:  # also of a run that pauses
            with suppress(OSError, ValueError, TypeError):  # the run's own error counts
                if accelerator.is_main_process:
                    spent(Path(settings.output))
        if not trial.untrained:
            console.print(preview([run], data))


def preview(runs: Names[str], data: ComparisonData) -> Table:
    """Make a table of the first measure of each finished run, by stage, as soon as there are results."""
    measure = (data.collection.measures or MEASURES)[0]
    splits = dict.fromkeys(systems.STAGES, data.test) | data.others
    table = Table(measure, *splits)
    for name in runs:
        means = []
        for stage, split in splits.items():
            run = system_runs.read_stage(Path(data.settings.output), name, stage)
            judged = with_judgements(split, data.collection.corpus, [run])
            means.append(f"{on_split(run, judged, [measure]).weighted(measure).mean():.3f}")
        table.add_row(name, *means)
    return table


def announce(settings: Settings, finished: set[str], documents: int, queries: int, console: Console) -> None:
    """Describe the planned work, the approximate duration, and the results folder."""
    seconds = REST
    shared = 0.0
    names = []
    for name, system in settings.chosen.items():
        training = trainings.training_settings(system, settings, settings.seeds[0])
        pairs = training.steps * training.batch_size if training else 0
        names.append(f"{name} ({training.steps:,} steps of {training.batch_size})" if training else name)
        runs = {run: t for run, t in trainings.training_runs(settings).items() if t.system == name}
        trials = [runs[run] for run in runs.keys() - finished if not trainings.twin(runs[run], settings)]
        for trial in () if system.fuse else trials:
            pair, document, query = GENERATOR if system.paradigm in GENERATIVE else ENCODER
            work = document * documents * (not system.index) + query * queries
            work += 0 if trial.untrained else pair * pairs
            frozen = training is not None and training.trained_layers
            seconds += work / 2 if frozen else work
            shared = FROZEN * documents if frozen else shared
    console.print(
        f"BM25 and {', '.join(names)} on {documents:,} documents of {settings.collection}. Each searches the "
        f"documents and reranks BM25's first {settings.depth}; tests and a report follow."
    )
    minutes = max(1, round((seconds + shared) / 60))
    console.print(
        f"About {minutes} min on two CPU cores with the default encoder; an interrupted run resumes. "
        f"Results: {settings.output}",
        soft_wrap=True,
    )


def bound(system: SystemSettings, settings: Settings, seed: int) -> dict[str, Any]:
    """Return what a system's results depend on, including the contents of files named in the settings."""
    training = trainings.training_settings(system, settings, seed)
    paths = {name: path for name in ("backbone", "checkpoint") if (path := getattr(system, name))}
    builder = PARADIGMS.get(system.paradigm)
    encoder = ENCODERS.get(system.options.get("encoder", ""))
    names = {plugin_of(part) for part in (builder, encoder) if part is not None}
    if system.checkpoint and Path(system.checkpoint, "plugins.json").is_file():
        names |= {file.name for file in LOADED}
    plugins = {f"plug-in {file.name}": str(file) for file in LOADED if file.name in names}
    described = asdict(system) | {"training": training and asdict(training)}
    if training:
        own_negatives = system.paradigm in PARADIGMS and trainings.hard_negatives(system, settings)[1]
        described["training"]["own_negatives"] = own_negatives
    return described | content(**paths) | content(**plugins)
