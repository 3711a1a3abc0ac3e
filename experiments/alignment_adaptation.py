"""nDCG@10 by alignment strategy, and what a few judged queries gain by choosing it: ALIGNER's adaptation.

Qian et al. 2022, §3.1 and §4.2: Tables 3 and 7 to 13, Figures 4 and 5, on your collections. For each
collection, training alignment and seed an ALIGNER is trained; its own search with that alignment gives every
query's candidates, as in the paper; one pass over S reranks them under k in {1, 2, 4, 6, 8} and p in
{.5, 1, 1.5, 2}%; folds of the queries then choose. Finished models are not trained again, and the report
covers everything in the results folder: collections, alignments and seeds may be added to it.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings:
    """Which ALIGNERs are adapted to what, from how many judged queries."""

    collections: list[str] = field(default_factory=lambda: ["pydocs"])
    """each pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    split: str = "test"
    """whose queries are adapted to and measured on"""
    queries: int = 0
    """how many of them, drawn at random; 0: all"""
    checkpoint: str = ""
    """a saved ALIGNER that is taken to every collection as it is; empty: one is trained on each"""
    trained_with: list[str] = field(default_factory=lambda: ["k=1"])
    """alignments that models are trained with, each its models' default: of k=1 … k=8, p=0.5% … p=2%"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """of training"""
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    salience: str = "none"
    """head of the trained models; the models of the paper's Tables 2, 3 and 7 to 13 seem to have none"""
    steps: int = 30
    batch_size: int = 32
    """queries per step and process"""
    negatives: int = 0
    """hard negatives per query, mined from BM25's top 100"""
    learning_rate: float = 3e-5
    head_learning_rate: float = 3e-4
    """of the projection, which starts untrained"""
    query_length: int = 48
    document_length: int = 180
    """in training"""
    indexed_length: int = 512
    """of the documents that are searched; p = .5% differs from k = 1 from 400 tokens on only"""
    evaluate_every: int = 30
    dev_queries: int = 64
    """dev queries that choose between the trained and the untrained state; 0: keep the trained"""
    depth: int = 100
    """candidates per query (the paper: 1000)"""
    shots: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    """judged queries in a fold"""
    levels: list[float] = field(default_factory=lambda: [0.01, 0.05])
    """of the rule that changes the alignment only on significant evidence"""
    wrong_default: str = "k=8"
    """a strategy that adaptation also starts from, as if it were the default: a task with much to gain"""
    output: str = "results/alignment-adaptation"
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    def __post_init__(self) -> None:
        unknown = [name for name in [*self.trained_with, self.wrong_default] if name not in STRATEGIES]
        if unknown:
            raise SystemExit(f"unknown alignment {', '.join(unknown)}; there are {', '.join(STRATEGIES)}")
        for name in ("collections", "trained_with", "seeds"):
            if not getattr(self, name):
                raise SystemExit(f"{name} must name at least one")
        if self.depth < 1 or not self.shots or min(self.shots) < 1:
            raise SystemExit("depth and every number of shots must be at least 1")
        if not all(0 < level < 1 for level in self.levels):
            raise SystemExit(f"a level must lie in (0, 1), got {self.levels}")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from accelerate import Accelerator
from rich.console import Console
from studies.adaptation_claims import Task
from studies.adaptation_report import describe, draw, write_tables
from studies.pages import print_sections, write_page

from paradigms import Paradigm
from paradigms.align import ALIGNMENTS
from paradigms.aligner import aligner
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Split, hold_out, read_run, write_run
from paradigms.encoder.text import TextEncoder
from paradigms.evaluate import per_query
from paradigms.evaluate.adaptation import Rule, adapt, best, best_if_significant
from paradigms.index import ExactIndex
from paradigms.index.strategies import STRATEGIES, rerank_strategies
from paradigms.io.files import write_json
from paradigms.train.job import (
    DEV_DEPTH,
    NEGATIVES_DEPTH,
    begin,
    environment,
    fit,
    keep_settings,
    open_collection,
    training_splits,
)
from paradigms.train.loop import TrainingSettings
from paradigms.train.state import by_main

