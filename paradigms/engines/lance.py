"""LanceDB: a table on a disk or in an object store, opened by any process (extra `lancedb`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paradigms.engines.base import Engine, Vectors

TABLE = "documents"


class LanceEngine(Engine):
    """place: a folder, or an address such as s3://bucket/path. single: one vector a document.

    Search is exact until `approximate` has made an index; then LanceDB looks into `nprobes` of its lists and
    scores those that it finds from the vectors themselves.
    """

    def __init__(self, place: str, dim: int, *, single: bool = False, nprobes: int = 20) -> None:
        import lancedb
        import pyarrow as pa

        self.single, self.nprobes = single, nprobes
        vector = pa.list_(pa.float32(), dim)
        kind = vector if single else pa.list_(vector)
        schema = pa.schema([pa.field("id", pa.string()), pa.field("vector", kind)])
        self.table: Any = lancedb.connect(place).create_table(TABLE, schema=schema, exist_ok=True)

    def add(self, ids: Sequence[str], documents: Sequence[Vectors]) -> None:
        vectors = [d[0] if self.single else list(d) for d in documents]
        rows = [{"id": id, "vector": v} for id, v in zip(ids, vectors, strict=True)]
        self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def search(self, query: Vectors, k: int) -> list[tuple[str, float]]:
        wanted = query[0] if self.single else query
        asked = self.table.search(np.ascontiguousarray(wanted)).distance_type("dot")
        found = asked.nprobes(self.nprobes).refine_factor(10).limit(k).to_list()
        return [(row["id"], len(query) - row["_distance"]) for row in found]  # 1 − dᵀq of each query vector

    def approximate(self, **settings: Any) -> None:
        """Make LanceDB's index of the vectors; settings are those of its `create_index`."""
        self.table.create_index(metric="dot", vector_column_name="vector", **settings)
