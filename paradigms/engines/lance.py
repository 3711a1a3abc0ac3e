"""Search with LanceDB, whose tables on disk or in an object store any process can open (extra `lancedb`)."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from paradigms.engines.base import MaxSimEngine, Vectors, check_numbers
from paradigms.io.checks import naming

TABLE, MADE, DOT, COSINE = "documents", "made_by", "dot", "cosine"
NUMBERS = ("float32", "float16")
UNIT = 1e-2  # tolerated difference of a vector's length from 1
SAMPLE = 1000  # documents whose vectors' lengths are checked before indexing


class LanceEngine(MaxSimEngine):
    """Documents in a LanceDB table.

    place: a folder, or an address such as s3://bucket/path. single: whether each document has one vector.
    numbers: type of stored numbers, float32 or float16. nprobes: number of index lists to read per search.
    storage_options: LanceDB's options for an object store, such as endpoint and region; LanceDB also reads
    AWS_ENDPOINT, AWS_ACCESS_KEY_ID and similar variables from the environment.

    Search is exact until `approximate` builds an index. LanceDB can index multiple vectors per document only
    by cosine, so such vectors must have unit length. Raises ValueError if `place` contains a table with
    different columns, or an index with a different metric.
    """

    def __init__(
        self,
        place: str,
        dim: int,
        *,
        single: bool = False,
        numbers: str = "float32",
        nprobes: int = 20,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        import lancedb
        import pyarrow as pa

        self.place, self.dim, self.single, self.nprobes = place, dim, single, nprobes
        check_numbers(numbers, NUMBERS)
        self.numbers = np.dtype(numbers)
        vector = pa.list_(pa.from_numpy_dtype(self.numbers), dim)
        vectors = vector if single else pa.list_(vector)
        columns = {"id": pa.string(), "vector": vectors, "text": pa.int64()}
        schema = pa.schema(columns | {"metadata": pa.list_(pa.string())})  # of "name=value"
        with naming(place):
            self.database = database = lancedb.connect(place, storage_options=storage_options)
            try:
                self.table: Any = database.create_table(TABLE, schema=schema, exist_ok=True)
            except ValueError:  # another schema, which LanceDB does not name
                self.table = database.open_table(TABLE)
            stored, expected = _columns(self.table.schema), _columns(schema)
            if stored != expected:
                raise ValueError(
                    f"{place} has a table {TABLE!r} with the columns {stored}, not {expected}: use another "
                    "place"
                )
            with suppress(ValueError):  # no such table
                self.made = json.loads(database.open_table(MADE).to_arrow()["made"][0].as_py())
            self.metric, supported = DOT, DOT if single else COSINE
            for index in self.table.list_indices():
                if "vector" in index.columns:
                    self.metric = self.table.index_stats(index.name).distance_type
                    if self.metric != supported:
                        raise ValueError(
                            f"{place} has an index {index.name!r} with the metric {self.metric}, not "
                            f"{supported}: drop it, or use another place"
                        )

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        rows = [
            {"id": id, "vector": d[0] if self.single else list(d), "text": text}
            for id, d, text in zip(ids, (d.astype(self.numbers) for d in documents), texts, strict=True)
        ]
        self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        search = self.table.search() if ids is None else self.table.search().where(_listed(ids))
        rows = search.select(["id", "text"]).limit(None).to_list() if ids is None or ids else []
        return {row["id"]: row["text"] for row in rows}

    def delete(self, ids: Collection[str]) -> None:
        if ids:
            self.table.delete(_listed(ids))

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        rows = [{"id": id, "metadata": _entries(values)} for id, values in metadata.items()]
        self.table.merge_insert("id").when_matched_update_all().execute(rows)

    def _record(self, made: str) -> None:
        self.database.create_table(MADE, [{"made": made}])

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        if self.metric == COSINE:
            _check_unit("the query", query)
        vectors = query[0] if self.single else query
        search = self.table.search(np.ascontiguousarray(vectors)).distance_type(self.metric)
        conditions = [f"array_has(metadata, {_text(entry)})" for entry in _entries(self.where)]
        if among is None:
            search = search.nprobes(self.nprobes).refine_factor(10)
        else:
            conditions.append(_listed(among))
            search = search.bypass_vector_index()
        if conditions:
            search = search.where(" AND ".join(conditions), prefilter=True)
        rows = search.limit(k).to_list()
        # Distances are Σⱼ (1 − dᵀqⱼ).
        return [(row["id"], len(query) - row["_distance"], row["text"]) for row in rows]

    def approximate(self, index_type: str = "IVF_PQ", **settings: Any) -> None:
        """Build an approximate index with LanceDB.

        index_type: LanceDB's name for the type of index, such as IVF_FLAT. settings: arguments of the index's
        class in lancedb.index. Raises ValueError if documents have multiple vectors that are not unit length.
        """
        from lancedb import index

        metric = DOT if self.single else COSINE
        if metric == COSINE:
            for row in self.table.head(SAMPLE).to_pylist():
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
            "many vectors per document compares cosines, which equal inner products only at length 1"
        )


def _entries(metadata: Mapping[str, str]) -> list[str]:
    if any("=" in name for name in metadata):
        raise ValueError(f"names of metadata may not contain '=': {', '.join(metadata)}")
    return [f"{name}={value}" for name, value in metadata.items()]


def _listed(ids: Collection[str]) -> str:
    return f"id IN ({', '.join(map(_text, ids))})" if ids else "false"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _columns(schema: Any) -> dict[str, str]:
    """Map each column to its type, omitting the name that LanceDB gives to list items."""
    return {field.name: re.sub(r"\w+: | not null", "", str(field.type)) for field in schema}
