"""Search with Qdrant, on a server or cluster, or in this process with data in a folder (extra `qdrant`)."""

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from paradigms.engines.base import Engine, Vectors, check_numbers
from paradigms.io.checks import naming, read_json
from paradigms.io.files import locked, write_text

REQUEST = 1 << 20  # numbers per request: about 20 MB as JSON; a server accepts 32 MB
CONFIG = "edge_config.json"  # file that qdrant-edge-py writes into its folder
NUMBERS = {"float32": None, "float16": "float16"}  # Qdrant's datatype
PAGE = 1 << 10  # points read at once
METADATA = "metadata"
MADE = "made_by"  # entry of a collection's metadata, and the name of a file in a folder


class QdrantEngine(Engine):
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
        self.models = models
        self.parameters = models.SearchParams(exact=True) if exact else None
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
            _check_vectors(self.place, *(_plain(params) for params in (config.params.vectors, expected)))
        except ValueError:
            self.client.close()
            raise

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        payloads = _kept(self.client.retrieve(self.collection, _keys(ids)), ids, texts)
        for points in _points(payloads, documents, self.single, self.models.PointStruct, str):
            self.client.upsert(self.collection, points, wait=True)

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        vector = query[0].tolist() if self.single else query.tolist()
        parameters = self.parameters if among is None else self.models.SearchParams(exact=True)
        conditions = _conditions(self.models, self.where)
        if among is not None:
            conditions.append(self.models.HasIdCondition(has_id=_keys(among)))
        points = self.client.query_points(
            self.collection,
            query=vector,
            limit=k,
            query_filter=self.models.Filter(must=conditions),
            search_params=parameters,
        ).points
        return _hits(points)

    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        if ids is not None:
            return _digests(self.client.retrieve(self.collection, _keys(ids)))
        return _digests(_pages(lambda first: self.client.scroll(self.collection, limit=PAGE, offset=first)))

    def delete(self, ids: Collection[str]) -> None:
        if ids:
            self.client.delete(self.collection, _keys(ids), wait=True)

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        for id, values in metadata.items():
            self.client.set_payload(self.collection, {METADATA: dict(values)}, _keys([id]), wait=True)

    def close(self) -> None:
        self.client.close()

    def _record(self, made: str) -> None:
        self.client.update_collection(self.collection, metadata={MADE: made})
        if MADE not in (self.client.get_collection(self.collection).config.metadata or {}):
            raise ValueError("the server does not store a collection's metadata: Qdrant 1.16 or newer does")


class QdrantEdgeEngine(Engine):
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
        self.place, self.dim, self.single, self.exact = str(path), dim, single, exact
        self.edge: Any = qdrant_edge
        folder, comparator = Path(path), qdrant_edge.MultiVectorComparator.MaxSim
        many = None if single else qdrant_edge.MultiVectorConfig(comparator)
        types = qdrant_edge.VectorStorageDatatype
        datatype = types.Float16 if NUMBERS[numbers] else None
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

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        payloads = _kept(self._read(ids), ids, texts)
        for points in _points(payloads, documents, self.single, self.edge.Point, lambda id: id):
            self.shard.update(self.edge.UpdateOperation.upsert_points(points))
        self.shard.flush()

    def _read(self, ids: Collection[str]) -> Any:
        return self.shard.retrieve([_uuid(id) for id in ids], True, False)

    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        if ids is not None:
            return _digests(self._read(ids))
        request = partial(self.edge.ScrollRequest, limit=PAGE, with_payload=True)
        return _digests(_pages(lambda first: self.shard.scroll(request(offset=first))))

    def delete(self, ids: Collection[str]) -> None:
        if ids:
            self.shard.update(self.edge.UpdateOperation.delete_points([_uuid(id) for id in ids]))
            self.shard.flush()

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        for id, values in metadata.items():
            payload = {METADATA: dict(values)}
            self.shard.update(self.edge.UpdateOperation.set_payload([_uuid(id)], payload))
        self.shard.flush()

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        edge = self.edge
        conditions = _conditions(edge, self.where)
        if among is not None:
            conditions.append(edge.HasIdCondition({_uuid(id) for id in among}))
        request = edge.QueryRequest(
            k,
            query=edge.Query.Nearest(query[0].tolist() if self.single else query.tolist()),
            filter=edge.Filter(must=conditions),
            params=edge.SearchParams(exact=self.exact or among is not None),
            with_payload=True,
        )
        return _hits(self.shard.query(request))

    def _record(self, made: str) -> None:
        write_text(Path(self.place, MADE), made)

    def approximate(self) -> None:
        """Merge segments, and build HNSW graphs for the segments that exceed Qdrant's size threshold."""
        with naming(self.place):
            self.shard.optimize()

    def close(self) -> None:
        """Write pending changes and unlock the folder."""
        with self._lock:
            self.shard.close()


def _points(
    payloads: Sequence[dict[str, Any]],
    documents: Sequence[Vectors],
    single: bool,
    point: Any,
    key: Callable[[uuid.UUID], Any],
) -> Iterator[list[Any]]:
    """Yield documents as lists of Qdrant points; a list's vectors have at most REQUEST numbers in total."""
    points: list[Any] = []
    numbers = 0
    for payload, d in zip(payloads, documents, strict=True):
        if points and numbers + d.size > REQUEST:
            yield points
            points, numbers = [], 0
        numbers += d.size
        vector = d[0].tolist() if single else d.tolist()
        points.append(point(id=key(_uuid(payload["id"])), vector=vector, payload=payload))
    yield points


def _kept(former: Iterable[Any], ids: Sequence[str], texts: Sequence[int]) -> list[dict[str, Any]]:
    """Return the payloads of documents, with the metadata of those that they replace."""
    metadata = {point.payload["id"]: point.payload.get(METADATA, {}) for point in former}
    pairs = zip(ids, texts, strict=True)
    return [{"id": id, "text": text, METADATA: metadata.get(id, {})} for id, text in pairs]


def _conditions(kit: Any, where: Mapping[str, str]) -> list[Any]:
    return [
        kit.FieldCondition(key=f'{METADATA}."{name}"', match=kit.MatchValue(value=value))
        for name, value in where.items()
    ]


def _pages(page: Callable[[Any], tuple[list[Any], Any]]) -> Iterator[Any]:
    """Yield all points. page: the offset of a page, or None for the first -> its points, the next offset."""
    points, offset = page(None)
    yield from points
    while offset is not None:
        points, offset = page(offset)
        yield from points


def _digests(points: Iterable[Any]) -> dict[str, int]:
    return {point.payload["id"]: point.payload.get("text", 0) for point in points}


def _hits(points: Iterable[Any]) -> list[tuple[str, float, int]]:
    payloads = [(point.payload or {}, point.score) for point in points]
    return [(payload["id"], score, payload.get("text", 0)) for payload, score in payloads]


def _keys(ids: Iterable[str]) -> list[Any]:
    return [str(_uuid(id)) for id in ids]


def _uuid(id: str) -> uuid.UUID:
    """Convert an id to a UUID, because Qdrant only accepts numbers and UUIDs as ids."""
    return uuid.uuid5(uuid.NAMESPACE_URL, id)


def _plain(params: Any) -> dict[str, Any]:
    """Convert the client's vector parameters to plain JSON values."""
    if isinstance(params, dict):
        return {name: _plain(part) for name, part in params.items()}
    made: dict[str, Any] = json.loads(params.model_dump_json()) if params is not None else {}
    return made


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
