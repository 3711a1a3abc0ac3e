"""Prepare a comparison's data, and train and open its systems. `settings`: settings of compare.py."""

import time
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from encode import open_encoded
from studies.model_runs import StudyData, shared_bm25, trained_once
from studies.system_settings import SystemSettings
from studies.trainings import Training, built, hard_negatives, training_runs, training_settings

from paradigms import GENERATIVE, PARADIGMS, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Corpus, Split
from paradigms.data.identical import own_documents
from paradigms.data.pieces import Pieces
from paradigms.encoder.precision import autocast
from paradigms.encoder.text import Side
from paradigms.find import kinds
from paradigms.generative.backbone import has_decoder
from paradigms.generative.settings import GenerativeSettings
from paradigms.io.checks import check_known
from paradigms.loading import as_paradigm
from paradigms.recipe import Recipe, recipe_fields
from paradigms.retrieve import AllProcesses, Indexed, Model, Passages, Retriever, retriever_of
from paradigms.train.checkpoints import STATES
from paradigms.train.fit import keep_states, training_splits
from paradigms.train.generative import fit_generative, t5_folder
from paradigms.train.loop import TrainingSettings
from paradigms.train.negatives import ScorePairs, scored_once

STAGES = ("retrieve", "rerank")  # stages for the queries of `split`
CUT = "bm25-cut"  # BM25 on truncated texts
# Two levels of clusters for a few thousand documents: a path of three tokens trains and decodes in half the
# time of DSI's five tokens.
DSI: dict[str, Any] = {"branching": 45, "softmax": "place"}


@dataclass(frozen=True)
class ComparisonData(StudyData):
    """A collection's data, shared by all systems in a comparison."""

    others: dict[str, Split] = field(default_factory=dict)  # queries of other splits
    bm25_seconds: float = 0.0  # seconds to build BM25
    # ids of queries that are also documents, which are left out
    document_queries: frozenset[str] = frozenset()
    pieces: Pieces = field(kw_only=True)  # passages, or whole documents
    cut: BM25 | None = None  # BM25 on the truncated documents, if the first encoder truncates any
    read: str = ""  # description of the truncated documents


def divided(collection: Collection, settings: Any) -> tuple[Split, Split, Split, dict[str, Split]]:
    """Return the training, dev and test queries, and the queries of the splits in `settings.also`.

    Without a dev split, a tenth of the training queries is held out; test queries are never used to choose.
    Raises SystemExit if a split does not exist, or if a system needs queries that are missing.
    """
    also = settings.also or []
    for option, name in [("split", settings.split), *(("also", name) for name in also)]:
        if name not in collection.splits:
            raise SystemExit(
                f"{collection.name} has no split {name!r}; it has {', '.join(collection.splits)}: "
                f"choose one with --{option}"
            )
    train, dev = training_splits(collection, 0, settings.split, *also)
    if not train.queries and any(training_settings(s, settings, 0) for s in settings.chosen.values()):
        raise SystemExit(
            f"{collection.name} has no training queries: --steps 0 compares encoders without training, and "
            "a system with a checkpoint was trained elsewhere"
        )
    for name, system in settings.chosen.items():
        if system.fuse and system.fusion == "sum" and not system.weights and not dev.queries:
            raise SystemExit(
                f"system {name}: {collection.name} has no dev queries for choosing weights: set weights"
            )
    return train, dev, collection.split(settings.split), {name: collection.split(name) for name in also}


def prepare(collection: Collection, settings: Any, accelerator: Accelerator | None = None) -> ComparisonData:
    """Divide the queries, build BM25, and split documents. accelerator: of a script that trains systems."""
    train, dev, test, others = divided(collection, settings)
    corpus = collection.corpus
    began = time.perf_counter()
    bm25 = shared_bm25(corpus, Path(settings.output, "bm25-index"))
    seconds = time.perf_counter() - began
    measured = (test, *others.values())
    own_ids = (own_documents(corpus, part, settings.identical_ids) for part in measured)
    cut, read = read_by_encoders(corpus, settings)
    return ComparisonData(
        collection,
        train,
        dev,
        test,
        bm25,
        settings,
        accelerator,
        progress=accelerator is not None and accelerator.is_main_process,
        others=others,
        bm25_seconds=seconds,
        document_queries=frozenset().union(*own_ids),
        pieces=Pieces(corpus, settings.passages),
        cut=cut,
        read=read,
    )


