"""What a comparison trains and measures: its data, and each system built, trained and searching."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from studies.model_runs import Bench
from studies.settings import System, training_fields

from paradigms import GENERATIVE, PARADIGMS, CrossAttention, Generative, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import HEAD, is_classifier
from paradigms.data import Collection, Run, Split, read_run, write_run
from paradigms.data.by_document import Passages
from paradigms.data.identical import own_documents, searching_others
from paradigms.encoder.text import Side
from paradigms.evaluate import with_judgements
from paradigms.evaluate.fusion import fuse, tune_weights
from paradigms.generative.backbone import has_decoder
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.settings import TRAINING, GenerativeSettings
from paradigms.index import INDEXES, open_index
from paradigms.index.base import TokenIndex
from paradigms.io.files import write_json
from paradigms.io.typed import check_known, read_json
from paradigms.model import autocast
from paradigms.recipe import Recipe
from paradigms.train.generative import fit_generative, t5_folder
from paradigms.train.job import STATES, fit, keep_states, training_splits
from paradigms.train.loop import TrainingSettings
from paradigms.train.together import together

STAGES = ("retrieve", "rerank")  # of the queries of `split`
# Two levels of clusters for a few thousand documents: a path of three tokens trains and decodes in half the
# time of DSI's five.
DSI: dict[str, Any] = {"branching": 45, "softmax": "place"}
Model = Paradigm | Generative | CrossAttention


@dataclass(frozen=True)
class Data(Bench):
    """A collection as every system of a comparison sees it."""

    others: dict[str, Split] = field(default_factory=dict)  # more queries, of other splits
    bm25_seconds: float = 0.0  # to build
    own: frozenset[str] = frozenset()  # ids of queries that are documents themselves, which are left out
    pieces: Passages = field(kw_only=True)  # of the documents, which are split or whole


def training_settings(system: System, settings: Any) -> TrainingSettings | None:
    """How the system is trained; None where it is not. settings: those of compare.py, here and below."""
    if system.checkpoint or system.fuse:
        return None
    if system.paradigm in GENERATIVE:
        chosen = TRAINING | {"seed": settings.seed} | system.training
        chosen = {"evaluate_every": max(1, chosen["steps"] // 2)} | chosen
    else:
        chosen = training_fields(settings) | system.training
    return TrainingSettings(**chosen) if chosen["steps"] else None


def training_runs(settings: Any) -> dict[str, tuple[str, int]]:
    """Folder -> system and seed of each training and measurement; without training there is one seed.

    Fused systems come last, after what they fuse.
    """
    names = sorted(settings.chosen, key=lambda name: bool(settings.chosen[name].fuse))
    found = {name: (name, settings.seed) for name in names}
    for seed in range(settings.seed + 1, settings.seed + settings.seeds):
        trained = (name for name, of in settings.chosen.items() if training_settings(of, settings))
        found |= {f"{name}.seed-{seed}": (name, seed) for name in trained}
    return found


def divided(collection: Collection, settings: Any) -> tuple[Split, Split, Split, dict[str, Split]]:
    """Queries to train on, dev queries, test queries, those of the splits `also`; SystemExit without them.

    Without a dev split a tenth of the training queries is held out for it; test queries choose nothing.
    """
    also = settings.also or []
    for option, name in [("split", settings.split), *(("also", name) for name in also)]:
        if name not in collection.splits:
            raise SystemExit(
                f"{collection.name} has no split {name!r}; it has {', '.join(collection.splits)}: "
                f"choose one with --{option}"
            )
    train, dev = training_splits(collection, settings.seed, settings.split, *also)
    if not train.queries and any(training_settings(of, settings) for of in settings.chosen.values()):
        raise SystemExit(
            f"{collection.name} has no training queries: --steps 0 compares encoders without training, and "
            "a system with a checkpoint was trained elsewhere"
        )
    for name, of in settings.chosen.items():
        if of.fuse and of.fusion == "sum" and not of.weights and not dev.queries:
            raise SystemExit(
                f"system {name}: {collection.name} has no dev queries to choose weights on: give them"
            )
    return train, dev, collection.split(settings.split), {name: collection.split(name) for name in also}


def prepare(collection: Collection, settings: Any, *, progress: bool = False) -> Data:
    """The splits that `divided` gives, BM25, and passages where the settings want them."""
    (*splits, others), corpus, began = divided(collection, settings), collection.corpus, time.perf_counter()
    bm25 = BM25.build(corpus, corpus.ids, progress=progress)
    seconds = time.perf_counter() - began
    asked = (own_documents(corpus, of, settings.identical_ids) for of in (splits[-1], *others.values()))
    pieces = Passages(corpus, settings.passages, settings.best_passages)
    own = frozenset().union(*asked)
    more: dict[str, Any] = {"others": others, "bm25_seconds": seconds, "own": own, "pieces": pieces}
    return Data(collection, *splits, bm25, progress, **more)


def index_of(paradigm: Paradigm, data: Data, settings: Any, folder: Path, launch: Accelerator) -> TokenIndex:
    """`data.pieces`, which all processes together encode into the folder."""
    read, kind, options = data.pieces.corpus, settings.index, {}
    if kind == "exact" and paradigm.encoder.dim == 1 and "ids" in paradigm.reads:
        kind, options = "inverted", {"bits": 16}  # as exact, and of weights of terms faster
    how: dict[str, Any] = {"precision": launch.mixed_precision, "progress": launch.is_main_process}
    return INDEXES[kind].build(paradigm, read.ids, read, folder, launch=launch, **how, **options)


def searcher(
    model: Model, data: Data, index: TokenIndex | None, launch: Accelerator | None = None
) -> tuple[Callable[..., Run], Callable[..., Run], float]:
    """(search, rerank, bytes per document) over the corpus; a reranker orders what BM25 finds.

    index: of `data.pieces`, where the model encodes these; all processes of the launch search it together.
    ValueError for a generative paradigm that names the documents of another corpus.
    """
    corpus, pieces = data.collection.corpus, data.pieces
    if isinstance(model, CrossAttention):
        precision = launch.mixed_precision if launch else "no"

        def rerank(queries: dict[str, str], run: Run, *, progress: bool = False) -> Run:
            return model.rerank(queries, corpus, run, precision=precision, progress=progress)

        def search(queries: dict[str, str], k: int, *, progress: bool = False) -> Run:
            return rerank(queries, data.bm25.search(queries, k), progress=progress)

        return search, rerank, 0.0
    if isinstance(model, Generative):
        if model.identifiers.documents != corpus.ids:
            raise ValueError(
                f"{model.name} names the {len(model.identifiers.documents):,} documents of another "
                f"corpus, not these {len(corpus):,}: a generative paradigm ranks the corpus it was built for"
            )
        retriever = GenerativeRetriever(model)
        return retriever.search, retriever.rerank, retriever.bytes_per_document
    assert index is not None
    find, again = partial(index.search, model), partial(index.rerank, model)
    if launch is not None and launch.num_processes > 1:
        find, again = together(index, model, launch)
    size = index.bytes_per_document * len(pieces.corpus) / len(corpus)
    return pieces.searching(find, again), pieces.reranking(again), size


def check(system: System, settings: Any) -> Paradigm | None:
    """The errors that `trained` would raise of the system's settings, before any system is trained.

    Returns the paradigm of a checkpoint. The models that are made are let go.
    """
    options = settings.options | system.options
    if system.checkpoint:
        loaded = opened(system)
        return loaded if isinstance(loaded, Paradigm) else None
    if system.paradigm in GENERATIVE:
        own = [name for name in signature(GENERATIVE[system.paradigm]).parameters if name != "settings"]
        check_known(GenerativeSettings, [name for name in options if name not in own])
    elif not system.fuse:
        PARADIGMS[system.paradigm](system.backbone or settings.backbone, **options)
    return None


def opened(system: System) -> Model:
    """The system's checkpoint, its recipe changed by the options: another alignment of the same encoder.

    ValueError where it holds another paradigm, or one without such options.
    """
    loaded = load(system.checkpoint)
    if system.paradigm not in ("", loaded.name):
        raise ValueError(f"{system.checkpoint} holds {loaded.name}, not {system.paradigm}")
    if not system.options:
        return loaded
    if not isinstance(loaded, Paradigm):
        raise ValueError(f"{system.checkpoint} holds {loaded.name}, whose options are fixed by training")
    check_known(Recipe, system.options)
    other_alignment = system.options.get("align", loaded.recipe.align) != loaded.recipe.align
    changes = {"align_knobs": {}, "search": "gather"} if other_alignment else {}
    return Paradigm(replace(loaded.recipe, **changes | system.options), loaded.encoder)


def reranks(checkpoint: Path) -> bool:
    """Whether a saved model scores pairs of texts and encodes none."""
    return (checkpoint / HEAD).is_file() or is_classifier(checkpoint)


def trained(system: System, data: Data, settings: Any, folder: Path, accelerator: Accelerator) -> Model:
    """The system's checkpoint, or what it builds, trained in `folder`."""
    if system.checkpoint:
        return opened(system).to(accelerator.device)
    torch.manual_seed(settings.seed)
    training, name, shared = training_settings(system, settings), system.paradigm, folder.parents[1]
    backbone, options = system.backbone or settings.backbone, settings.options | system.options
    bench, dev = (data.collection, (data.train, data.dev)), settings.dev_queries
    if name in GENERATIVE:
        defaults: dict[str, Any] = {} if backbone == "small" or has_decoder(backbone) else {"frozen": True}
        backbone = t5_folder(backbone, data.collection, shared / "small-t5", settings.seed, accelerator)
        # As many beams as documents are wanted: each finished one is an identifier.
        defaults |= {} if name == "seal" else {"beams": settings.depth}
        defaults |= DSI | {"embedder": settings.backbone} if name == "dsi" else {}
        with autocast(accelerator.device, accelerator.mixed_precision):
            model = GENERATIVE[name](backbone, data.collection.corpus, **defaults | options)
        model = model.to(accelerator.device)
        if training is None:
            return model
        return fit_generative(model, *bench, data.dev_run, dev, training, folder, accelerator)
    paradigm = PARADIGMS[name](backbone, **options).to(accelerator.device)
    if training is None:
        return paradigm
    if training.trained_layers:
        queries = [text for split in (data.test, *data.others.values()) for text in split.queries.values()]
        texts: dict[Side, Any] = {"query": queries, "document": data.collection.corpus}
        keep_states(paradigm, training.trained_layers, shared / STATES, texts, accelerator)
    runs = data.mined if settings.negatives else {}, data.dev_run
    how = (runs, settings.negatives, dev, training, folder, accelerator)
    return fit(paradigm, *bench, *how, states=shared / STATES)


