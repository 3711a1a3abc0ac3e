"""One system of the comparison: built and trained as the settings say, and how it searches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from studies.comparison_data import Data, training_settings
from studies.system_settings import System

from paradigms import GENERATIVE, PARADIGMS, CrossAttention, Generative, Paradigm, load
from paradigms.baselines.cross_attention import HEAD, is_classifier
from paradigms.data import Run, read_run, write_run
from paradigms.data.identical import own_documents, searching_others
from paradigms.encoder.text import Side
from paradigms.evaluate import with_judgements
from paradigms.evaluate.fusion import fuse, tune_weights
from paradigms.generative.backbone import has_decoder
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.settings import GenerativeSettings
from paradigms.index import INDEXES, open_index
from paradigms.index.base import TokenIndex
from paradigms.io.files import write_json
from paradigms.io.typed import check_known
from paradigms.model import autocast
from paradigms.recipe import Recipe
from paradigms.train.generative import fit_generative, t5_folder
from paradigms.train.job import STATES, fit, keep_states
from paradigms.train.together import together

# Two levels of clusters for a few thousand documents: a path of three tokens trains and decodes in half the
# time of DSI's five.
DSI: dict[str, Any] = {"branching": 45, "softmax": "place"}


def searcher(
    paradigm: Paradigm | Generative | CrossAttention,
    data: Data,
    folder: Path,
    precision: str,
    kind: str = "exact",
    *,
    index: TokenIndex | None = None,
    launch: Accelerator | None = None,
    progress: bool = True,
) -> tuple[Callable[..., Run], Callable[..., Run], float]:
    """(search, rerank, bytes per document) over the corpus, which all processes together encode into `folder`
    where it has to be and is not in `index` yet. launch: as in `build`. A reranker orders what BM25 finds.
    Of what encodes documents all processes search and rerank, too (`together`). It
    encodes `data.pieces`, where there are some, and finds documents by them.

    ValueError for a generative paradigm that names the documents of another corpus.
    """
    corpus = data.collection.corpus
    if isinstance(paradigm, CrossAttention):

        def rerank(queries: dict[str, str], run: Run, *, progress: bool = False) -> Run:
            return paradigm.rerank(queries, corpus, run, precision=precision, progress=progress)

        def search(queries: dict[str, str], k: int, *, progress: bool = False) -> Run:
            return rerank(queries, data.bm25.search(queries, k), progress=progress)

        return search, rerank, 0.0
    if isinstance(paradigm, Generative):
        if paradigm.identifiers.documents != corpus.ids:
            raise ValueError(
                f"{paradigm.name} names the {len(paradigm.identifiers.documents):,} documents of another "
                f"corpus, not these {len(corpus):,}: a generative paradigm ranks the corpus it was built for"
            )
        retriever = GenerativeRetriever(paradigm)
        return retriever.search, retriever.rerank, retriever.bytes_per_document
    pieces = data.pieces
    if index is None:
        read = pieces.corpus if pieces else corpus
        options: dict[str, Any] = {}
        if kind == "exact" and paradigm.encoder.dim == 1 and "ids" in paradigm.reads:
            kind, options = "inverted", {"bits": 16}  # as exact, and of weights of terms faster
        index = INDEXES[kind].build(
            paradigm,
            read.ids,
            read,
            folder,
            precision=precision,
            progress=progress,
            launch=launch,
            **options,
        )
    find, again = partial(index.search, paradigm), partial(index.rerank, paradigm)
    if launch is not None and launch.num_processes > 1:
        find, again = together(index, paradigm, launch)
    if pieces is None:
        return find, again, index.bytes_per_document
    size = index.bytes_per_document * len(pieces.corpus) / len(corpus)
    return pieces.searching(find, again), pieces.reranking(again), size


def check(system: System, settings: Any) -> Paradigm | None:
    """The errors that `trained` would raise of the system's settings, before any system is trained.

    Returns the paradigm of a checkpoint. settings: those of compare.py. The models that are made are let go.
    """
    options = settings.options | system.options
    if system.fuse:
        return None
    if system.checkpoint:
        loaded = opened(system)
        return loaded if isinstance(loaded, Paradigm) else None
    if system.paradigm in GENERATIVE:
        own = [name for name in signature(GENERATIVE[system.paradigm]).parameters if name != "settings"]
        check_known(GenerativeSettings, [name for name in options if name not in own])
    else:
        PARADIGMS[system.paradigm](system.backbone or settings.backbone, **options)
    return None


def opened(system: System) -> Paradigm | Generative | CrossAttention:
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
    recipe = loaded.recipe
    check_known(Recipe, system.options)
    other_alignment = system.options.get("align", recipe.align) != recipe.align
    changes = {"align_knobs": {}, "search": "gather"} if other_alignment else {}
    return Paradigm(replace(recipe, **changes | system.options), loaded.encoder)


def reranks(checkpoint: Path) -> bool:
    """Whether a saved model scores pairs of texts and encodes none."""
    return (checkpoint / HEAD).is_file() or is_classifier(checkpoint)


def trained(
    system: System, data: Data, settings: Any, folder: Path, accelerator: Accelerator, console: Console
) -> Paradigm | Generative | CrossAttention:
    """The system's checkpoint, or what it builds, trained in `folder`. settings: those of compare.py."""
    if system.checkpoint:
        return opened(system).to(accelerator.device)
    torch.manual_seed(settings.seed)
    splits, options = (data.train, data.dev), settings.options | system.options
    training, name = training_settings(system, settings), system.paradigm
    if name in GENERATIVE:
        small = folder.parents[1] / "small-t5"
        backbone = system.backbone or settings.backbone
        defaults: dict[str, Any] = {} if backbone == "small" or has_decoder(backbone) else {"frozen": True}
        backbone = t5_folder(backbone, data.collection, small, settings.seed, accelerator)
        # As many beams as documents are wanted: each finished one is an identifier.
        defaults |= {} if name == "seal" else {"beams": settings.depth}
        defaults |= DSI | {"embedder": settings.backbone} if name == "dsi" else {}
        with autocast(accelerator.device, accelerator.mixed_precision):
            model = GENERATIVE[name](backbone, data.collection.corpus, **defaults | options)
        model = model.to(accelerator.device)
        if training is None:
            return model
        return fit_generative(
            model,
            data.collection,
            splits,
            data.dev_run,
            settings.dev_queries,
            training,
            folder,
            accelerator,
            console,
        )
    paradigm = PARADIGMS[name](system.backbone or settings.backbone, **options).to(accelerator.device)
    states, layers = folder.parents[1] / STATES, training.trained_layers if training else 0
    if layers:
        queries = [text for split in (data.test, *data.others.values()) for text in split.queries.values()]
        texts: dict[Side, Any] = {"query": queries, "document": data.collection.corpus}
        keep_states(paradigm, layers, states, texts, accelerator)
    if training is None:
        return paradigm
    return fit(
        paradigm,
        data.collection,
        splits,
        (data.train_run, data.dev_run),
        settings.negatives,
        settings.dev_queries,
        training,
        folder,
        accelerator,
        states=states,
    )


