"""Search with Qdrant, on a server or cluster, or in this process with data in a folder (extra `qdrant`)."""

import json
import os
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paradigms.engines.base import MaxSimEngine, Vectors, check_numbers
from paradigms.io.checks import naming, read_json
from paradigms.io.files import locked, write_text

REQUEST = 1 << 20  # numbers per request: about 20 MB as JSON; a server accepts 32 MB
CONFIG = "edge_config.json"  # file that qdrant-edge-py writes into its folder
NUMBERS = {"float32": None, "float16": "float16"}  # Qdrant's datatype
PAGE = 1 << 10  # points read at once
METADATA = "metadata"
MADE = "made_by"  # entry of a collection's metadata, and the name of a file in a folder


class Points(MaxSimEngine):
    """Documents as Qdrant's points, whose payload is {id, text, metadata}.

    kit: the package that has Qdrant's types. point, has_id: its types of a point and of a condition on keys.
    exact: whether to score every document.
    """

    kit: Any
    point: Callable[..., Any]
    has_id: Callable[[Any], Any]
    exact: bool

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        metadata = {point.payload["id"]: point.payload.get(METADATA, {}) for point in self._read(_keys(ids))}
        points: list[Any] = []
        numbers = 0
        for id, vectors, text in zip(ids, documents, texts, strict=True):
            if points and numbers + vectors.size > REQUEST:
                self._upsert(points)
                points = []
                numbers = 0
            numbers += vectors.size
            payload = {"id": id, "text": text, METADATA: metadata.get(id, {})}
            points.append(self.point(id=_key(id), vector=self._vector(vectors), payload=payload))
        self._upsert(points)

    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        if ids is not None:
            points = self._read(_keys(ids))
        else:
            points, offset = self._page(None)
            while offset is not None:
                more, offset = self._page(offset)
                points += more
        return {point.payload["id"]: point.payload.get("text", 0) for point in points}

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        kit = self.kit
        conditions = [
            kit.FieldCondition(key=f'{METADATA}."{name}"', match=kit.MatchValue(value=value))
            for name, value in self.where.items()
        ]
        if among is not None:
            conditions.append(self.has_id(set(_keys(among))))
        parameters = kit.SearchParams(exact=True) if self.exact or among is not None else None
        points = self._nearest(self._vector(query), k, kit.Filter(must=conditions), parameters)
        return [(point.payload["id"], point.score, point.payload.get("text", 0)) for point in points]

    def _vector(self, vectors: Vectors) -> list[Any]:
        return vectors[0].tolist() if self.single else vectors.tolist()

    @abstractmethod
    def _read(self, keys: list[Any]) -> list[Any]: ...

    @abstractmethod
    def _page(self, offset: Any) -> tuple[list[Any], Any]:
        """Return up to PAGE points from an offset on, or from the first, and the next offset or None."""

    @abstractmethod
    def _upsert(self, points: list[Any]) -> None: ...

    @abstractmethod
    def _nearest(self, query: list[Any], k: int, condition: Any, parameters: Any) -> Iterable[Any]: ...