def read_by_encoders(corpus: Corpus, settings: Any) -> tuple[BM25 | None, str]:
    """Return BM25 on what the first encoder reads, and what that is; (None, "") if it is everything."""
    for name, system in {} if settings.passages else settings.chosen.items():
        if system.fuse or system.paradigm in GENERATIVE:
            continue
        model = open_model(system) if system.checkpoint else built(system, settings)
        if isinstance(model, Paradigm):
            texts = model.read_part(corpus)
            cut = sum(text != full for text, full in zip(texts, corpus, strict=True))
            words = f"the first {model.document_length} tokens of each document, as {name} ({cut:,} are cut)"
            if not cut:
                return None, ""
            return shared_bm25(Corpus(corpus.ids, texts), Path(settings.output, f"{CUT}-index")), words
    return None, ""


def retriever(model: Model, system: SystemSettings, data: ComparisonData, folder: Path) -> Retriever:
    """Make a trained model's retriever. Unless it has an index, all processes encode documents into `folder`.

    A reranker orders the documents that BM25 finds. Raises ValueError if a generative model was built for the
    documents of another corpus.
    """
    settings = data.settings
    launch = data.accelerator
    corpus = data.collection.corpus
    pieces = data.pieces
    model.check_corpus(corpus.ids)
    options: dict[str, Any] = {"precision": launch.mixed_precision, "progress": launch.is_main_process}
    if not isinstance(model, Paradigm):
        return AllProcesses(retriever_of(model, corpus, first=data.bm25, **options), launch, to_all=False)
    if system.index:
        indexed: Retriever = open_encoded(
            system.index, model, data.collection, settings.passages, pieces.corpus
        )
    else:
        options |= {"kind": settings.index, "launch": launch}
        if settings.index == "exact" and model.encoder.dim == 1 and "ids" in model.reads:
            options["kind"] = kinds.inverted(16)  # also exact, and faster for term weights
        indexed = Indexed.build(model, pieces.corpus, folder, **options)
    passages = settings.passages > 0  # whose scores decide how far a process searches
    return Passages(AllProcesses(indexed, launch, passages), pieces, settings.best_passages)


def finished(name: str, data: ComparisonData, seed: int | None = None) -> Retriever:
    """Return a finished system's retriever, in this process alone. seed: None means the first one."""
    if name in ("bm25", CUT):
        return data.bm25 if name == "bm25" or data.cut is None else data.cut
    settings = data.settings
    runs = {t.seed: run for run, t in training_runs(settings).items() if t == (name, t.seed, False)}
    folder = Path(settings.output) / (name if seed is None else runs.get(seed, name))
    encoded = settings.chosen[name].index
    model: Any = load(folder / "checkpoint")
    pieces = data.pieces
    if encoded:
        index: Retriever = open_encoded(encoded, model, data.collection, settings.passages, pieces.corpus)
    elif (folder / "index").is_dir():
        index = Indexed.open(folder / "index", model, pieces.corpus)
    else:
        return retriever_of(model, data.collection.corpus, first=data.bm25)
    return Passages(index, pieces, settings.best_passages)


def check(system: SystemSettings, collection: Collection, settings: Any) -> None:
    """Raise the errors of `trained` and `retriever` before training, with models that are discarded."""
    options = settings.options | system.options
    if system.checkpoint:
        model = open_model(system)
        if system.index:
            open_encoded(system.index, as_paradigm(model, system.checkpoint), collection, settings.passages)
    elif system.paradigm in GENERATIVE:
        builder_options = [
            name for name in signature(GENERATIVE[system.paradigm]).parameters if name != "settings"
        ]
        check_known(GenerativeSettings, [name for name in options if name not in builder_options])
    elif not system.fuse:
        built(system, settings)