MEASURE = "nDCG@10"
RANKED = 10  # documents of a ranking that the measure reads


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    kept = asdict(settings) | {"processes": accelerator.num_processes}
    kept |= {"precision": accelerator.mixed_precision}
    free = {"collections", "trained_with", "seeds", "shots", "levels", "wrong_default"}
    free |= {"tracker", "output"}
    by_main(lambda: keep_settings(kept, folder, free), accelerator)
    if settings.checkpoint:
        settings = replace(settings, trained_with=[alignment_of(settings.checkpoint)], seeds=[0])
    for name in settings.collections:
        subset = settings.documents or None if name == "pydocs" else None
        collection = open_collection(name, subset, console)
        models = [(own, seed) for own in settings.trained_with for seed in settings.seeds]
        places = {
            model: folder / folder_name(name) / model[0] / f"seed-{model[1]}" / "measures.json"
            for model in models
        }
        # Before any process can finish one, so that all agree on which are left.
        missing = [model for model in models if not places[model].is_file()]
        accelerator.wait_for_everyone()
        for model in missing:
            console.print(f"{collection.name}, trained with {model[0]}, seed {model[1]}")
            try:
                run_model(*model, collection, settings, places[model], accelerator)
            except (ValueError, OSError, FloatingPointError) as error:
                raise SystemExit(f"{collection.name}, {model[0]}, seed {model[1]}: {error}") from error
    if accelerator.is_main_process:
        show(settings, folder, accelerator)
    accelerator.end_training()


def alignment_of(checkpoint: str) -> str:
    """The name in STRATEGIES of the alignment that a saved ALIGNER was trained with."""
    try:
        recipe = Paradigm.from_pretrained(checkpoint).recipe
    except (OSError, ValueError) as error:
        raise SystemExit(f"--checkpoint: {error}") from error
    found = [
        name
        for name, (align, knobs) in STRATEGIES.items()
        if (align, knobs) == (recipe.align, recipe.align_knobs)
    ]
    if not found:
        raise SystemExit(
            f"--checkpoint: {recipe.name} with {recipe.align} {dict(recipe.align_knobs)} has none of the "
            f"alignments {', '.join(STRATEGIES)} as its default"
        )
    return found[0]


def run_model(
    own: str, seed: int, collection: Collection, settings: Settings, file: Path, accelerator: Accelerator
) -> None:
    """Train or take one ALIGNER, cache its candidates, and write every strategy's measures into `file`."""
    folder = file.parent
    saved = Path(settings.checkpoint) if settings.checkpoint else folder / "checkpoint"
    if not saved.is_dir():
        paradigm = trained(own, seed, collection, settings, folder / "training", accelerator)
        if accelerator.is_main_process:
            paradigm.save_pretrained(saved)
    if accelerator.is_main_process:
        paradigm = with_document_length(saved, settings.indexed_length).to(accelerator.device)
        measures = measure(paradigm, collection, settings, folder, accelerator.mixed_precision)
        write_json(file, {"collection": collection.name, "trained_with": own, "seed": seed} | measures)
        shutil.rmtree(folder / "index")
    accelerator.wait_for_everyone()
    accelerator.free_memory()


def trained(
    own: str, seed: int, collection: Collection, settings: Settings, folder: Path, accelerator: Accelerator
) -> Paradigm:
    """ALIGNER trained with the alignment `own`, in `folder`."""
    splits = training_splits(collection, seed)
    if not splits[0].queries:
        raise ValueError("there are no training queries: take --checkpoint from another collection")
    bm25 = BM25.build(collection.corpus, collection.corpus.ids)
    mined = bm25.search(splits[0].queries, NEGATIVES_DEPTH) if settings.negatives else {}
    runs = mined, bm25.search(splits[1].queries, DEV_DEPTH)
    torch.manual_seed(seed)
    align, knobs = STRATEGIES[own]
    paradigm = aligner(
        settings.backbone,
        align,
        dict(knobs),
        salience=settings.salience,
        query_length=settings.query_length,
        document_length=settings.document_length,
    ).to(accelerator.device)
    names = TrainingSettings.__dataclass_fields__.keys() & asdict(settings).keys()
    training = TrainingSettings(**{name: getattr(settings, name) for name in names}, seed=seed)
    negatives, dev_queries = settings.negatives, settings.dev_queries
    return fit(paradigm, collection, splits, runs, negatives, dev_queries, training, folder, accelerator)


def with_document_length(folder: Path, length: int) -> Paradigm:
    """The saved paradigm, reading documents up to `length` tokens."""
    saved = Paradigm.from_pretrained(folder)
    encoder = TextEncoder(folder / "backbone", replace(saved.encoder.settings, document_length=length))
    longer = Paradigm(saved.recipe, encoder)
    longer.load_state_dict(saved.state_dict())
    return longer


