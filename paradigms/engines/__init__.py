"""Search engines that take over an index that one machine cannot hold: LanceDB, Qdrant, PostgreSQL.

An index is written to an engine once, its vectors as they are stored. The engine then answers Σⱼ maxᵢ dᵢᵀqⱼ,
exactly or by its own approximate index.

    engine = LanceEngine("s3://bucket/table", dim=store.dim)
    hand_over(store, model, engine)
    EngineRetriever(engine, model).search(queries, 10)
"""

from paradigms.engines.base import Engine, EngineRetriever, hand_over
from paradigms.engines.lance import LanceEngine
from paradigms.engines.pgvector import PgvectorEngine
from paradigms.engines.qdrant import QdrantEngine