def open_model(system: SystemSettings) -> Model:
    """Load the system's checkpoint; the system's options override recipe fields such as the alignment.

    Raises ValueError if the checkpoint has another paradigm, or if its paradigm does not have these options.
    """
    loaded = load(system.checkpoint)
    if system.paradigm not in ("", loaded.name):
        raise ValueError(f"{system.checkpoint} holds {loaded.name}, not {system.paradigm}")
    if not system.options:
        return loaded
    paradigm = as_paradigm(loaded, f"{system.checkpoint} (its options are fixed by training)")
    check_known(Recipe, system.options)
    options = recipe_fields(system.options)
    aligned = paradigm.with_alignment(options.get("align", paradigm.recipe.align))
    return type(paradigm)(replace(aligned.recipe, **options), paradigm.encoder)


def trained(trial: Training, data: ComparisonData, folder: Path) -> Model:
    """Load the checkpoint, or train the model and save it in `folder`. Raises Paused at the time limit."""
    settings = data.settings
    accelerator = data.accelerator
    system = settings.chosen[trial.system]
    if system.checkpoint:
        return open_model(system).to(accelerator.device)
    training = training_settings(system, settings, trial.seed)
    make = partial(untrained, trial, data)
    if training is None or trial.untrained:
        torch.manual_seed(trial.seed)
        model = make().to(accelerator.device)
    else:
        train = partial(_train, trial, training, data)
        model = trained_once(folder, trial.seed, make, train, accelerator)
    if training and isinstance(model, Paradigm):
        _keep_frozen(model, data.pieces.corpus, trial, training, data)
    return model


def untrained(trial: Training, data: ComparisonData) -> Model:
    """Build the system's model; several systems share a T5 with random weights."""
    settings = data.settings
    accelerator = data.accelerator
    system = settings.chosen[trial.system]
    name = system.paradigm
    options = settings.options | system.options
    if name in PARADIGMS:
        return built(system, settings)
    backbone = system.backbone or settings.backbone
    defaults: dict[str, Any] = {} if backbone == "small" or has_decoder(backbone) else {"frozen": True}
    small = Path(settings.output, "small-t5")
    base = t5_folder(backbone, data.collection, small, trial.seed, accelerator)
    # Each finished beam is an identifier, so each document to retrieve needs one beam.
    defaults |= {} if name == "seal" else {"beams": settings.depth}
    defaults |= {"embedder": settings.backbone} if name in ("dsi", "ripor") else {}
    defaults |= DSI if name == "dsi" else {}
    with autocast(accelerator.device, accelerator.mixed_precision):
        return GENERATIVE[name](base, data.collection.corpus, **defaults | options)


def _train(
    trial: Training, training: TrainingSettings, data: ComparisonData, model: Any, place: Path
) -> Model:
    """Train a model until the job's time limit, and keep what resuming needs in `place`."""
    settings = data.settings
    accelerator = data.accelerator
    system = settings.chosen[trial.system]
    left = max(1e-9, (settings.ends - time.monotonic()) / 60) if settings.minutes else 0.0
    limited = replace(training, minutes=left)
    if system.paradigm in GENERATIVE:
        splits = (data.train, data.dev)
        count = settings.dev_queries
        return fit_generative(
            model, data.collection, splits, data.dev_run, count, limited, place, accelerator
        )
    _keep_frozen(model, data.collection.corpus, trial, training, data)
    teacher: ScorePairs | None = None
    if system.teacher:
        scorer = partial(finished, system.teacher, data, trial.seed)
        teacher = scored_once(place / "teacher.run", scorer, data.train.queries, accelerator, None)
    count, own_negatives = hard_negatives(system, settings)
    states = Path(settings.output, STATES)
    return data.fit(model, limited, place, count, teacher=teacher, states=states, own_negatives=own_negatives)


def _keep_frozen(
    paradigm: Paradigm, documents: Corpus, trial: Training, training: TrainingSettings, data: ComparisonData
) -> None:
    """Run the frozen layers once over all texts, if there are any."""
    if not training.trained_layers:
        return
    queries = [text for split in (data.test, *data.others.values()) for text in split.queries.values()]
    texts: dict[Side, Any] = {"query": queries, "document": documents}
    layers = training.trained_layers
    states = Path(data.settings.output, STATES)
    keep_states(paradigm, layers, states, texts, data.accelerator, trial.untrained)
