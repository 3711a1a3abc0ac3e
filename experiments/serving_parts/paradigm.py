"""One paradigm on a collection: its vectors, and every way to search them, at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from serving_parts.machine import kernel_speed
from serving_parts.measure import (
    Found,
    Way,
    as_maxima,
    build_index,
    engines,
    enough_knobs,
    measure_engine,
    measure_index,
)
from serving_parts.model import EXACT, FLAT, Knobs, Shape

from paradigms import PARADIGMS, Paradigm, load
from paradigms.core import Tokens
from paradigms.data import Collection
from paradigms.index import CompressedIndex, ExactIndex, FaissIndex, TokenIndex
from paradigms.index.store import DOCUMENTS
from paradigms.io.progress import progress_bar
from paradigms.scoring.tiles import GRAIN

if TYPE_CHECKING:
    from serving_costs import Settings

NAMES = {FLAT: "FAISS", EXACT: "exact"} | {b: f"compressed, {b} bit{'s'[: b - 1]}" for b in (8, 4, 2, 1)}
TOKENS = "FAISS token index"


@dataclass
class Measured:
    """What `measure` found."""

    name: str
    shape: Shape
    maxima: bool  # whether other engines know its rel, or that of its vectors with ColBERT's A
    missing: list[str]  # engines that could score it and are not installed
    ways: dict[str, Way]  # at the size encoded
    checked: list[dict[int, Way]]  # by bits, at every size, ascending
    flops: float  # F
    knobs: Knobs  # of compressed indexes
    wanted: Found  # of the paradigm's own exact search
    by_maxima: Found | None  # of exact MaxSim of the same vectors


def measure(name: str, collection: Collection, settings: Settings, work: Path, console: Console) -> Measured:
    """Everything that is measured of one paradigm; folders are made in `work`."""
    console.rule(name)
    model = opened(name, settings)
    texts, asked = drawn(collection, settings)
    base = ExactIndex.build(model, texts.keys(), texts.values(), work / name, progress=True)
    queries = model.encode_queries(asked).to("cpu")
    shape, scored = shape_of(base, queries), as_maxima(model)
    names, missing = engines(scored) if scored else ([], [])
    wanted = base.search_tokens(model.recipe, queries, settings.k)
    by_maxima = base.search_tokens(scored.recipe, queries, settings.k) if scored else None
    tried, _ = build_index(
        CompressedIndex, base, len(base), work / "tried", settings.seed, bits=settings.checked
    )
    knobs = enough_knobs(tried, model.recipe, queries, settings.k, wanted, settings.recall)
    counts = {max(1, round(share * len(base))) for share in settings.growth} | {len(base)}
    counts = {n for n in counts if n <= len(base) or n * shape.tokens <= settings.most_vectors}

    def indexed(what: str, kind: type[TokenIndex], documents: int, **options: Any) -> Way:
        folder = work / kind.kind
        index, seconds = build_index(kind, base, documents, folder, settings.seed, **options)
        given = knobs if kind is CompressedIndex else {}
        return measure_index(what, index, seconds, model.recipe, queries, settings.k, settings.rounds, given)

    def engine(what: str, documents: int) -> Way:
        index = base if documents == len(base) else ExactIndex.open(work / ExactIndex.kind, verify=False)
        return measure_engine(
            what, index, scored or model, work / "engine", queries, settings.k, settings.rounds
        )

    jobs: dict[tuple[str, int], Callable[[], Way]] = {}
    for n in sorted(counts):
        jobs[NAMES[EXACT], n] = partial(indexed, NAMES[EXACT], ExactIndex, n)
        if NAMES[FLAT] in names:
            jobs[NAMES[FLAT], n] = partial(engine, NAMES[FLAT], n)  # of the index that was just built
        for bits in settings.bits if n == len(base) else [settings.checked]:
            jobs[NAMES[bits], n] = partial(indexed, NAMES[bits], CompressedIndex, n, bits=bits)
    jobs[TOKENS, len(base)] = partial(indexed, TOKENS, FaissIndex, len(base))
    for other in names:
        jobs.setdefault((other, len(base)), partial(engine, other, len(base)))
    done: dict[tuple[str, int], Way] = {}
    with progress_bar() as bar:
        task = bar.add_task(name, total=len(jobs))
        for (what, n), job in jobs.items():
            bar.update(task, description=f"{name}: {what}, {n:,} documents")
            done[what, n] = job()
            bar.advance(task)
    largest = done[NAMES[settings.checked], max(counts)]
    rescored = knobs["candidates"] if model.recipe.search == "gather" else 0
    return Measured(
        name=name,
        shape=shape,
        maxima=scored is not None,
        missing=missing,
        ways={what: way for (what, n), way in done.items() if n == len(base)},
        checked=[
            {
                bits: done[NAMES[bits], n]
                for bits in (FLAT, EXACT, settings.checked)
                if (NAMES[bits], n) in done
            }
            for n in sorted(counts)
        ],
        flops=kernel_speed(shape.dim, round(shape.lanes), settings.threads, settings.seed),
        knobs=Knobs(knobs["probes"], rescored, largest.measured["λ"]),
        wanted=wanted,
        by_maxima=by_maxima,
    )


def opened(name: str, settings: Settings) -> Paradigm:
    """The paradigm as saved where `load` says, or untrained from the backbone. ValueError names another."""
    if name not in settings.load:
        torch.manual_seed(settings.seed)  # of projections
        lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
        options = lengths | settings.options.get(name, {})
        return PARADIGMS[name](settings.backbone, **options).eval()
    loaded = load(settings.load[name])
    if not isinstance(loaded, Paradigm) or loaded.name != name:
        raise ValueError(f"{settings.load[name]} holds {loaded.name}, not {name}")
    return loaded.eval()


def drawn(collection: Collection, settings: Settings) -> tuple[dict[str, str], list[str]]:
    """Documents by id and queries, at random, the same for every paradigm."""
    draw = np.random.default_rng(settings.seed)
    corpus, asked = collection.corpus, list(collection.split(settings.split).queries.values())
    rows = draw.permutation(len(corpus))[: settings.documents].tolist()
    chosen = draw.permutation(len(asked))[: settings.queries].tolist()
    return {corpus.ids[n]: corpus[n] for n in rows}, [asked[n] for n in chosen]


def shape_of(index: ExactIndex, queries: Tokens) -> Shape:
    """t, h, q, q', x and i of what was encoded."""
    lengths = queries.mask[:, 0].sum(-1).numpy()
    columns = {name: column for name, column in index.fields.items() if name != "vectors"}
    return Shape(
        tokens=float(index.offsets[-1]) / len(index),
        dim=int(index.manifest["dim"]),
        query=float(lengths.mean()),
        lanes=float((-(-lengths // GRAIN) * GRAIN).mean()),
        extra=sum(column.itemsize for column in columns.values()),
        id_bytes=index.manifest["files"][DOCUMENTS]["bytes"] / len(index),
    )
