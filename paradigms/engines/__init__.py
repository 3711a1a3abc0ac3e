"""Search engines for indexes too large for one machine: ClickHouse, LanceDB, Qdrant, PostgreSQL.

`index_corpus` encodes texts into an engine, and `hand_over` writes a store's vectors to one. The engine then
ranks documents by Σⱼ maxᵢ dᵢᵀqⱼ, exactly or with an approximate index; ClickHouse ranks by rel with nearly
every A (`sql.ALIGNED`).

    engine = open_engine("lancedb:s3://bucket/table", model)
    index_corpus(engine, model, corpus)
    EngineRetriever(engine, model, corpus).search(queries, 10)
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from paradigms.engines.base import Engine, EngineRetriever, hand_over, index_corpus
from paradigms.engines.clickhouse import ClickHouseEngine
from paradigms.engines.lance import LanceEngine
from paradigms.engines.pgvector import PgvectorEngine
from paradigms.engines.qdrant import QdrantEdgeEngine, QdrantEngine
from paradigms.model import Paradigm

ENGINES: dict[str, Callable[..., Engine]] = {
    "clickhouse": ClickHouseEngine,
    "lancedb": LanceEngine,
    "qdrant": QdrantEngine,
    "qdrant_edge": QdrantEdgeEngine,
    "postgres": PgvectorEngine,
}
# The argument that names a collection, for engines that hold several.
COLLECTIONS = {"clickhouse": "database", "qdrant": "collection", "postgres": "schema"}


def engine_class(address: str, options: Mapping[str, Any]) -> Callable[..., Engine]:
    """Return the class that an address, ENGINE:PLACE, names.

    Raises ValueError if the engine is unknown, or an option missing or unknown. Qdrant's client takes options
    that its engine does not have.
    """
    name, _, place = address.partition(":")
    if name not in ENGINES or not place:
        raise ValueError(f"{address!r}: write ENGINE:PLACE, with one of the engines {', '.join(ENGINES)}")
    arguments = signature(ENGINES[name])
    try:
        arguments.bind(place, 0, single=False, **options)
    except TypeError as error:
        named = [option for option in arguments.parameters.values() if option.kind is option.KEYWORD_ONLY]
        accepted = [option.name for option in named if option.name != "single"]
        raise ValueError(f"{name}: {error}; its options: {', '.join(accepted)}") from error
    return ENGINES[name]


def open_engine(address: str, model: Paradigm, **options: Any) -> Engine:
    """Open an engine for a model's vectors.

    address: ENGINE:PLACE, such as clickhouse:folder, with a key of `ENGINES`. options: more arguments of the
    engine's class. Raises the errors of `engine_class`, and ValueError for an option's wrong type.
    """
    kind = engine_class(address, options)
    name, _, place = address.partition(":")
    try:
        return kind(place, model.encoder.dim, single=model.encoder.settings.single, **options)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