class QdrantEngine(Points):
    """Documents in a collection on a Qdrant server or cluster.

    url: the server's address. collection: its name, created if missing. single: whether each document has one
    vector. exact: whether to score every document instead of searching Qdrant's HNSW graph. numbers: type of
    stored numbers, float32 or float16. settings: arguments of Qdrant's create_collection, such as
    {"shard_number": 3, "replication_factor": 2, "quantization_config": {"scalar": {"type": "int8"}}}.
    vectors: arguments of its VectorParams, such as {"on_disk": True, "hnsw_config": {"m": 0}}. client:
    arguments of qdrant_client.QdrantClient; its api_key may also come from QDRANT_API_KEY. Raises ValueError
    if the collection's vectors or metric do not match, or if url is a folder.
    """

    def __init__(
        self,
        url: str,
        dim: int,
        *,
        collection: str,
        single: bool = False,
        exact: bool = False,
        numbers: str = "float32",
        settings: Mapping[str, Any] | None = None,
        vectors: Mapping[str, Any] | None = None,
        **client: Any,
    ) -> None:
        from qdrant_client import QdrantClient, models

        if "://" not in url:
            raise ValueError(f"{url!r} is no address: QdrantEdgeEngine(path, dim) searches a folder")
        check_numbers(numbers, NUMBERS)
        self.dim = dim
        self.collection = collection
        self.single = single
        self.kit = models
        self.point = models.PointStruct
        self.has_id = lambda keys: models.HasIdCondition(has_id=keys)
        self.exact = exact
        maxima = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        expected = models.VectorParams(
            size=dim,
            distance=models.Distance.DOT,
            multivector_config=None if single else maxima,
            datatype=models.Datatype.FLOAT16 if NUMBERS[numbers] else None,
            **(vectors or {}),
        )
        self.place = f"{url}, collection {collection}"
        client.setdefault("api_key", os.environ.get("QDRANT_API_KEY"))
        with naming(self.place):
            self.client = QdrantClient(url=url, **client)
            if not self.client.collection_exists(collection):
                self.client.create_collection(collection, vectors_config=expected, **(settings or {}))
            config = self.client.get_collection(collection).config
        self.made = json.loads((config.metadata or {}).get(MADE, "null"))
        try:
            _check_vectors(self.place, _plain(config.params.vectors), _plain(expected))
        except ValueError:
            self.client.close()
            raise

    def delete(self, ids: Collection[str]) -> None:
        if ids:
            self.client.delete(self.collection, _keys(ids), wait=True)

    def close(self) -> None:
        self.client.close()

    def _read(self, keys: list[Any]) -> list[Any]:
        return self.client.retrieve(self.collection, keys)

    def _page(self, offset: Any) -> tuple[list[Any], Any]:
        return self.client.scroll(self.collection, limit=PAGE, offset=offset)

    def _upsert(self, points: list[Any]) -> None:
        self.client.upsert(self.collection, points, wait=True)

    def _nearest(self, query: list[Any], k: int, condition: Any, parameters: Any) -> list[Any]:
        search: dict[str, Any] = {"query_filter": condition, "search_params": parameters}
        return self.client.query_points(self.collection, query=query, limit=k, **search).points

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        for id, values in metadata.items():
            self.client.set_payload(self.collection, {METADATA: dict(values)}, _keys([id]), wait=True)

    def _record(self, made: str) -> None:
        self.client.update_collection(self.collection, metadata={MADE: made})
        if MADE not in (self.client.get_collection(self.collection).config.metadata or {}):
            raise ValueError("the server does not store a collection's metadata: Qdrant 1.16 or newer does")


