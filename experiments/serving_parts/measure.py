"""What engines cost on a collection that was encoded: bytes, seconds, memory, and how much they find."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from serving_parts.model import drawn

from paradigms import Paradigm
from paradigms.core import Tokens
from paradigms.engines import Engine, FaissEngine, LanceEngine, QdrantEngine, hand_over
from paradigms.index import CompressedIndex, ExactIndex, TokenIndex
from paradigms.recipe import Recipe

BLOCK = 1 << 16  # padded tokens that go from one index to another at once
LONG = 10.0  # seconds of rounds after which no other begins
NOISE = 0.5  # of a vector that is made of another: cosines of the two are about .89
EXTRAS = {"FAISS": "faiss", "LanceDB": "lancedb", "LanceDB, IVF_RQ": "lancedb", "Qdrant": "qdrant_client"}
MAXIMA = ("query_to_document", "query_tokens")  # what an engine knows, of a paradigm that has another A

Found = list[dict[str, float]]
Kind = TypeVar("Kind", bound=TokenIndex)


@dataclass
class Timed:
    """Seconds of every query in its fastest round, and the k best documents of each."""

    seconds: np.ndarray
    found: Found

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and 90th percentile of queries."""
        low, high = np.quantile(self.seconds, (0.1, 0.9))
        return float(low), float(high)


@dataclass
class Way:
    """One engine on one collection: what it took to build, and what searching it gave."""

    engine: str
    documents: int
    build: float  # seconds, from vectors that were encoded before
    stored: int  # bytes of its folder
    timed: Timed
    held: int | None = None  # bytes that the process holds once it has searched; not known of engines
    measured: dict[str, float] = field(default_factory=dict)


def timed(find: Callable[[int], dict[str, float]], queries: int, rounds: int) -> Timed:
    """`find` of every query by its number, in so many rounds, or until they have taken LONG, after three that
    are not counted. The fastest round of each counts: what else the machine does only adds to it."""
    for n in range(min(3, queries)):
        find(n)
    seconds, found = np.full(queries, np.inf), []
    started = time.perf_counter()
    for turn in range(rounds):
        for n in range(queries):
            began = time.perf_counter()
            answer = find(n)
            seconds[n] = min(seconds[n], time.perf_counter() - began)
            if not turn:
                found.append(answer)
        if time.perf_counter() - started > LONG:
            break
    return Timed(seconds, found)


def recall(found: Found, wanted: Found) -> float:
    """The mean share of the documents wanted that were found; of queries that have any."""
    shares = [len(f.keys() & w.keys()) / len(w) for f, w in zip(found, wanted, strict=True) if w]
    return float(np.mean(shares)) if shares else 1.0


# --- collections --------------------------------------------------------------------------------------