def measure(
    paradigm: Paradigm, collection: Collection, settings: Settings, folder: Path, precision: str
) -> dict[str, Any]:
    """nDCG@10 of each query under each strategy, over candidates from the model's own search."""
    split, corpus = chosen_queries(collection, settings), collection.corpus
    file = folder / "index"
    index = (
        ExactIndex.open(file)
        if file.is_dir()
        else ExactIndex.build(paradigm, corpus.ids, corpus, file, precision=precision, progress=True)
    )
    file = folder / "candidates.run"
    if not file.is_file():
        write_run(
            file, index.search(paradigm, split.queries, settings.depth, progress=True), tag="candidates"
        )
    found = read_run(file)
    began = time.perf_counter()
    runs = rerank_strategies(index, paradigm, split.queries, found, progress=True)
    seconds = time.perf_counter() - began
    values = {}
    for name, run in runs.items():
        first = {query: dict(islice(scores.items(), RANKED)) for query, scores in run.items()}
        measured = per_query(first, split.judgements, (MEASURE,))
        values[name] = measured.values[MEASURE].tolist()
    lengths = torch.from_numpy(np.diff(index.offsets))
    several = {
        name: float((kept(lengths, **knobs) > 1).double().mean())
        for name, (align, knobs) in STRATEGIES.items()
        if (kept := ALIGNMENTS[align].kept)
    }
    return {
        "fingerprint": collection.fingerprint,
        "queries": measured.queries,
        "values": values,
        "several": several,
        "sweep seconds": seconds,
    }


def chosen_queries(collection: Collection, settings: Settings) -> Split:
    """The split's queries, or as many of them as the settings say: the same for every seed."""
    split = collection.split(settings.split)
    if not 0 < settings.queries < len(split.queries):
        return split
    return hold_out(split, settings.queries / len(split.queries))[1]


def open_tasks(folder: Path, settings: Settings) -> list[Task]:
    """Every finished model of the folder, those of one collection and training alignment together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*/*/seed-*/measures.json")):
        model = json.loads(file.read_text(encoding="utf-8"))
        groups.setdefault((model["collection"], model["trained_with"]), []).append(model)
    rules: dict[str, Rule] = {"best": best}
    rules |= {f"p ≤ {level:g}": partial(best_if_significant, level=level) for level in settings.levels}
    tasks = []
    for (name, own), models in groups.items():
        for key in ("fingerprint", "queries"):
            if any(model[key] != models[0][key] for model in models):
                raise SystemExit(f"{folder}: the models of {name} were measured on different {key}")
        values = np.array([list(model["values"].values()) for model in models])
        default, wrong = (list(STRATEGIES).index(name) for name in (own, settings.wrong_default))
        adapted, from_wrong = (
            {
                (rule, shots): [adapt(of_seed, shots, function, start) for of_seed in values]
                for rule, function in rules.items()
                for shots in settings.shots
                if shots < values.shape[-1]
            }
            for start in (default, wrong)
        )
        if not adapted:
            raise SystemExit(f"{name}: {values.shape[-1]} queries are too few for shots {settings.shots}")
        several = {s: float(np.mean([model["several"][s] for model in models])) for s in STRATEGIES}
        tasks.append(Task(name, own, list(STRATEGIES), values, default, several, adapted, wrong, from_wrong))
    return tasks


def show(settings: Settings, folder: Path, accelerator: Accelerator) -> None:
    """CSV and JSON of everything, the figures, the page, and the same on the console and to W&B."""
    tasks = open_tasks(folder, settings)
    sections, figures = describe(tasks), draw(tasks)
    where = environment(accelerator)
    write_tables(folder, tasks)
    write_json(folder / "claims.json", sections[0].rows)
    write_json(folder / "environment.json", where)
    models = ", ".join(f"{len(task.values)} on {task.name} ({task.own})" for task in tasks)
    how = settings.checkpoint or f"trained for {settings.steps} steps of {settings.batch_size} queries"
    summary = (
        f"ALIGNER, {how}: {models}. Candidates: the first {settings.depth} documents of the model's own "
        "search with its training alignment, so other strategies reorder what it finds. Intervals (95%) "
        "resample seeds and queries, or seeds and folds."
    )
    page = write_page(folder, "Alignment adaptation", summary, sections, figures, asdict(settings) | where)
    print_sections(sections)
    Console().print(f"{summary}\nReport: {page}")
    if accelerator.trackers:
        import wandb

        run = accelerator.get_tracker("wandb").tracker
        run.log({name: wandb.Image(str(folder / f"{name}.png")) for name in figures})


if __name__ == "__main__":
    main(Settings(**given))
