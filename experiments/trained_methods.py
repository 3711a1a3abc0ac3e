"""Measure methods that change training, each beside the same training without it.

The loss sees clusters of a document's token vectors (CRISP), or nested numbers of vectors (MetaEmbed); the
sum of BGE-M3's three scores teaches each. Models rank BM25's first documents, untrained and trained.
Collections, methods and seeds may be added to a results folder.
"""

from dataclasses import field, replace
from functools import partial
from pathlib import Path

from studies.settings import Collections, EncoderStudy, at_least, check_names, different, launch, lengths_of

from paradigms.io.command_line import flags

CONTROLS = {  # method -> the same training without it
    "clusters in the loss": "ColBERT",
    "nested numbers of vectors": "ME-BERT",
    "self-distillation": "BGE-M3",
}


@flags(documents=0, document_length=64, steps=100, negatives=1, evaluate_every=50, queries=400, seeds=[0])
class Settings(EncoderStudy, Collections):
    """Settings for encoders, trainings and collections."""

    depth: int = 30
    """documents per query that BM25 retrieves and every model ranks"""
    methods: list[str] = field(default_factory=lambda: [*CONTROLS])
    """methods to train, each with its control"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "collections")
        check_names(self, "methods", CONTROLS)
        at_least(self, depth=1, steps=1, dev_queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from studies.gains import differences, training_section, unmoved
from studies.model_runs import (
    Job,
    StudyData,
    bind,
    bind_collection,
    encoder_job,
    open_study,
    run_jobs,
    values_of,
)
from studies.pages import Measured, Rows, Section, interval_text, publish, resampled

from paradigms import PARADIGMS, Paradigm, load
from paradigms.data import Run
from paradigms.data.collection import hash_order
from paradigms.encoder.sources import original
from paradigms.evaluate import seeds_interval
from paradigms.find import Index, kinds
from paradigms.io.command_line import folder_name
from paradigms.retrieve.indexed import encoded_queries
from paradigms.store.pruning import TokenReduction
from paradigms.train.script import begin

NDCG = "nDCG@10"
FREE = {"collections", "methods", "seeds"}  # settings that may change in a results folder
ALL = TokenReduction()
QUARTER = TokenReduction(pool=4)
NESTED = [TokenReduction(pool=n, pooling="sequential") for n in (2, 4, 8)]
STORED = {"colbert": [ALL, QUARTER], "me_bert": [ALL, *NESTED]}  # numbers of vectors; others: all
# Method -> paradigm, its options, and what changes in training.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ColBERT": ("colbert", {}, {}),
    "clusters in the loss": ("colbert", {}, {"reductions": [QUARTER]}),
    "ME-BERT": ("me_bert", {}, {}),
    "nested numbers of vectors": ("me_bert", {}, {"reductions": NESTED}),
    "BGE-M3": ("bge_m3", {}, {}),
    "self-distillation": ("bge_m3", {"self_distillation": True}, {}),
}


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    bind(settings, accelerator, FREE, ("backbone",))
    sections = {}
    for collection in settings.collections:
        data = open_study(settings, accelerator, console, ("training", "dev", "test"), collection)
        used = settings.steps * settings.batch_size
        data = replace(data, train=data.train.only(hash_order(data.train.queries)[:used]))
        name = folder_name(collection)
        bind_collection(data, Path(settings.output) / name)
        pool = data.pool(settings.depth)
        cells: list[tuple[str, int | str]] = []
        for method in settings.methods:
            cells += [(CONTROLS[method], seed) for seed in ("untrained", *settings.seeds)]
            cells += [(method, seed) for seed in settings.seeds]
        jobs = [job(*cell, data, pool) for cell in cells]
        results: dict[str, list[Measured]] = {}
        for (model, seed), result in zip(cells, run_jobs(jobs, accelerator, console), strict=True):
            key = f"{model}, untrained" if seed == "untrained" else model
            results.setdefault(key, []).append(result)
        sections |= sections_of(name, results)
    summary = (
        f"{original(settings.backbone)} ranks BM25's first {settings.depth} documents, cut after "
        f"{settings.document_length} tokens. {settings.steps} steps of "
        f"{settings.batch_size} queries, each with {settings.negatives} hard negative(s); the upper "
        f"{settings.trained_layers} layer(s) are trained. Intervals (95%) resample "
        f"{resampled(len(settings.seeds))}."
    )
    publish(settings, "Methods that change training", summary, sections, accelerator)
    accelerator.end_training()


def job(name: str, seed: int | str, data: StudyData, pool: Run) -> Job:
    """Make the job that trains and measures a model; seed: "untrained" only measures it."""
    settings: Settings = data.settings
    paradigm, options, training = MODELS[name]
    folder = Path(settings.output) / folder_name(data.collection.name) / folder_name(f"{name}-{seed}")
    checkpoint = Path(settings.backbone) if seed == "untrained" else None

    def make() -> Paradigm:
        return PARADIGMS[paradigm](settings.backbone, **lengths_of(settings), **options)

    return encoder_job(
        f"{name}, {seed}",
        folder,
        settings.seeds[0] if isinstance(seed, str) else seed,
        make,
        partial(measure, data=data, pool=pool),
        data,
        read=load if checkpoint is None else lambda _: make(),
        checkpoint=checkpoint,
        documents=data.collection.corpus.only(id for row in pool.values() for id in row),
        **training,
    )


def measure(paradigm: Paradigm, index: Index, data: StudyData, pool: Run) -> Measured:
    """Return nDCG@10 of each query for each stored number of vectors."""
    first = data.test.only(list(pool)[:1])
    ranked(paradigm, index, replace(data, test=first), pool)  # compiles what the others time
    ways = {}
    for reduction in STORED.get(paradigm.name, [ALL]):
        store = index.store
        if reduction.pool > 1:
            store = store.copy(kinds.exact(), pool=reduction.pool, pooling=reduction.pooling)
        way = f"pool = {reduction.pool}" if reduction.pool > 1 else ""
        ways[way] = ranked(paradigm, Index(store), data, pool)
    return {"ways": ways}


def ranked(paradigm: Paradigm, index: Index, data: StudyData, pool: Run) -> Measured:
    run: Run = {}
    start = time.process_time()
    for names, encoded in encoded_queries(paradigm, data.test.queries, data.accelerator.mixed_precision):
        (rows,) = index.rerank_tokens([paradigm.recipe], encoded, [list(pool[name]) for name in names])
        run |= dict(zip(names, rows, strict=True))
    taken = time.process_time() - start
    costs = {"bytes": index.store.bytes_per_document, "ms": 1000 * taken / len(pool)}
    costs["vectors"] = int(index.store.offsets[-1]) / len(index)
    return costs | {"values": values_of(run, data.test, [NDCG])[NDCG]}


def sections_of(name: str, results: Mapping[str, Sequence[Measured]]) -> dict[str, Section]:
    """Make a collection's tables. The tests of all differences from controls are one family."""

    def values(model: str, way: str) -> np.ndarray:
        return np.array([seed["ways"][way]["values"] for seed in results[model]])

    methods = {model: results[model][0]["ways"] for model in CONTROLS if model in results}
    pairs = [(model, way, CONTROLS[model]) for model, ways in methods.items() for way in ways]
    tests = differences([(values(model, way), values(control, way)) for model, way, control in pairs])
    rows: Rows = []
    for (model, way, control), (difference, p) in zip(pairs, tests, strict=True):
        mine = values(model, way)
        its = values(control, way)
        untrained = values(f"{control}, untrained", way)
        stored = results[model][0]["ways"][way]
        means = f"{untrained.mean():.3f}, {its.mean():.3f} → {interval_text(seeds_interval(mine))}"
        row = {"method": f"{model}, {way}".removesuffix(", "), f"{NDCG}: untrained, control → trained": means}
        row |= {"− control": difference, "p (Holm)": f"{p:.4f}"}
        row["moved"] = "no" if unmoved({model: results[model]}) else "yes"
        row["bytes (vectors)"] = f"{stored['bytes']:,.0f} ({stored['vectors']:.1f})"
        rows.append(row | {"CPU ms/query": round(stored["ms"], 2)})
    trainings = {model: seeds for model, seeds in results.items() if not model.endswith("untrained")}
    training = training_section(trainings)
    text = (
        f"{len(mine[0]):,} test queries. control: the same training without the method, with the same number "
        "of vectors. moved: training improved the dev queries' mean significantly."
    )
    return {
        name: Section(f"Trained methods on {name}", text, rows),
        f"{name}-training": replace(training, heading=f"{training.heading}, {name}"),
    }
