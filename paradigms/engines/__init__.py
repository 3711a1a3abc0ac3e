"""Search engines that take over an index when one machine is outgrown: LanceDB, Qdrant, FAISS.

An index that was built here is written to an engine once, its vectors as they are stored; nothing is encoded
again. The engine then answers Σⱼ maxᵢ dᵢᵀqⱼ, exactly or by its own approximate index.

    engine = LanceEngine("s3://bucket/table", dim=index.manifest["dim"])
    hand_over(index, model, engine)
    run = search(engine, model, queries, k=10)
"""

from paradigms.engines.base import Engine, hand_over, search
from paradigms.engines.faiss_engine import FaissEngine
from paradigms.engines.lance import LanceEngine
from paradigms.engines.qdrant import QdrantEngine

__all__ = ["Engine", "FaissEngine", "LanceEngine", "QdrantEngine", "hand_over", "search"]
