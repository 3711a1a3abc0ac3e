"""LanceDB: a table on a disk or in an object store, opened by any process (extra `lancedb`)."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from paradigms.engines.base import Engine, Vectors
from paradigms.io.typed import naming

TABLE, DOT, COSINE = "documents", "dot", "cosine"
UNIT = 1e-2  # by which the length of a vector may differ from 1, and its cosines from inner products
LOOKED_AT = 1000  # documents whose lengths are looked at before an index is made


class LanceEngine(Engine):
    """place: a folder, or an address such as s3://bucket/path. single: one vector a document.

    storage_options: of an object store, as LanceDB takes them, such as endpoint and region. It also reads
    AWS_ENDPOINT, AWS_ACCESS_KEY_ID and the like from the environment.

    Search is exact until `approximate` has made an index; then LanceDB looks into `nprobes` of its lists. Its
    indexes of many vectors a document know cosines alone, so all vectors must have length 1. ValueError where
    a table of other columns, or with an index of another metric, is there.
    """

    def __init__(
        self,
        place: str,
        dim: int,
        *,
        single: bool = False,
        nprobes: int = 20,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        import lancedb
        import pyarrow as pa

        self.place, self.dim, self.single, self.nprobes = place, dim, single, nprobes
        vector = pa.list_(pa.float32(), dim)
        schema = pa.schema(
            [pa.field("id", pa.string()), pa.field("vector", vector if single else pa.list_(vector))]
        )
        with naming(place):
            database = lancedb.connect(place, storage_options=storage_options)
            try:
                self.table: Any = database.create_table(TABLE, schema=schema, exist_ok=True)
            except ValueError:  # LanceDB says that the schema is another, and not which
                self.table = database.open_table(TABLE)
            there, wanted = _columns(self.table.schema), _columns(schema)
            if there != wanted:
                raise ValueError(
                    f"{place} has a table {TABLE!r} with the columns {there}, not {wanted}: take another"
                )
            self.metric, able = DOT, DOT if single else COSINE
            for index in self.table.list_indices():
                if "vector" in index.columns:
                    self.metric = self.table.index_stats(index.name).distance_type
                    if self.metric != able:
                        raise ValueError(
                            f"{place} has an index {index.name!r} of the metric {self.metric}, not {able}: "
                            "drop it, or take another place"
                        )

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors]) -> None:
        vectors = [d[0] if self.single else list(d) for d in documents]
        rows = [{"id": id, "vector": v} for id, v in zip(ids, vectors, strict=True)]
        self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float]]:
        if self.metric == COSINE:
            _check_unit("the query", query)
        wanted = query[0] if self.single else query
        asked = self.table.search(np.ascontiguousarray(wanted)).distance_type(self.metric)
        if among is None:
            asked = asked.nprobes(self.nprobes).refine_factor(10)
        else:
            names = ", ".join("'" + id.replace("'", "''") + "'" for id in among)
            asked = asked.where(f"id IN ({names})", prefilter=True).bypass_vector_index()
        rows = asked.limit(k).to_list()
        return [(row["id"], len(query) - row["_distance"]) for row in rows]  # 1 − dᵀq of each query vector

    def approximate(self, index_type: str = "IVF_PQ", **settings: Any) -> None:
        """Make LanceDB's index of the vectors, such as IVF_FLAT; settings: of its class in lancedb.index.

        ValueError where documents have many vectors, and not of length 1.
        """
        from lancedb import index

        metric = DOT if self.single else COSINE
        if metric == COSINE:
            for row in self.table.head(LOOKED_AT).to_pylist():
                _check_unit(f"document {row['id']!r}", np.array(row["vector"]))
        name = index_type.replace("IVF_HNSW", "HNSW").title().replace("_", "")  # IVF_PQ → IvfPq
        kind = getattr(index, name, None)
        if kind is None:
            raise ValueError(f"index_type={index_type!r}: lancedb.index has no {name}")
        self.table.create_index("vector", config=kind(distance_type=metric, **settings))
        self.metric = metric


def _check_unit(what: str, vectors: np.ndarray) -> None:
    lengths = np.linalg.norm(vectors, axis=1)
    if np.abs(lengths - 1).max() > UNIT:
        raise ValueError(
            f"{what} has a vector of length {lengths[np.abs(lengths - 1).argmax()]:.3g}: LanceDB's index of "
            "many vectors a document compares by cosines, which are inner products of vectors of length 1"
        )


def _columns(schema: Any) -> dict[str, str]:
    """The name and type of each column, whatever LanceDB calls the items of a list."""
    return {field.name: re.sub(r"\w+: | not null", "", str(field.type)) for field in schema}