def sized(index: ExactIndex, documents: int, seed: int) -> Iterator[tuple[list[str], Tokens]]:
    """The first documents of an index; beyond its own, copies of them with other vectors.

    Vectors of a copy are x' = ‖x‖ y / ‖y‖, y = x + NOISE ‖x‖ g, with g normal of mean square length 1: as
    long as x, near the same others, and equal to none. Ids and saliences stay.
    """
    draw = torch.Generator().manual_seed(seed)
    for copy in range(-(-documents // len(index))):
        rows = np.flatnonzero(index.living)[: documents - copy * len(index)]
        for block in index.blocks(BLOCK, rows):
            tokens, names = index.tokens(block), index.names(block)
            if copy:
                x = tokens.vectors
                size = x.norm(dim=-1, keepdim=True)
                other = x + NOISE * size * torch.randn(x.shape, generator=draw) / x.shape[-1] ** 0.5
                other *= size / other.norm(dim=-1, keepdim=True).clamp(min=1e-12)
                tokens = replace(tokens, vectors=other)
                names = [f"{name}#{copy}" for name in names]
            yield names, tokens


# --- indexes of this project --------------------------------------------------------------------------


def build_index(
    kind: type[Kind], base: ExactIndex, documents: int, folder: Path, seed: int, **settings: Any
) -> tuple[Kind, float]:
    """An index of `sized` documents, in place of what is in the folder, and the seconds that it took."""
    shutil.rmtree(folder, ignore_errors=True)
    names = ("paradigm", "dim", "fields")
    began = time.perf_counter()
    index = kind.build_from(
        sized(base, documents, seed), folder, **{name: base.manifest[name] for name in names}, **settings
    )
    return index, time.perf_counter() - began


def measure_index(
    name: str,
    index: TokenIndex,
    build: float,
    recipe: Recipe,
    queries: Tokens,
    k: int,
    rounds: int,
    knobs: dict[str, int] | None = None,
) -> Way:
    """Seconds, memory and results of an index; queries come encoded. knobs: attributes to set on it."""

    def opened() -> TokenIndex:
        again = type(index).open(index.folder, verify=False)
        for knob, value in (knobs or {}).items():
            setattr(again, knob, value)
        return again

    searched = opened()
    answers = timed(
        lambda n: searched.search_tokens(recipe, queries[n : n + 1], k)[0], len(queries.mask), rounds
    )
    tracemalloc.start()
    kept = opened()
    kept.search_tokens(recipe, queries[:1], k)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    way = Way(name, len(index), build, folder_bytes(index.folder), answers, held)
    if isinstance(kept, CompressedIndex):
        way.held = held + kept._codec.centroids.nbytes  # torch's memory, which tracemalloc does not see
        way.measured["λ"] = probed_ratio(kept, queries)
    return way


def enough_knobs(
    index: CompressedIndex, recipe: Recipe, queries: Tokens, k: int, wanted: Found, least: float
) -> dict[str, int]:
    """`probes` and `candidates`, the fewest with which a share `least` of what was wanted is found.

    candidates: 64, 128, …, up to an eighth of the documents, with which all lists find enough; then probes:
    8, 16, …, or all. Where nothing is enough, the most of both.
    """
    lists = len(index._sizes)

    def enough(probes: int, candidates: int) -> bool:
        index.probes, index.candidates = probes, candidates
        return recall(index.search_tokens(recipe, queries, k), wanted) >= least

    candidates, probes = max(64, 4 * k), 8
    if recipe.search == "gather":
        while 8 * candidates < len(index) and not enough(lists, candidates):
            candidates *= 2
    while probes < lists and not enough(probes, candidates):
        probes *= 2
    return {"probes": min(probes, lists), "candidates": candidates}


def probed_ratio(index: CompressedIndex, queries: Tokens) -> float:
    """λ: tokens in the lists that a query looks into, over those in as many lists drawn at random."""
    from paradigms.index import loops

    shares = []
    for n in range(len(queries.mask)):
        there = queries.mask[n, 0]
        query = queries[n : n + 1].map(lambda t, there=there: t[:, :, there])  # type: ignore[misc]
        count, lists = int(there.sum()), len(index._sizes)
        if not count:
            continue
        chosen, missing = np.zeros(lists, np.bool_), np.empty(count, np.float32)
        near = index._packed(query).query.near
        loops.select(near, index._sizes, index.probes, 1, chosen, missing)
        expected = index._sizes.sum() * drawn(index.probes, count, lists)
        shares.append(float(index._sizes[chosen].sum() / expected))
    return float(np.mean(shares)) if shares else 0.0


# --- engines that take over ---------------------------------------------------------------------------


def as_maxima(model: Paradigm) -> Paradigm | None:
    """The model as an engine can score it: itself, or an XTR with ColBERT's A; None where rel is no sum of
    maxima."""
    if model.reads & {"ids", "salience"} or model.recipe.align not in (MAXIMA[0], "all_pairs", "pool_top_k"):
        return None
    return model.with_alignment(*MAXIMA) if "pool" in model.reads else model


def engines(model: Paradigm) -> tuple[list[str], list[str]]:
    """The engines that take such documents and are installed, and those whose package is missing; model: of
    `as_maxima`. LanceDB's index of many vectors a document takes those of length 1."""
    single, unit = one_vector(model), model.encoder.settings.normalize
    takes = [name for name in EXTRAS if single or (name != "FAISS" and (unit or "IVF" not in name))]
    missing = [name for name in takes if find_spec(EXTRAS[name]) is None]
    return [name for name in takes if name not in missing], missing


def one_vector(model: Paradigm) -> bool:
    """Whether a document has one vector."""
    return model.encoder.settings.document_vectors == "pooled"


def measure_engine(
    name: str, index: ExactIndex, model: Paradigm, folder: Path, queries: Tokens, k: int, rounds: int
) -> Way:
    """An engine embedded in this process, given all documents of an index; model: of `as_maxima`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    engine = _engine(name, folder, model.encoder.dim, one_vector(model))
    began = time.perf_counter()
    hand_over(index, model, engine)
    if isinstance(engine, FaissEngine):
        engine.save(folder)
    if isinstance(engine, LanceEngine) and name != "LanceDB":
        engine.approximate(index_type=name.partition(", ")[2])
    build = time.perf_counter() - began
    rows = [queries.vectors[n, 0][queries.mask[n, 0]].numpy() for n in range(len(queries.mask))]
    answers = timed(lambda n: dict(engine.search(rows[n], k)), len(rows), rounds)
    if isinstance(engine, QdrantEngine):
        engine.client.close()
    return Way(name, len(index), build, folder_bytes(folder), answers)


def _engine(name: str, folder: Path, dim: int, single: bool) -> Engine:
    if name == "FAISS":
        return FaissEngine(dim)
    if name.startswith("LanceDB"):
        return LanceEngine(str(folder), dim, single=single)
    return QdrantEngine(dim, single=single, exact=True, path=str(folder))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