class QdrantEdgeEngine(Points):
    """Documents in a folder that only one process can open, searched by Qdrant's embedded engine.

    single: whether each document has one vector. exact: whether to score every document instead of searching
    the HNSW graph that `approximate` builds. numbers: type of stored numbers, float32 or float16. Raises
    ValueError if the folder's vectors or metric do not match or if it contains unrelated files, and
    BlockingIOError if the folder is already open.
    """

    def __init__(
        self,
        path: str | Path,
        dim: int,
        *,
        single: bool = False,
        exact: bool = False,
        numbers: str = "float32",
    ) -> None:
        import qdrant_edge

        check_numbers(numbers, NUMBERS)
        self.place = str(path)
        self.dim = dim
        self.single = single
        self.exact = exact
        self.kit = qdrant_edge
        self.point = qdrant_edge.Point
        self.has_id = qdrant_edge.HasIdCondition
        folder = Path(path)
        maxima = qdrant_edge.MultiVectorConfig(qdrant_edge.MultiVectorComparator.MaxSim)
        many = None if single else maxima
        datatype = qdrant_edge.VectorStorageDatatype.Float16 if NUMBERS[numbers] else None
        vectors = qdrant_edge.EdgeVectorParams(
            dim, qdrant_edge.Distance.Dot, multivector_config=many, datatype=datatype
        )
        with naming(self.place), ExitStack() as lock:
            # Qdrant's own lock does not cover loading: two processes that load a folder may both succeed.
            lock.enter_context(locked(folder, make=True))
            if (folder / CONFIG).is_file():
                stored = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["vectors"]
                multi = None if single else {"comparator": "max_sim"}
                expected = {"size": dim, "distance": "Dot", "multivector_config": multi}
                expected["datatype"] = NUMBERS[numbers]
                _check_vectors(self.place, stored.get("", stored), expected)
                self.shard = qdrant_edge.EdgeShard.load(self.place)
            else:
                if folder.is_dir() and any(folder.iterdir()):
                    raise ValueError(f"the folder holds other files and no {CONFIG}: use another one")
                self.shard = qdrant_edge.EdgeShard.create(self.place, qdrant_edge.EdgeConfig(vectors))
            self.made = read_json(folder / MADE) if (folder / MADE).is_file() else None
            self._lock = lock.pop_all()

    def delete(self, ids: Collection[str]) -> None:
        if ids:
            self.shard.update(self.kit.UpdateOperation.delete_points(_keys(ids)))
            self.shard.flush()

    def approximate(self) -> None:
        """Merge segments, and build HNSW graphs for the segments that exceed Qdrant's size threshold."""
        with naming(self.place):
            self.shard.optimize()

    def close(self) -> None:
        """Write pending changes and unlock the folder."""
        with self._lock:
            self.shard.close()

    def _read(self, keys: list[Any]) -> list[Any]:
        return self.shard.retrieve(keys, True, False)

    def _page(self, offset: Any) -> tuple[list[Any], Any]:
        return self.shard.scroll(self.kit.ScrollRequest(limit=PAGE, with_payload=True, offset=offset))

    def _upsert(self, points: list[Any]) -> None:
        self.shard.update(self.kit.UpdateOperation.upsert_points(points))
        self.shard.flush()

    def _nearest(self, query: list[Any], k: int, condition: Any, parameters: Any) -> list[Any]:
        nearest = self.kit.Query.Nearest(query)
        search: dict[str, Any] = {"filter": condition, "params": parameters, "with_payload": True}
        return self.shard.query(self.kit.QueryRequest(k, query=nearest, **search))

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        for id, values in metadata.items():
            self.shard.update(self.kit.UpdateOperation.set_payload(_keys([id]), {METADATA: dict(values)}))
        self.shard.flush()

    def _record(self, made: str) -> None:
        write_text(Path(self.place, MADE), made)


def _keys(ids: Iterable[str]) -> list[Any]:
    return [_key(id) for id in ids]


def _key(id: str) -> str:
    """Convert an id to a UUID, because Qdrant only accepts numbers and UUIDs as ids."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, id))


def _plain(params: Any) -> dict[str, Any]:
    """Return the client's vector parameters as JSON values, or as they are if vectors have names."""
    return dict(params or {}) if isinstance(params, dict | None) else params.model_dump(mode="json")


def _check_vectors(place: str, stored: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise ValueError, with both in the message, if stored and expected vector parameters differ."""
    if _vectors(stored) != _vectors(expected):
        raise ValueError(
            f"{place} has a collection with {_vectors(stored)}, not {_vectors(expected)}: use another place"
        )


def _vectors(params: dict[str, Any]) -> str:
    """Describe a collection's vectors in words."""
    if "size" not in params:
        return f"vectors with names ({', '.join(params) or 'none'})"
    many = params.get("multivector_config")
    kind = f"many vectors per document ({many['comparator']})" if many else "one vector per document"
    return f"{kind}, {params['size']} × {params.get('datatype') or 'float32'}, {params['distance']}"
