"""Measure serving costs (bytes, build time, query time, recall) for each paradigm and index or engine.

Every paradigm encodes some documents of a collection once. Their vectors go into the exact index, FAISS's
token index, the compressed index and every installed engine. Queries are encoded before timing and searched
one at a time. recall is the share of the documents from the paradigm's exact search that an index or engine
finds. paradigms/find/COSTS.md gives the formulas that extrapolate bytes to other sizes.

ClickHouse stores BFloat16 numbers and scores all documents, or candidates whose mean vectors are near the
query's.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from studies.settings import (
    DENSE,
    Backbone,
    Lengths,
    OneCollection,
    OneSplit,
    Output,
    Queries,
    Rounds,
    Threads,
    at_least,
    check_names,
    launch,
    lengths_of,
    refusing,
)

from paradigms.io.command_line import flags, folder_name


@flags(documents=1200, queries=30, threads=0, rounds=3)
class Settings(Output, OneCollection, OneSplit, Queries, Backbone, Lengths, Threads, Rounds):
    """Settings for documents, queries, paradigms, and indexes."""

    paradigms: list[str] = field(default_factory=lambda: [*DENSE])
    """paradigms, and bm25"""
    engines: bool = True
    """measure the engines that are installed"""
    only: list[str] = field(default_factory=list)
    """measure only rows whose names begin so, such as compressed or LanceDB, and exact; empty: all"""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: CPU time of this process in seconds, for a machine with other work; engines that are servers spend
    time in other processes"""
    bits: list[Literal[8, 4, 2, 1]] = field(default_factory=lambda: [8, 4, 2, 1])
    """bits per dimension of the compressed index"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "paradigms", [*PARADIGMS, BM25])
        at_least(self, rounds=1)
        self.threads = self.threads or os.cpu_count() or 1

    def time(self) -> float:
        return time.process_time() if self.clock == "cpu" else time.perf_counter()


BM25 = "bm25"
K = 10

launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import torch
from studies.engines import ENGINES, as_maxima, engines, fill, folder_bytes, missing, opened, size_of
from studies.model_runs import measured_once
from studies.pages import Rows, Section, interval_text, publish

from paradigms import PARADIGMS, Paradigm
from paradigms.align import EqualIds
from paradigms.baselines import bm25 as baselines
from paradigms.baselines.lexical_vectors import count_matrix
from paradigms.core import Tokens
from paradigms.data import Collection, Corpus
from paradigms.evaluate import on_split
from paradigms.find import Index, Store, kinds, open_index
from paradigms.find.recall import query_texts
from paradigms.io.checks import read_json
from paradigms.io.files import lock_until_exit, write_json
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal
from paradigms.recipe import Recipe
from paradigms.store import Kind
from paradigms.store.arrays import as_tokens, parts
from paradigms.train.script import open_collection

Answers = list[dict[str, float]]
Costs = tuple[int, float, list[float], Answers]  # bytes, seconds to build, milliseconds of each query


def main(settings: Settings) -> None:
    folder = lock_until_exit(settings.output)
    torch.set_num_threads(settings.threads)
    rows: Rows = []
    failed: list[str] = []
    with refusing():
        collection = open_collection(settings.collection, None, Terminal())
        texts, queries = sample_of(collection, settings)
        for name in settings.paradigms:
            with TemporaryDirectory() as work:
                measured, errors = rows_of(name, collection, settings, folder, Path(work))
            rows += measured
            failed += errors
    left_out = f" Not installed, and left out: {', '.join(missing())}." if missing() else ""
    several = "s" if settings.threads > 1 else ""
    text = (
        f"{len(texts):,} documents and {len(queries):,} {settings.split} queries of {collection.name}, "
        f"{settings.threads} thread{several}, {settings.clock.replace('cpu', 'CPU')} seconds. build s: from "
        "encoded vectors. ms: the median and the 10th and 90th percentile over queries. Engines score MaxSim "
        f"only, ClickHouse other alignments, too.{left_out if settings.engines else ''}"
        + "".join(f" Failed: {error}." for error in failed)
    )
    publish(settings, "Serving costs", text, {"costs": Section("Serving costs", rows=rows)})
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


def rows_of(
    name: str, collection: Collection, settings: Settings, folder: Path, work: Path
) -> tuple[Rows, list[str]]:
    """Return a row for each index and engine, each measured once in `folder`, and errors of engines."""
    texts, questions = sample_of(collection, settings)
    exact: Answers = []  # of exact search, which is the first job unless BM25 searches
    if name == BM25:
        base, queries, exact = weighed(texts, list(questions.values()))
        recipe = Recipe(BM25, EqualIds(), "one")
        vectors = float(np.diff(base.offsets).mean())
        dim = 1
        indexed = partial(measure_index, base, recipe, queries, work, settings)
        jobs: dict[str, Callable[[], Costs]] = {
            f"inverted, {bits} bits": partial(indexed, kinds.inverted(bits)) for bits in (8, 16)
        }
    else:
        torch.manual_seed(0)  # seed of projections
        model = PARADIGMS[name](settings.backbone, **lengths_of(settings)).eval()
        base = encoded(model, texts, folder / "encoded" / name)
        recipe = model.recipe
        dim = model.encoder.dim
        queries = model.encode_queries(list(questions.values())).to("cpu")
        vectors = int(base.offsets[-1]) / len(base)
        drawn_texts = query_texts(list(texts.values()), base.living_tokens)
        tuning = model.encode_queries(drawn_texts).to("cpu")
        indexed = partial(measure_index, base, recipe, queries, work, settings, tuning=tuning)
        jobs = {"exact": partial(indexed, kinds.exact()), "FAISS": partial(indexed, kinds.faiss())}
        for bits in settings.bits:
            coded = kinds.compressed(bits)
            jobs[f"compressed, {bits} bit{'s'[: bits - 1]}"] = partial(indexed, coded)
        scored = as_maxima(model)
        if scored and not model.encoder.settings.single:
            jobs["lemur"] = partial(indexed, kinds.lemur())
        for engine in engines(model) if settings.engines else ():
            jobs[engine] = partial(measure_engine, engine, base, scored or model, queries, work, settings)
    jobs = {n: job for n, job in jobs.items() if n == "exact" or n.startswith(tuple(settings.only) or "")}
    question = asdict(settings) | {"paradigms": [name], "content": collection.fingerprint}
    question |= {"output": "", "only": [], "bits": [], "engines": True}
    question |= {"model": base.manifest.get("identity")}
    rows: Rows = []
    failed: list[str] = []
    with progress_bar() as bar:
        for what, job in bar.track(jobs.items(), description=name):
            file = folder / "measured" / name / f"{folder_name(what)}.json"
            try:
                size, seconds, milliseconds, answers = measured_once(file, question, job)
            except Exception as error:  # of any engine
                if what not in ENGINES:
                    raise
                first_line = str(error).partition("\n")[0]
                failed.append(f"{name}, {what}: {first_line:.200}")
                continue
            exact = exact or answers
            row = {"paradigm": name, "vectors": vectors, "h": dim}
            row |= {"engine": what, "bytes/document": size / len(base), "build s": seconds}
            spread = np.quantile(milliseconds, (0.1, 0.5, 0.9)).tolist()
            row |= dict(zip(("10%", "ms", "90%"), spread, strict=True))
            row |= {f"recall@{K}": recall(answers, exact)}
            if not settings.documents:
                run = dict(zip(questions, answers, strict=True))
                quality = on_split(run, collection.split(settings.split).only(questions), ["nDCG@10"])
                row["nDCG@10"] = interval_text(quality.intervals()["nDCG@10"])
            rows.append(row)
    return rows, failed


def encoded(model: Paradigm, texts: Mapping[str, str], place: Path) -> Store:
    """Return the documents' vectors from the folder `place`; encode the documents if it contains none."""
    if place.is_dir():
        store = open_index(place).store
        if store.ids == list(texts):
            store.check(model)
            store.check_texts(Corpus.of(texts))
            return store
    return Store.build(kinds.exact(), model, texts.keys(), texts.values(), place, progress=True)


