"""The models that the studies of Wu et al. 2024 (arXiv:2404.00684) measure: trained once per seed, shared.

All start from one backbone and learn from the same queries and documents. A model whose checkpoint is in the
folder `models` is not trained again, and a measurement in the results folder is not repeated. Every model is
in its last state: no dev measure chose it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.model_runs import LEARNED, unlearned
from studies.pages import Measured, some_queries
from studies.shared_settings import PairSettings

from paradigms import GENERATIVE, PARADIGMS, Generative, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Problems, Run, Split
from paradigms.data.within import learned_share, within_documents
from paradigms.encoder.backbone import packaged, pretrained
from paradigms.evaluate import per_query
from paradigms.generative.pairs import Pair, indexing_pairs, retrieval_pairs
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.small import small_t5
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.io.terminal import shown
from paradigms.train.dev import candidates
from paradigms.train.job import (
    NEGATIVES_DEPTH,
    begin,
    content,
    fit,
    fit_pairs,
    keep_settings,
    open_collection,
    training_pairs,
    training_splits,
)
from paradigms.train.loop import TrainingSettings, training_seconds
from paradigms.train.state import by_main

TRAINING = (  # settings of the models; a folder of models that were trained otherwise is refused
    *("collection", "documents", "division", "backbone", "second", "decoder_layers", "frozen", "vocabulary"),
    *("width", "layers", "steps", "generative_steps", "batch_size", "learning_rate", "head_learning_rate"),
    *("passages", "passage_words", "query_length", "document_length", "span", "precision"),
)
FREE = ("systems", "seeds", "models", "output", "tracker")  # what may change within a results folder
SAVE_EVERY = 500  # steps between checkpoints
SECOND_RATE = 1e-4  # learning rate of the second backbone, which is a trained encoder, at most
POOL = 100  # of BM25's documents: the candidates of `recalls`
TEXT_RANK = 8  # of PAWA's matrices for a text vocabulary, whose size they multiply


@dataclass(frozen=True)
class Bench:
    """A collection with its training queries, the test queries that are measured, and BM25."""

    collection: Collection
    train: Split
    test: Split
    bm25: BM25

    def pool(self, depth: int) -> Run:
        """BM25's first `depth` documents of each test query and the relevant ones, with BM25's scores."""
        return candidates(self.bm25.search(self.test.queries, depth), self.test.judgements, depth)


def open_bench(settings: PairSettings, console: Console) -> Bench:
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    if settings.division == "within":
        try:
            collection = within_documents(collection)
        except ValueError as error:
            raise SystemExit(f"{shown(error)}: choose --division unseen") from error
        sizes = ", ".join(f"{len(split.queries):,} {name}" for name, split in collection.splits.items())
        console.print(f"Queries divided within documents: {sizes}")
    if "test" not in collection.splits:
        raise SystemExit(f"{collection.name} has no split 'test'; it has {', '.join(collection.splits)}")
    train, _ = training_splits(collection, seed=0)
    if not train.queries:
        raise SystemExit(f"{collection.name} has no training queries")
    test = some_queries(collection.split("test"), settings.queries)
    return Bench(collection, train, test, BM25.build(collection.corpus, collection.corpus.ids))


# --- training ---------------------------------------------------------------------------------------


def trained(
    name: str, seed: int, bench: Bench, settings: PairSettings, accelerator: Accelerator, console: Console
) -> Paradigm | Generative:
    """The seed's model, trained unless its checkpoint is there.

    name: dpr or colbert, with -second from the second backbone, with -pairs from a hard negative of BM25
    alone; or dsi, genre or seal with an encoding: -pawa, -place (place-specific digits without PAWA),
    -np-base or -np-async.
    """
    folder = Path(settings.models) / f"seed-{seed}"
    missing = not (folder / name / "checkpoint").is_dir()
    accelerator.wait_for_everyone()  # before any process can finish it
    if missing:
        if name.startswith("dsi"):  # its identifiers are clusters of DPR's document vectors
            trained("dpr", seed, bench, settings, accelerator, console)
        console.print(f"{bench.collection.name}, seed {seed}: {name}")
        backbone = settings.backbone
        if backbone == "small":
            backbone = str(folder / "small-t5")
            by_main(lambda: _small_t5(backbone, seed, bench, settings), accelerator)
        torch.manual_seed(seed)
        model = _fit(name, backbone, seed, bench, settings, accelerator, console)
        if accelerator.is_main_process:
            model.save_pretrained(folder / name / "checkpoint")
            for file in (folder / name / "training" / "checkpoints").rglob("*.safetensors"):
                file.unlink()  # of no use any more, three times the model; `cost` reads the rest
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    saved = load(folder / name / "checkpoint")
    assert isinstance(saved, Paradigm | Generative)
    return saved.to(accelerator.device).eval()


def _small_t5(folder: str, seed: int, bench: Bench, settings: PairSettings) -> None:
    if not Path(folder).is_dir():
        texts = [*bench.collection.corpus, *bench.train.queries.values()]
        # Dropout costs a T5 that starts from random weights more steps than it saves from over-fitting.
        sizes = {name: getattr(settings, name) for name in ("vocabulary", "width", "layers")}
        small_t5(texts, folder, **sizes, dropout=0.0, seed=seed)


def _fit(
    name: str,
    backbone: str,
    seed: int,
    bench: Bench,
    settings: PairSettings,
    accelerator: Accelerator,
    console: Console,
) -> Paradigm | Generative:
    folder = Path(settings.models) / f"seed-{seed}" / name / "training"
    kind, *variants = name.split("-")
    if kind in PARADIGMS:
        second, pairs = "second" in variants, "pairs" in variants
        options: dict[str, Any] = {"pooling": "mean"} if name == "dpr" else {}  # S-T5's
        lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
        paradigm = PARADIGMS[kind](settings.second if second else backbone, **options, **lengths)
        splits = bench.train, Split({}, {})
        mined = bench.bm25.search(bench.train.queries, NEGATIVES_DEPTH) if pairs else {}
        changes: dict[str, Any] = {"in_batch": not pairs}
        if second:
            changes["learning_rate"] = min(SECOND_RATE, settings.learning_rate)
        return fit(
            paradigm.to(accelerator.device),
            bench.collection,
            splits,
            (mined, {}),
            int(pairs),
            0,
            training_settings(settings.steps, seed, settings, **changes),
            folder,
            accelerator,
        )
    model = build(name, backbone, seed, bench, settings).to(accelerator.device)
    problems = Problems()
    pairs = pairs_of(model, bench, settings, seed, problems)
    for found in (model.identifiers.problems, problems):
        if found:
            console.print(f"{name}: {found}")
    training = training_settings(generative_steps(model, pairs, bench, settings), seed, settings)
    states = Path(settings.models) / "states"
    return fit_pairs(model, bench.collection.corpus, pairs, training, folder, accelerator, states=states)


def watched(
    name: str,
    seed: int,
    bench: Bench,
    settings: PairSettings,
    folder: Path,
    look: Callable[[Generative], Any],
    states: int,
) -> list[tuple[int, Any]]:
    """(step, look(model)) of a training of the seed's generative model: before it, and at so many states.

    The states are evenly spaced, the last one at the end. On one process; the model must have been `trained`.
    """
    backbone, seen = settings.backbone, []
    if backbone == "small":
        backbone = str(Path(settings.models) / f"seed-{seed}" / "small-t5")
    torch.manual_seed(seed)
    accelerator = Accelerator()
    model = build(name, backbone, seed, bench, settings).to(accelerator.device)
    pairs = pairs_of(model, bench, settings, seed, Problems())
    steps = generative_steps(model, pairs, bench, settings)
    every = max(1, steps // states)

    def dev(model: Generative) -> tuple[float, float]:
        seen.append(look(model))
        return 0.0, 0.0  # which chooses the last state

    training = training_settings(every * states, seed, settings, evaluate_every=every, save_every=steps)
    kept = Path(settings.models) / "states"
    fit_pairs(model, bench.collection.corpus, pairs, training, folder, accelerator, dev=dev, states=kept)
    return [(n * every, found) for n, found in enumerate(seen)]


def training_settings(steps: int, seed: int, settings: PairSettings, **more: Any) -> TrainingSettings:
    names = ("batch_size", "learning_rate", "head_learning_rate")
    chosen = {name: getattr(settings, name) for name in names} | {"steps": steps, "seed": seed}
    return TrainingSettings(**chosen | {"warmup": 0.05, "save_every": SAVE_EVERY} | more)


def generative_steps(model: Generative, pairs: Sequence[Pair], bench: Bench, settings: PairSettings) -> int:
    """Of SEAL as many as it takes to see as many queries as ColBERT does, beside its passages."""
    if model.identifiers.kind == "text":
        return round(settings.steps / query_share(pairs, bench))
    return settings.generative_steps


def build(name: str, backbone: str, seed: int, bench: Bench, settings: PairSettings) -> Generative:
    """The generative model of this name, untrained."""
    identifiers, _, encoding = name.partition("-")
    options: dict[str, Any] = {
        "query_length": settings.query_length,
        "document_length": settings.document_length,
        "decoder_layers": settings.decoder_layers,
        "frozen": settings.frozen,
    }
    if encoding.startswith("np"):
        options["tokens"] = "clusters"
    if encoding == "np-async":
        options["refresh"] = max(1, settings.generative_steps // 3)
    if encoding == "pawa":
        options["pawa_rank"] = TEXT_RANK
    if identifiers == "seal":
        options["span"] = settings.span
    if identifiers == "dsi":
        embedder = Path(settings.models) / f"seed-{seed}" / "dpr" / "checkpoint" / "backbone"
        options |= {"embedder": str(embedder), "seed": seed}
        if encoding:
            options["softmax"] = "place"
        if encoding == "pawa":
            options["pawa_rank"] = _width(backbone)  # as in NCI
    return GENERATIVE[identifiers](backbone, bench.collection.corpus, **options)


def pairs_of(
    model: Generative, bench: Bench, settings: PairSettings, seed: int, problems: Problems
) -> list[Pair]:
    """Queries and passages with the identifiers of their documents; spans where identifiers are text."""
    corpus, ids = bench.collection.corpus, model.identifiers
    if ids.kind == "text":
        return training_pairs(model, corpus, bench.train, problems, seed)
    size: dict[str, Any] = {"words": settings.passage_words, "passages": settings.passages}
    passages = indexing_pairs(corpus, ids, problems, **size, seed=seed)
    return retrieval_pairs(bench.train, ids) + passages


def query_share(pairs: Sequence[Pair], bench: Bench) -> float:
    """Share of training pairs whose source is a query; those of the others are passages."""
    queries = set(bench.train.queries.values())
    return sum(pair.source in queries for pair in pairs) / len(pairs)


def cost(folder: Path) -> Measured:
    """Steps, seconds, and the loss at the first and last logged step of a training folder."""
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [line for line in map(json.loads, lines) if "loss" in line]
    return {
        "steps": losses[-1]["step"],
        "seconds": training_seconds(folder),
        "first loss": losses[0]["loss"],
        "last loss": losses[-1]["loss"],
    }


def _width(backbone: str) -> int:
    from transformers import AutoConfig

    return int(pretrained(AutoConfig, packaged(backbone)).hidden_size)


# --- measuring and publishing -----------------------------------------------------------------------


def measure_all(
    settings: PairSettings,
    tasks: Mapping[str, Sequence[str]],
    measure: Callable[[str, int, Bench, list[Any]], Measured],
) -> tuple[Bench, dict[str, list[Measured]], Accelerator]:
    """task -> `measure(task, seed, bench, models)` for every seed, of the models that the task names.

    Each is kept as seed-N/TASK.json. All must be of the same queries, listed as "queries".
    """
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    bench = open_bench(settings, console)
    same: dict[str, Any] = {"fingerprint": bench.collection.fingerprint}
    same |= content(backbone=settings.backbone, second=settings.second)
    same |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    of_models = {name: getattr(settings, name) for name in TRAINING} | same
    by_main(lambda: keep_settings(of_models, Path(settings.models), free=()), accelerator)
    by_main(lambda: keep_settings(asdict(settings) | same, folder, free=FREE), accelerator)
    files = {task: [folder / f"seed-{seed}" / f"{task}.json" for seed in settings.seeds] for task in tasks}
    missing = [
        (seed, task, file)
        for task, of in files.items()
        for seed, file in zip(settings.seeds, of, strict=True)
        if not file.is_file()
    ]
    accelerator.wait_for_everyone()  # before any process can finish one
    for seed, task, file in missing:
        try:
            models = [trained(name, seed, bench, settings, accelerator, console) for name in tasks[task]]
            if accelerator.is_main_process:
                console.print(f"{bench.collection.name}, seed {seed}: measuring {task}")
                write_json(file, measure(task, seed, bench, models))
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, seed {seed}, {task}: {shown(error)}") from error
        accelerator.wait_for_everyone()
    by_main(lambda: shutil.rmtree(Path(settings.models) / "states", ignore_errors=True), accelerator)
    found = {
        task: [json.loads(file.read_text(encoding="utf-8")) for file in of] for task, of in files.items()
    }
    every = [seed["queries"] for of in found.values() for seed in of]
    if any(queries != every[0] for queries in every):
        raise SystemExit(f"{folder} was measured on different queries: choose another --output")
    return bench, found, accelerator


def recalls(bench: Bench, **models: Paradigm | Generative) -> Measured:
    """The mean R@10 of each model and of BM25 on the test queries, for `unlearned_models`.

    A model reranks BM25's first POOL documents and the relevant ones by the score that it is trained for.
    """
    pool, corpus = bench.pool(POOL), bench.collection.corpus
    ids = sorted({id for of in pool.values() for id in of})
    runs = {"BM25": pool}
    for name, model in models.items():
        if isinstance(model, Generative):
            runs[name] = GenerativeRetriever(model).rerank(bench.test.queries, pool)
        else:
            with tempfile.TemporaryDirectory() as folder:
                texts = [corpus[corpus.position(id)] for id in ids]
                index = ExactIndex.build(model, ids, texts, f"{folder}/index", precision="no")
                runs[name] = index.rerank(model, bench.test.queries, pool)
    found = {name: per_query(run, bench.test.judgements, ["R@10"]) for name, run in runs.items()}
    return {"R@10": {name: float(of.values["R@10"].mean()) for name, of in found.items()}}


def unlearned_models(seeds: Sequence[Measured]) -> list[str]:
    """The models of `recalls` whose mean over seeds is too far below BM25's to say anything."""
    if any("R@10" not in seed for seed in seeds):
        raise SystemExit("The results are of a version that did not measure R@10: choose another --output")
    means = {name: sum(seed["R@10"][name] for seed in seeds) for name in seeds[0]["R@10"]}
    return [name for name, mean in means.items() if unlearned({name: mean}, means["BM25"])]


def sample(bench: Bench, settings: PairSettings) -> str:
    """What was measured and trained on, for a summary."""
    unseen = ", unseen documents" if settings.division == "unseen" else ""
    return (
        f"{len(bench.test.queries)} test queries over {len(bench.collection.corpus):,} documents of "
        f"{bench.collection.name}{unseen}, of which {learned_share(bench.train, bench.test):.0%} ask for "
        f"documents with training queries; seeds {settings.seeds} of models from {settings.backbone!r}, "
        f"trained on {settings.steps * settings.batch_size:,} queries each. Intervals (95 %) resample seeds "
        f"and queries. A model with less than {LEARNED:.0%} of BM25's R@10 has not learned enough."
    )
