"""How much does nDCG@10 improve if ALIGNER's alignment strategy is chosen on a few judged queries?

Qian et al. 2022, §3.1 and §4.2: Tables 2, 3, 7 and 11 to 13, Figures 4 and 5. For each collection, training
alignment and seed, an ALIGNER without salience is trained. As in the paper, a search with k = 1 finds each
query's candidates, which are reranked under every strategy. A strategy is then chosen on folds with a few
judged queries, among k in {1, 2, 4, 6, 8} and p in {.5, 1, 1.5, 2}%. The report covers the whole results
folder; collections, alignments and seeds may be added later.
"""

from dataclasses import field, replace
from itertools import product
from pathlib import Path
from typing import Any

from studies.settings import (
    Collections,
    EncoderStudy,
    at_least,
    check_names,
    different,
    launch,
    lengths_of,
    refusing,
)

from paradigms.io.command_line import flags, folder_name


@flags(query_length=48, document_length=180)
class Settings(EncoderStudy, Collections):
    """Settings for models and collections. Training reads document_length tokens, the index 512."""

    checkpoint: str = ""
    """saved ALIGNER to measure unchanged on every collection; empty: train one on each"""
    in_domain: bool = False
    """the checkpoint was trained on other queries of these collections; otherwise it is called zero-shot"""
    trained_with: list[str] = field(default_factory=lambda: ["k=1"])
    """alignments to train ALIGNERs with, which are then these models' default strategies: any of k=1, 2, 4,
    6, 8, 16; p=0.5%, 1%, 1.5%, 2%, 4%, 5%; eps=0.01, 0.02, 0.04, 0.06, 0.1 (entropic, k = 1)"""
    depth: int = 100
    """candidates per query (the paper: 1000)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "trained_with", MEASURED)
        different(self, "collections")
        at_least(self, depth=1)


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
import torch
from papers.qian2022.adaptation_claims import IN_DOMAIN, MEASURED, SOFT, ZERO_SHOT, Task, describe
from studies.model_runs import Job, StudyData, bind, bind_collection, encoder_job, open_study, run_jobs
from studies.pages import Measured, publish, resampled

from paradigms import Paradigm
from paradigms.align import Alignment, TopK
from paradigms.aligner import aligner
from paradigms.encoder.text import TextEncoder
from paradigms.evaluate import per_query
from paradigms.find import Index
from paradigms.io.checks import read_json
from paradigms.retrieve import Indexed
from paradigms.train.script import begin

MEASURE = "nDCG@10"
FREE = {"collections", "trained_with", "seeds"}
INDEXED_LENGTH = 512  # tokens per indexed document; p = .5% differs from k = 1 only from 400 tokens on
SHOTS = [1, 2, 4, 8, 16, 32]  # judged queries per fold


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    named = ["checkpoint" if settings.checkpoint else "backbone"]
    bind(settings, accelerator, FREE, named, indexed_length=INDEXED_LENGTH)
    if settings.checkpoint:
        settings = replace(settings, trained_with=[alignment_of(settings.checkpoint)], seeds=[0])
    for name in settings.collections:
        data = open_study(settings, accelerator, console, ["test"], name)
        place = folder / folder_name(name)
        bind_collection(data, place, measured=list(MEASURED))
        pairs = product(settings.trained_with, settings.seeds)
        jobs = [job(align, seed, place / align / f"seed-{seed}", data) for align, seed in pairs]
        run_jobs(jobs, settings, accelerator, console)
    if accelerator.is_main_process:
        tasks = open_tasks(folder)
        models = ", ".join(f"{len(task.values)} on {task.label}" for task in tasks)
        training = (
            settings.checkpoint or f"trained for {settings.steps} steps of {settings.batch_size} queries"
        )
        summary = (
            f"ALIGNER, {training}; models: {models}. Candidates: the first {settings.depth} documents of the "
            "model's own search with k = 1, which every strategy reorders. "
            f"Intervals (95%) resample {resampled(max(len(task.values) for task in tasks))}, queries also as "
            "the examples that choose."
        )
        publish(settings, "Alignment adaptation", summary, describe(tasks), accelerator)
    accelerator.end_training()


def alignment_of(checkpoint: str) -> str:
    """Return the training alignment of a saved ALIGNER, as a key of MEASURED."""
    with refusing("--checkpoint: "):
        recipe = Paradigm.from_pretrained(checkpoint).recipe
    for name, strategy in MEASURED.items():
        if strategy == recipe.align:
            return name
    raise SystemExit(
        f"--checkpoint: the default alignment of {recipe.name}, {recipe.align}, is not one of "
        f"{', '.join(MEASURED)}"
    )


def job(align: str, seed: int, folder: Path, data: StudyData) -> Job:
    settings: Settings = data.settings

    def make() -> Paradigm:
        if not data.train.queries:
            raise ValueError("there are no training queries: take --checkpoint from another collection")
        lengths: dict[str, Any] = lengths_of(settings)
        return aligner(settings.backbone, align=MEASURED[align], salience="none", **lengths)

    def measure_model(paradigm: Paradigm, index: Index) -> Measured:
        keys = {"collection": data.collection.name, "trained_with": align, "seed": seed}
        keys["origin"] = (IN_DOMAIN if settings.in_domain else ZERO_SHOT) if settings.checkpoint else ""
        # entropic alignments are measured only for models trained with one
        strategies = {name: MEASURED[name] for name in MEASURED if align in SOFT or name not in SOFT}
        return keys | measure(paradigm, index, data, settings.depth, strategies)

    saved = Path(settings.checkpoint) if settings.checkpoint else None
    name = f"trained with {align}, seed {seed}"
    return encoder_job(name, folder, seed, make, measure_model, data, read=read_longer, checkpoint=saved)


def read_longer(folder: Path) -> Paradigm:
    """Load a saved paradigm that encodes documents of up to `INDEXED_LENGTH` tokens."""
    saved = Paradigm.from_pretrained(folder)
    settings = replace(saved.encoder.settings, document_length=INDEXED_LENGTH)
    encoder = TextEncoder(folder / "backbone", settings)
    longer = Paradigm(saved.recipe, encoder)
    longer.load_state_dict(saved.state_dict())
    return longer


def measure(
    paradigm: Paradigm, index: Index, data: StudyData, depth: int, strategies: dict[str, Alignment]
) -> Measured:
    """Measure each query's nDCG@10 when each strategy reranks the candidates of a search with k = 1."""
    test = data.test
    first = Indexed(index, paradigm.with_alignment(TopK(k=1)))
    candidates = first.search(test.queries, depth, progress=True)
    recipes = [paradigm.with_alignment(align).recipe for align in strategies.values()]
    runs = zip(strategies, first.rankings(test.queries, candidates, recipes, progress=True), strict=True)
    values = {name: per_query(run, test.judgements, (MEASURE,)) for name, run in runs}
    lengths = torch.from_numpy(np.diff(index.store.offsets))
    aligned = {name: align.kept(lengths) for name, align in strategies.items()}
    several = {name: (counts > 1).double().mean() for name, counts in aligned.items() if counts is not None}
    return {
        "fingerprint": data.collection.fingerprint,
        "queries": values["k=1"].queries,
        "bm25": data.lexical((MEASURE,)).values[MEASURE].tolist(),
        "values": {name: table.values[MEASURE].tolist() for name, table in values.items()},
        "several": {name: float(share) for name, share in several.items()},
    }


def open_tasks(folder: Path) -> list[Task]:
    """Group the finished models in a folder into tasks, by collection and training alignment."""
    groups: dict[tuple[Any, ...], list[Measured]] = {}
    for model in map(read_json, sorted(folder.glob("*/*/seed-*/values.json"))):
        groups.setdefault((model["collection"], model["trained_with"], model["origin"]), []).append(model)
    for (name, *_), models in groups.items():
        for key in ("fingerprint", "queries"):
            if any(model[key] != models[0][key] for model in models):
                raise SystemExit(f"{folder}: the models of {name} were measured on different {key}")
        if (count := len(models[0]["queries"])) <= SHOTS[0]:
            raise SystemExit(f"{name}: {count} queries are too few for shots {SHOTS}")
    return [Task(models, SHOTS) for models in groups.values()]