def run_fused(name: str, system: System, data: Data, settings: Any, folder: Path) -> None:
    """Fuse the runs of the first seed, with weights that are given, equal, or chosen on dev."""
    runs, weights, chosen = folder / "runs", tuple(system.weights), ""
    if system.fusion == "sum" and not weights:
        found = [dev_run(of, data, settings, folder) for of in system.fuse]
        dev = with_judgements(data.dev, data.collection.corpus, found)
        weights, chosen = tune_weights(found, dev), f", chosen on {len(data.dev.queries):,} dev queries"
    weights = weights or (1.0,) * len(system.fuse)
    for stage in ("retrieve", "rerank", *data.others):
        parts = [read_run(runs / f"{of}.{stage}.run") for of in system.fuse]
        depth = None if stage == "rerank" else settings.depth
        write_run(runs / f"{name}.{stage}.run", fuse(parts, weights, system.fusion, depth), tag=name)
    told = {
        "fusion": system.fusion,
        "weights": dict(zip(system.fuse, weights, strict=True)),
        "chosen": chosen,
    }
    write_json(folder / name / "fusion.json", told)
    costs = [json.loads((folder / of / "costs.json").read_text()) for of in system.fuse]
    added = ("search ms/query", "bytes/document")
    write_json(folder / name / "costs.json", {cost: sum(of[cost] for of in costs) for cost in added})


def dev_run(name: str, data: Data, settings: Any, folder: Path) -> Run:
    """What a finished system finds for the dev queries."""
    own = own_documents(data.collection.corpus, data.dev, settings.identical_ids)
    if name == "bm25":
        return searching_others(data.bm25.search, own)(data.dev.queries, settings.depth)
    paradigm, index = load(folder / name / "checkpoint"), None
    if isinstance(paradigm, Paradigm):
        index = open_index(Path(settings.chosen[name].index or folder / name) / "index")
    search, _, _ = searcher(paradigm, data, Path(), "no", index=index)
    return searching_others(search, own)(data.dev.queries, settings.depth)
