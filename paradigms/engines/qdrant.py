"""Search with Qdrant, on a server or cluster, or in this process with data in a folder (extra `qdrant`)."""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paradigms.engines.base import Engine, Vectors
from paradigms.io.checks import naming, read_json
from paradigms.io.files import locked, write_text

REQUEST = 1 << 20  # numbers per request: about 20 MB as JSON; a server accepts 32 MB
CONFIG = "edge_config.json"  # file that qdrant-edge-py writes into its folder
MADE = "made_by"  # entry of a collection's metadata, and the name of a file in a folder


class QdrantEngine(Engine):
    """Documents in a collection on a Qdrant server or cluster.

    collection: its name, created if missing. single: whether each document has one vector. exact: whether to
    score every document instead of searching Qdrant's HNSW graph. client: arguments of
    qdrant_client.QdrantClient, such as url= and api_key=. Raises ValueError if the collection's vectors or
    metric do not match, or if path= is given; for a folder, use `QdrantEdgeEngine`.
    """

    def __init__(
        self, dim: int, *, collection: str, single: bool = False, exact: bool = False, **client: Any
    ) -> None:
        from qdrant_client import QdrantClient, models

        if "path" in client:
            raise ValueError(
                "a folder is for QdrantEdgeEngine(path, dim): this one asks a server, by its url"
            )
        self.dim = dim
        self.collection = collection
        self.single = single
        self.models = models
        self.parameters = models.SearchParams(exact=True) if exact else None
        maxima = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        expected = models.VectorParams(
            size=dim, distance=models.Distance.DOT, multivector_config=None if single else maxima
        )
        self.place = f"{client.get('url') or 'Qdrant'}, collection {collection}"
        with naming(self.place):
            self.client = QdrantClient(**client)
            if not self.client.collection_exists(collection):
                self.client.create_collection(collection, vectors_config=expected)
            config = self.client.get_collection(collection).config
        self.made = json.loads((config.metadata or {}).get(MADE, "null"))
        try:
            _check_vectors(self.place, *(_plain(params) for params in (config.params.vectors, expected)))
        except ValueError:
            self.client.close()
            raise

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        for points in _points(ids, documents, texts, self.single, self.models.PointStruct, str):
            self.client.upsert(self.collection, points, wait=True)

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        vector = query[0].tolist() if self.single else query.tolist()
        options: dict[str, Any] = {"search_params": self.parameters}
        if among is not None:
            ids = self.models.HasIdCondition(has_id=[str(_uuid(id)) for id in among])
            exact = self.models.SearchParams(exact=True)
            options = {"query_filter": self.models.Filter(must=[ids]), "search_params": exact}
        return _hits(self.client.query_points(self.collection, query=vector, limit=k, **options).points)

    def _record(self, made: str) -> None:
        self.client.update_collection(self.collection, metadata={MADE: made})
        if MADE not in (self.client.get_collection(self.collection).config.metadata or {}):
            raise ValueError("the server does not store a collection's metadata: Qdrant 1.16 or newer does")


class QdrantEdgeEngine(Engine):
    """Documents in a folder that only one process can open, searched by Qdrant's embedded engine.

    single: whether each document has one vector. exact: whether to score every document instead of searching
    the HNSW graph that `approximate` builds. Raises ValueError if the folder's vectors or metric do not match
    or if it contains unrelated files, and BlockingIOError if the folder is already open.
    """

    def __init__(self, path: str | Path, dim: int, *, single: bool = False, exact: bool = False) -> None:
        import qdrant_edge

        self.place, self.dim, self.single, self.exact = str(path), dim, single, exact
        self.edge: Any = qdrant_edge
        folder, comparator = Path(path), qdrant_edge.MultiVectorComparator.MaxSim
        many = None if single else qdrant_edge.MultiVectorConfig(comparator)
        vectors = qdrant_edge.EdgeVectorParams(dim, qdrant_edge.Distance.Dot, multivector_config=many)
        with naming(self.place), ExitStack() as lock:
            # Qdrant's own lock does not cover loading: two processes that load a folder may both succeed.
            lock.enter_context(locked(folder, make=True))
            if (folder / CONFIG).is_file():
                stored = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["vectors"]
                multi = None if single else {"comparator": "max_sim"}
                expected = {"size": dim, "distance": "Dot", "multivector_config": multi}
                _check_vectors(self.place, stored.get("", stored), expected)
                self.shard = qdrant_edge.EdgeShard.load(self.place)
            else:
                if folder.is_dir() and any(folder.iterdir()):
                    raise ValueError(f"the folder holds other files and no {CONFIG}: use another one")
                self.shard = qdrant_edge.EdgeShard.create(self.place, qdrant_edge.EdgeConfig(vectors))
            self.made = read_json(folder / MADE) if (folder / MADE).is_file() else None
            self._lock = lock.pop_all()

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        for points in _points(ids, documents, texts, self.single, self.edge.Point, lambda id: id):
            self.shard.update(self.edge.UpdateOperation.upsert_points(points))
        self.shard.flush()

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        edge, some = self.edge, None
        if among is not None:
            some = edge.Filter(must=[edge.HasIdCondition({_uuid(id) for id in among})])
        request = edge.QueryRequest(
            k,
            query=edge.Query.Nearest(query[0].tolist() if self.single else query.tolist()),
            filter=some,
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
    ids: Sequence[str],
    documents: Sequence[Vectors],
    texts: Sequence[int],
    single: bool,
    point: Any,
    key: Callable[[uuid.UUID], Any],
) -> Iterator[list[Any]]:
    """Yield documents as lists of Qdrant points; a list's vectors have at most REQUEST numbers in total."""
    points: list[Any] = []
    numbers = 0
    for id, d, text in zip(ids, documents, texts, strict=True):
        if points and numbers + d.size > REQUEST:
            yield points
            points, numbers = [], 0
        numbers += d.size
        vector = d[0].tolist() if single else d.tolist()
        points.append(point(id=key(_uuid(id)), vector=vector, payload={"id": id, "text": text}))
    yield points


def _hits(points: Iterable[Any]) -> list[tuple[str, float, int]]:
    payloads = [(point.payload or {}, point.score) for point in points]
    return [(payload["id"], score, payload.get("text", 0)) for payload, score in payloads]


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