def weighed(texts: Mapping[str, str], query_texts: Sequence[str]) -> tuple[Store, Tokens, Answers]:
    """Return BM25's document weights as a store, the queries' weights, and BM25's results."""
    bm25 = baselines.BM25(Corpus.of(texts))
    weights, terms = by_row(bm25.matrix())
    documents = parts(list(texts), weights, token_ids=terms)
    store = Store.build_from(kinds.inverted(16), documents, paradigm=BM25, dim=1, fields=("vectors", "ids"))
    counts, asked_terms = by_row(count_matrix(bm25, query_texts))
    runs = bm25.search({str(n): text for n, text in enumerate(query_texts)}, K)
    queries = as_tokens(counts, "query", ids=asked_terms)
    return store, queries, [runs[str(n)] for n in range(len(query_texts))]


def by_row(matrix: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the weights and the terms of each row of a CSR matrix."""
    places = matrix.indptr[1:-1]
    return np.split(matrix.data.astype(np.float32), places), np.split(matrix.indices, places)


def sample_of(collection: Collection, settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Draw random documents and queries, the same for all paradigms. A limit of 0 keeps all, in order."""
    draw = np.random.default_rng(0)
    corpus = collection.corpus
    queries = collection.split(settings.split).queries
    rows = draw.permutation(len(corpus))[: settings.documents].tolist() or range(len(corpus))
    ids = list(queries)
    chosen = draw.permutation(len(ids))[: settings.queries].tolist() or range(len(ids))
    return {corpus.ids[n]: corpus[n] for n in rows}, {ids[n]: queries[ids[n]] for n in chosen}


def timed(
    find: Callable[[int], dict[str, float]], queries: int, settings: Settings
) -> tuple[list[float], Answers]:
    """Return each query's shortest time over the rounds, in milliseconds, and its results in a warm-up."""
    answers = [find(n) for n in range(queries)]
    seconds = np.full(queries, np.inf)
    for _ in range(settings.rounds):
        for n in range(queries):
            began = settings.time()
            find(n)
            seconds[n] = min(seconds[n], settings.time() - began)
    return (1000 * seconds).tolist(), answers


def recall(answers: Answers, exact: Answers) -> float:
    """Return the mean share of wanted documents found, over the queries that have wanted documents."""
    shares = [len(f.keys() & w.keys()) / len(w) for f, w in zip(answers, exact, strict=True) if w]
    return float(np.mean(shares)) if shares else 1.0


def measure_index(
    base: Store,
    recipe: Recipe,
    queries: Tokens,
    work: Path,
    settings: Settings,
    kind: Kind,
    tuning: Tokens | None = None,
) -> Costs:
    """Build an index from `base` and measure it. tuning: queries that choose its finder's settings."""
    began = settings.time()
    index = Index(base.copy(kind, work / "index"))
    if tuning is not None:
        index = index.tuned(recipe, [tuning])
    seconds = settings.time() - began

    def find(n: int) -> dict[str, float]:
        return index.search_tokens(recipe, queries[n : n + 1], K)[0]

    return folder_bytes(work / "index"), seconds, *timed(find, len(queries.mask), settings)


def measure_engine(
    name: str, base: Store, model: Paradigm, queries: Tokens, work: Path, settings: Settings
) -> Costs:
    """Load the vectors in `base` into an engine, embedded or as a server, and measure it."""
    kind = ENGINES[name][1]
    # Searches of ClickHouse with different numbers of candidates read the same tables.
    folder = work / (kind if kind == "clickhouse" else folder_name(name))
    built = work / f"{kind}.json"
    with opened(name, model, folder, settings.threads) as engine:
        if kind == "clickhouse" and built.is_file():
            seconds = read_json(built)["seconds"]
        else:
            began = settings.time()
            fill(name, engine, base, model)
            seconds = settings.time() - began
            if kind == "clickhouse":
                write_json(built, {"seconds": seconds})

        def find(n: int) -> dict[str, float]:
            return dict(hit[:2] for hit in engine.rank(queries[n : n + 1], model.recipe, K))

        timings = timed(find, len(queries.mask), settings)
        size = size_of(name, engine, folder)
    return size, seconds, *timings
