"""Search engines for indexes too large for one machine: ClickHouse, LanceDB, Qdrant, PostgreSQL.

`hand_over` writes a store's vectors to an engine. The engine then ranks documents by Σⱼ maxᵢ dᵢᵀqⱼ, exactly
or with an approximate index; ClickHouse ranks by rel with nearly every A (`sql.ALIGNED`).

    engine = LanceEngine("s3://bucket/table", dim=store.dim)
    hand_over(store, model, engine)
    EngineRetriever(engine, model).search(queries, 10)
"""

from paradigms.engines.base import Engine, EngineRetriever, hand_over
from paradigms.engines.clickhouse import ClickHouseEngine
from paradigms.engines.lance import LanceEngine
from paradigms.engines.pgvector import PgvectorEngine
from paradigms.engines.qdrant import QdrantEdgeEngine, QdrantEngine
