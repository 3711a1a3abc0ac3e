"""Qdrant: embedded in this process, or a server or cluster of them (extra `qdrant`)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from paradigms.engines.base import Engine, Vectors

COLLECTION = "documents"
REQUEST = 1 << 20  # numbers in one request: about 20 MB as JSON, of which a server takes 32


class QdrantEngine(Engine):
    """client: settings of qdrant_client.QdrantClient, such as path= (embedded), or url= and api_key=.

    exact: score every document; else a server searches its HNSW graph. Embedded, all searches are exact.
    """

    def __init__(self, dim: int, *, single: bool = False, exact: bool = False, **client: Any) -> None:
        from qdrant_client import QdrantClient, models

        self.single, self.models = single, models
        self.client = QdrantClient(**client)
        self.asked = models.SearchParams(exact=True) if exact else None
        maxima = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        if not self.client.collection_exists(COLLECTION):
            self.client.create_collection(
                COLLECTION,
                vectors_config=models.VectorParams(
                    size=dim,
                    distance=models.Distance.DOT,
                    multivector_config=None if single else maxima,
                ),
            )

    def add(self, ids: Sequence[str], documents: Sequence[Vectors]) -> None:
        points: list[Any] = []
        held = 0
        for id, d in zip(ids, documents, strict=True):
            if points and held + d.size > REQUEST:
                self.client.upsert(COLLECTION, points, wait=True)
                points, held = [], 0
            held += d.size
            points.append(
                # Qdrant's ids are numbers or UUIDs: one that each of ours always becomes.
                self.models.PointStruct(
                    id=str(uuid.uuid5(uuid.NAMESPACE_URL, id)),
                    vector=d[0].tolist() if self.single else d.tolist(),
                    payload={"id": id},
                )
            )
        self.client.upsert(COLLECTION, points, wait=True)

    def search(self, query: Vectors, k: int) -> list[tuple[str, float]]:
        wanted = query[0].tolist() if self.single else query.tolist()
        found = self.client.query_points(COLLECTION, query=wanted, limit=k, search_params=self.asked).points
        return [(point.payload["id"], point.score) for point in found]
