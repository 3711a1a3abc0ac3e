"""Qdrant: embedded in this process, or a server or cluster of them (extra `qdrant`)."""

import os
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from paradigms.engines.base import Engine, Vectors
from paradigms.io.checks import naming

COLLECTION = "documents"
REQUEST = 1 << 20  # numbers per request: about 20 MB as JSON; a server accepts 32


class QdrantEngine(Engine):
    """Documents in a Qdrant collection.

    client: arguments of qdrant_client.QdrantClient, such as path= (embedded), or url= and api_key=. exact:
    score every document; otherwise a server searches its HNSW graph (embedded searches are exact). pickled:
    allow opening a path= of an earlier process, which holds pickles: reading them can run any code. Raises
    ValueError if there is a collection with other vectors or another metric.
    """

    def __init__(
        self, dim: int, *, single: bool = False, exact: bool = False, pickled: bool = False, **client: Any
    ) -> None:
        from qdrant_client import QdrantClient, models

        kept = next(Path(client.get("path") or os.devnull).glob("collection/*/*.sqlite"), None)
        if kept is not None and not pickled:
            raise ValueError(
                f"{kept} holds points as pickles, which can run any code when they are read: if it is "
                "your own, pass pickled=True, else use another path"
            )
        self.dim, self.single, self.models = dim, single, models
        self.parameters = models.SearchParams(exact=True) if exact else None
        maxima = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        expected = models.VectorParams(
            size=dim, distance=models.Distance.DOT, multivector_config=None if single else maxima
        )
        self.place = str(client.get("path") or client.get("url") or "Qdrant")
        with naming(self.place):
            self.client = QdrantClient(**client)
            if not self.client.collection_exists(COLLECTION):
                self.client.create_collection(COLLECTION, vectors_config=expected)
            stored = self.client.get_collection(COLLECTION).config.params.vectors
        if _vectors(stored) != _vectors(expected):
            self.client.close()
            raise ValueError(
                f"Qdrant has a collection {COLLECTION!r} with {_vectors(stored)}, not {_vectors(expected)}: "
                "use another path or server"
            )

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors]) -> None:
        points: list[Any] = []
        held = 0
        for id, d in zip(ids, documents, strict=True):
            if points and held + d.size > REQUEST:
                self.client.upsert(COLLECTION, points, wait=True)
                points, held = [], 0
            held += d.size
            vector = d[0].tolist() if self.single else d.tolist()
            points.append(self.models.PointStruct(id=_uuid(id), vector=vector, payload={"id": id}))
        self.client.upsert(COLLECTION, points, wait=True)

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float]]:
        vector = query[0].tolist() if self.single else query.tolist()
        options: dict[str, Any] = {"search_params": self.parameters}
        if among is not None:
            ids = self.models.HasIdCondition(has_id=[_uuid(id) for id in among])
            exact = self.models.SearchParams(exact=True)
            options = {"query_filter": self.models.Filter(must=[ids]), "search_params": exact}
        points = self.client.query_points(COLLECTION, query=vector, limit=k, **options).points
        return [((point.payload or {})["id"], point.score) for point in points]


def _uuid(id: str) -> str:
    """Convert an id to a UUID, as Qdrant's ids are numbers or UUIDs."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, id))


def _vectors(params: Any) -> str:
    """Describe a collection's vectors in words."""
    if params is None or isinstance(params, dict):
        return f"vectors with names ({', '.join(params or {}) or 'none'})"
    many = params.multivector_config
    kind = f"many vectors per document ({many.comparator.value})" if many else "one vector per document"
    numbers = "float32" if params.datatype is None else params.datatype.value
    return f"{kind}, {params.size} × {numbers}, {params.distance.value}"
