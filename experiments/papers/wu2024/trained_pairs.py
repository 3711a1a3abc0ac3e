"""Train the models that the studies of Wu et al. 2024 (arXiv:2404.00684) share, once per seed.

All models start from the same backbone and learn from the same queries and documents. Generative models have
the same training passages and spans for every seed. A model whose checkpoint is in the folder `models` is not
trained again, and a measurement in the results folder is not repeated. The last state of every model is kept,
unless the untrained model is better on dev queries, reranked, by more than a standard error.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from papers.wu2024.pair_settings import PairSettings
from rich.console import Console
from studies import model_runs
from studies.curves import at_path
from studies.gains import LEARNED, same_queries, training_section, unlearned
from studies.model_runs import Job, StudyData, training_of
from studies.pages import Measured, Section, publish, resampled
from studies.settings import lengths_of, refusing
from transformers import AutoConfig

from paradigms import GENERATIVE, PARADIGMS, Generative, Paradigm
from paradigms.align import DocumentToQuery
from paradigms.data import Collection, Problems, Split
from paradigms.data.within import learned_share, most_asked, within_documents
from paradigms.encoder.backbone import pretrained
from paradigms.encoder.precision import autocast
from paradigms.encoder.sources import packaged
from paradigms.evaluate import per_query
from paradigms.generative.pairs import Pair, indexing_pairs, retrieval_pairs
from paradigms.retrieve import Reranking
from paradigms.train.checkpoints import STATES
from paradigms.train.fit import dev_measure
from paradigms.train.generative import fit_pairs, training_pairs
from paradigms.train.loop import TrainingSettings
from paradigms.train.parallel import by_main
from paradigms.train.script import begin, content, keep_settings, lock_output

TaskResults = dict[str, list[Measured]]  # task -> measurements of each seed
TRAINING = (  # settings of the models; a folder with models of other settings is refused
    *("collection", "documents", "division", "backbone", "second", "decoder_layers", "frozen"),
    *("trained_layers", "steps", "generative_steps", "batch_size"),
    *("learning_rate", "head_learning_rate"),
    *("passages", "passage_words", "query_length", "document_length", "span", "precision"),
)
SAVE_EVERY = 500  # steps between checkpoints
SECOND_RATE = 1e-4  # largest learning rate for the second backbone, which is a trained encoder
DEV_QUERIES = 100  # dev queries for choosing a model's last state or an earlier one
TEXT_RANK = 8  # rank of PAWA's matrices for text: small, since it multiplies the vocabulary's size


def open_pairs(settings: PairSettings, accelerator: Accelerator, console: Console) -> StudyData:
    """Open the documents of the collection with the most queries, which `settings.division` divides."""

    def divided(collection: Collection) -> Collection:
        if 0 < settings.documents < len(collection.corpus):
            with refusing("", ": choose --documents 0"):
                collection = most_asked(collection, settings.documents)
        if settings.division == "within":
            with refusing("", ": choose --division unseen"):
                collection = within_documents(collection)
            sizes = ", ".join(f"{len(split.queries):,} {name}" for name, split in collection.splits.items())
            console.print(f"Queries divided within documents: {sizes}")
        return collection

    return model_runs.open_study(settings, accelerator, console, divide=divided)


def trained(name: str, seed: int, data: StudyData, console: Console) -> Paradigm | Generative:
    """Load the seed's model, or train it if there is no checkpoint.

    name: dpr or colbert, with -second for the second backbone, -pairs for training with only one hard
    negative from BM25, and -backward for MVDR (q←d) with Z = M; or dsi, ripor, genre or seal, with an
    encoding: -pawa, -place (place-specific digits without PAWA), -atomic (one token per document), -np-base
    or -np-async. Every name may end in -untrained. genre-half is trained on every other document (`half_of`),
    and the others are added later.
    """
    settings: PairSettings = data.settings
    accelerator = data.accelerator
    kind, *variants = name.split("-")
    documents = data.collection.corpus
    half = "half" in variants
    data = half_of(data) if half else data
    models = Path(settings.models)
    second = "second" in variants
    paired = "pairs" in variants

    def make() -> Any:
        if kind in ("dsi", "ripor"):  # identifiers are clusters of DPR's document vectors
            trained("dpr", seed, data, console)
        console.print(f"{data.collection.name}, seed {seed}: {name}")
        torch.manual_seed(seed)
        if kind in GENERATIVE:
            with autocast(accelerator.device, accelerator.mixed_precision):  # DSI and NP embed texts here
                return build(name, seed, data)
        options: dict[str, Any] = {"pooling": "mean"} if kind == "dpr" and not second else {}  # as in S-T5
        backbone = settings.second if second else settings.backbone
        paradigm = PARADIGMS[kind](backbone, **options, **lengths_of(settings))
        backward = "backward" in variants
        return paradigm.with_alignment(DocumentToQuery(), "document_tokens") if backward else paradigm

    def train(model: Any, training: Path) -> Any:
        if kind in GENERATIVE:
            problems = Problems()
            pairs = pairs_of(model, data, problems)
            corpus = data.collection.corpus
            more: dict[str, Any] = {"states": models / STATES, "problems": problems}
            more["dev"] = dev_measure(corpus, data.dev, data.dev_run, DEV_QUERIES, accelerator)
            chosen = training_settings(settings.generative_steps, seed, settings)
            return fit_pairs(model, corpus, pairs, chosen, training, accelerator, **more)
        rate = min(SECOND_RATE, settings.learning_rate) if second else settings.learning_rate
        more = {"in_batch": not paired, "trained_layers": settings.trained_layers, "learning_rate": rate}
        chosen = training_settings(settings.steps, seed, settings, **more)
        return data.fit(model, chosen, training, int(paired), dev_queries=DEV_QUERIES)

    if "untrained" in variants:
        return make().to(accelerator.device).eval()
    model = model_runs.trained_once(models / f"seed-{seed}" / name, seed, make, train, accelerator)
    learned = {*data.collection.corpus.ids}
    return model.add(documents.only(id for id in documents.ids if id not in learned)) if half else model


def half_ids(data: StudyData) -> Sequence[str]:
    return data.collection.corpus.ids[::2]


def half_of(data: StudyData) -> StudyData:
    """Keep every other document, and the training and dev queries whose relevant documents are all kept."""
    corpus = data.collection.corpus.only(half_ids(data))

    documents = {*corpus.ids}

    def answered(split: Split) -> Split:
        relevant = {q: {id for id, grade in of.items() if grade > 0} for q, of in split.judgements.items()}
        return split.only(query for query, ids in relevant.items() if ids and ids <= documents)

    collection = replace(data.collection, corpus=corpus)
    bm25 = model_runs.shared_bm25(corpus, Path(data.settings.output, "bm25-half"))
    train, dev = answered(data.train), answered(data.dev)
    return replace(data, collection=collection, bm25=bm25, train=train, dev=dev)


def of_added(results: TaskResults, data: StudyData, measures: Sequence[str]) -> list[dict[str, Any]]:
    """Make two rows for each task: queries about documents that genre-half learned, and about the others.

    A query belongs to a row if all of its relevant documents are of that kind.
    """
    learned = {*half_ids(data)}
    queries = next(iter(results.values()))[0]["queries"]
    relevant = [{id for id, grade in data.test.judgements[q].items() if grade > 0} for q in queries]
    kinds = {
        "learned": [ids <= learned for ids in relevant],
        "added": [not ids & learned for ids in relevant],
    }
    return [
        {"system": system, "documents": kind, "queries": sum(which)}
        | {measure: at_path(seeds, "retrieve", measure)[:, which] for measure in measures}
        for system, seeds in results.items()
        for kind, which in kinds.items()
    ]


def training_settings(steps: int, seed: int, settings: PairSettings, **more: Any) -> TrainingSettings:
    names = ("batch_size", "learning_rate", "head_learning_rate")
    chosen = {name: getattr(settings, name) for name in names} | {"warmup": 0.05, "save_every": SAVE_EVERY}
    return TrainingSettings(steps=steps, seed=seed, **chosen | more)


def build(name: str, seed: int, data: StudyData) -> Generative:
    """Make an untrained generative model. name: as in `trained`."""
    settings: PairSettings = data.settings
    identifiers, _, encoding = name.removesuffix("-untrained").partition("-")
    options: dict[str, Any] = lengths_of(settings)
    options |= {"decoder_layers": settings.decoder_layers, "frozen": settings.frozen}
    if encoding.startswith("np"):
        options["tokens"] = "clusters"
    if encoding == "np-async":
        options["refresh"] = max(1, settings.generative_steps // 3)
    if encoding == "pawa":
        options["pawa_rank"] = TEXT_RANK
    if identifiers == "seal":
        options["span"] = settings.span
    if identifiers in ("dsi", "ripor"):
        embedder = Path(settings.models) / f"seed-{seed}" / "dpr" / "checkpoint" / "backbone"
        options |= {"embedder": str(embedder), "seed": seed}
        if encoding in ("place", "pawa", "atomic"):
            options["softmax"] = "place"
        if encoding == "atomic":
            options["identifiers"] = "atomic"
        if encoding == "pawa":  # the backbone's width, as in NCI
            options["pawa_rank"] = int(pretrained(AutoConfig, packaged(settings.backbone)).hidden_size)
    return GENERATIVE[identifiers](settings.backbone, data.collection.corpus, **options)


def pairs_of(model: Generative, data: StudyData, problems: Problems) -> list[Pair]:
    """Return the training pairs: queries and passages with identifiers, and spans if identifiers are text."""
    corpus = data.collection.corpus
    ids = model.identifiers
    if ids.kind == "text":
        return training_pairs(model, corpus, data.train, problems, seed=0)
    settings: PairSettings = data.settings
    passages = indexing_pairs(corpus, ids, problems, words=settings.passage_words, passages=settings.passages)
    return retrieval_pairs(data.train, ids) + passages


def run_study(
    settings: Any,
    title: str,
    tasks: Mapping[str, Sequence[str]],
    measure: Callable[[StudyData, str, list[Any]], Measured],
    report: Callable[[StudyData, TaskResults], tuple[str, dict[str, Section]]],
    *,
    keep_recall: bool = False,
    half: bool = False,
) -> None:
    """Train the models of each task for every seed, measure the tasks, and publish a report.

    The result of measure(data, task, models) is saved as seed-N/TASK.json, with the values
    from `training_of`; the result's own key "training" overrides them. All tasks and seeds must return the
    same "queries". report(data, results) returns (summary, sections). keep_recall: also save R@10
    of every model, for `unlearned_models`. half: measure generative models in the training precision instead
    of float32.
    """
    accelerator, console = begin(settings)
    data = open_pairs(settings, accelerator, console)
    models = Path(settings.models)
    of_models = {name: getattr(settings, name) for name in TRAINING}
    of_models |= content(backbone=settings.backbone, second=settings.second)
    of_models |= {"fingerprint": data.collection.fingerprint, "processes": accelerator.num_processes}
    of_models |= {"precision": accelerator.mixed_precision}
    lock_output(models, accelerator)
    by_main(lambda: keep_settings(of_models, models, free=()), accelerator)
    model_runs.bind(settings, accelerator, ("systems", "seeds", "models"), **of_models)

    def measure_models(task: str, seed: int, models: list[Any]) -> Measured:
        lower = half and any(name.partition("-")[0] in GENERATIVE for name in tasks[task])
        # nullcontext: inside a disabled autocast, training would keep the weights from its first cast.
        with autocast(accelerator.device, accelerator.mixed_precision) if lower else nullcontext():
            named = dict(zip(tasks[task], models, strict=True))
            more = recalls(data, settings.depth, named) if keep_recall else {}
            of_task = measure(data, task, models)
        trainings_of_task = of_task.get("training", {})
        trainings = {
            name: training_of(Path(settings.models, f"seed-{seed}", name)) | trainings_of_task.get(name, {})
            for name in tasks[task]
        }
        return of_task | more | {"training": trainings}

    def job(task: str, seed: int) -> Job:
        return Job(
            f"{data.collection.name}, seed {seed}, {task}",
            Path(settings.output) / f"seed-{seed}" / f"{task}.json",
            lambda: [trained(name, seed, data, console) for name in tasks[task]],
            partial(measure_models, task, seed),
            models / STATES,
        )

    jobs = [job(task, seed) for task in tasks for seed in settings.seeds]
    results = model_runs.run_jobs(jobs, settings, accelerator, console)
    same_queries(results)
    if accelerator.is_main_process:
        count = len(settings.seeds)
        by_task = {task: results[count * n : count * (n + 1)] for n, task in enumerate(tasks)}
        summary, sections = report(data, by_task)
        sections |= {"training": training_section(trainings_of(by_task))}
        publish(settings, title, summary, sections, accelerator)
    accelerator.end_training()


def trainings_of(results: TaskResults) -> dict[str, list[Measured]]:
    """Map each model to its list of `training_of` results, one per seed."""
    return {
        name: [seed["training"][name] for seed in seeds]
        for seeds in results.values()
        for name in seeds[0].get("training", {})
    }


def recalls(data: StudyData, depth: int, models: Mapping[str, Paradigm | Generative]) -> Measured:
    """Return mean R@10 of BM25, and of each model reranking BM25's documents by its training score."""
    pool = data.pool(depth)
    corpus = data.collection.corpus
    runs = {name: Reranking(model, corpus).rerank(data.test.queries, pool) for name, model in models.items()}
    runs["BM25"] = pool
    judged = data.test.judgements
    return {"R@10": {name: per_query(run, judged, ["R@10"]).mean("R@10") for name, run in runs.items()}}


def unlearned_models(seeds: Sequence[Measured]) -> list[str]:
    """Return the models whose R@10, a mean over seeds of `recalls`, is too far below BM25's."""
    means = {name: sum(seed["R@10"][name] for seed in seeds) for name in seeds[0]["R@10"]}
    return [name for name, mean in means.items() if unlearned({name: mean}, means["BM25"])]


def sample(data: StudyData, results: TaskResults) -> str:
    settings: PairSettings = data.settings
    unseen = ", unseen documents" if settings.division == "unseen" else ""
    decoders = any(name.partition("-")[0] in GENERATIVE for name in trainings_of(results))
    steps = f", generative ones for {settings.generative_steps}" * decoders
    return (
        f"{len(data.test.queries)} test queries over {len(data.collection.corpus):,} documents of "
        f"{data.collection.name}{unseen}; {learned_share(data.train, data.test):.0%} of the queries ask for "
        f"documents that have training queries; seeds {settings.seeds} of models from {settings.backbone!r}, "
        f"trained for {settings.steps} steps of {settings.batch_size}{steps}. "
        f"Intervals (95%) resample {resampled(len(settings.seeds))}. "
        f"A model with less than {LEARNED:.0%} of BM25's R@10 has not learned enough."
    )
