"""One system of the comparison: built and trained as the settings say, and how it searches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from rich.console import Console

from paradigms import GENERATIVE, PARADIGMS, CrossAttention, Generative, Paradigm, load
from paradigms.data import Corpus, Run
from paradigms.encoder.text import Side
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.index import INDEXES
from paradigms.index.base import TokenIndex
from paradigms.train.job import OPTIONS, STATES, fit, fit_generative, keep_states, t5_folder
from paradigms.train.loop import TrainingSettings

if TYPE_CHECKING:
    from compare import Data, Settings


def searcher(
    paradigm: Paradigm | Generative,
    corpus: Corpus,
    folder: Path,
    precision: str,
    kind: str = "exact",
    *,
    index: TokenIndex | None = None,
    meet: Callable[[], object] = lambda: None,
    progress: bool = True,
) -> tuple[Callable[..., Run], Callable[..., Run], float]:
    """(search, rerank, bytes per document) over the corpus, which all processes together encode into `folder`
    where it has to be and is not in `index` yet. meet: as of `build`.

    ValueError for a generative paradigm that names the documents of another corpus.
    """
    if isinstance(paradigm, Generative):
        if paradigm.identifiers.documents != corpus.ids:
            raise ValueError(
                f"{paradigm.name} names the {len(paradigm.identifiers.documents):,} documents of another "
                f"corpus, not these {len(corpus):,}: a generative paradigm ranks the corpus it was built for"
            )
        retriever = GenerativeRetriever(paradigm)
        return retriever.search, retriever.rerank, retriever.bytes_per_document
    if index is None:
        index = INDEXES[kind].build(
            paradigm, corpus.ids, corpus, folder, precision=precision, progress=progress, meet=meet
        )
    return partial(index.search, paradigm), partial(index.rerank, paradigm), index.bytes_per_document


def trained(
    name: str, data: Data, settings: Settings, folder: Path, accelerator: Accelerator, console: Console
) -> Paradigm | Generative:
    """The paradigm as saved where `load` says, or as built and then trained in `folder`."""
    if name in settings.load:
        loaded = load(settings.load[name])
        if isinstance(loaded, CrossAttention) or loaded.name != name:
            raise ValueError(f"{settings.load[name]} holds {loaded.name}, not {name}")
        return loaded.to(accelerator.device)
    torch.manual_seed(settings.seed)
    splits, training = (data.train, data.dev), training_settings(name, settings)
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    if name in GENERATIVE:
        small = folder.parents[1] / "small-t5"
        name_or_folder = settings.generative_backbone
        backbone = t5_folder(name_or_folder, data.collection, small, settings.seed, accelerator)
        # As many beams as documents are wanted: each finished one is an identifier.
        options: dict[str, Any] = {} if name == "seal" else {"beams": settings.depth}
        options |= {"embedder": settings.backbone} if name == "dsi" else {}
        model = GENERATIVE[name](backbone, data.collection.corpus, **lengths | options)
        model = model.to(accelerator.device)
        if not settings.generative_steps:
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
    paradigm = PARADIGMS[name](settings.backbone, **lengths | OPTIONS.get(name, {})).to(accelerator.device)
    states, layers = folder.parents[1] / STATES, settings.trained_layers
    if layers:
        queries = [text for split in (*splits, data.test) for text in split.queries.values()]
        texts: dict[Side, Any] = {"query": queries, "document": data.collection.corpus}
        keep_states(paradigm, layers, states, texts, accelerator)
    if not settings.steps:
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


def training_settings(name: str, settings: Settings) -> TrainingSettings:
    if name in GENERATIVE:
        return TrainingSettings(
            steps=max(1, settings.generative_steps),
            batch_size=settings.generative_batch_size,
            learning_rate=settings.generative_learning_rate,
            warmup=0.05,
            evaluate_every=max(1, settings.generative_steps // 2),
            seed=settings.seed,
        )
    return TrainingSettings(
        steps=max(1, settings.steps),
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        head_learning_rate=settings.head_learning_rate,
        trained_layers=settings.trained_layers,
        evaluate_every=settings.evaluate_every,
        seed=settings.seed,
    )