def run_fused(name: str, system: System, data: Data, settings: Any) -> None:
    """Fuse the runs of the first seed, with weights that are given, equal, or chosen on dev."""
    folder, weights, chosen = Path(settings.output), tuple(system.weights), ""
    if system.fusion == "sum" and not weights:
        found = [dev_run(of, data, settings) for of in system.fuse]
        dev = with_judgements(data.dev, data.collection.corpus, found)
        weights, chosen = tune_weights(found, dev), f", chosen on {len(data.dev.queries):,} dev queries"
    weights = weights or (1.0,) * len(system.fuse)
    for stage in (*STAGES, *data.others):
        parts = [read_run(folder / "runs" / f"{of}.{stage}.run") for of in system.fuse]
        depth = None if stage == "rerank" else settings.depth
        fused = fuse(parts, weights, system.fusion, depth)
        write_run(folder / "runs" / f"{name}.{stage}.run", fused, tag=name)
    told = dict(zip(system.fuse, weights, strict=True))
    fusion = {"fusion": system.fusion, "weights": told, "chosen": chosen}
    write_json(folder / name / "fusion.json", fusion)
    costs = [read_json(folder / of / "costs.json") for of in system.fuse]
    added = ("search ms/query", "bytes/document")
    write_json(folder / name / "costs.json", {cost: sum(of[cost] for of in costs) for cost in added})


def dev_run(name: str, data: Data, settings: Any) -> Run:
    """What a finished system finds for the dev queries."""
    own = own_documents(data.collection.corpus, data.dev, settings.identical_ids)
    if name == "bm25":
        return searching_others(data.bm25.search, own)(data.dev.queries, settings.depth)
    model, folder = load(Path(settings.output) / name / "checkpoint"), Path(settings.output) / name
    encoded = Path(settings.chosen[name].index or folder) / "index"
    search, _, _ = searcher(model, data, open_index(encoded) if isinstance(model, Paradigm) else None)
    return searching_others(search, own)(data.dev.queries, settings.depth)
