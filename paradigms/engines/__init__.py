"""Search engines for indexes too large for one machine: LanceDB, Qdrant, PostgreSQL.

The stored vectors are written to an engine once. The engine then ranks by Σⱼ maxᵢ dᵢᵀqⱼ, exactly or with its
own approximate index.

    engine = LanceEngine("s3://bucket/table", dim=store.dim)
    hand_over(store, model, engine)
    EngineRetriever(engine, model).search(queries, 10)
"""

from paradigms.engines.base import Engine, EngineRetriever, hand_over
from paradigms.engines.lance import LanceEngine
from paradigms.engines.pgvector import PgvectorEngine
from paradigms.engines.qdrant import QdrantEdgeEngine, QdrantEngine
