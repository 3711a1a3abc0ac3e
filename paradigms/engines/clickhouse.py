"""Search with ClickHouse, in this process or on a server, by any A that is SQL (`paradigms.engines.sql`).

Extra `clickhouse`. A row of the table `tokens` is a document token: its vector, vocabulary id and salience.
`chdb` is ClickHouse as a library: one folder in a process, and one process for a folder. A server is spoken
to over HTTP. Where `tokens` and `documents` are `Distributed` tables, sharded by document, each shard scores
its own documents, since a statement groups by document and keeps the k best.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from paradigms.align import PoolTopK, QueryToDocument, pool_count
from paradigms.core import Tokens
from paradigms.engines.base import Engine, Hit, Vectors
from paradigms.engines.sql import check_alignment, imputed, relevance, similarities, vector_of
from paradigms.impute import IMPUTATIONS
from paradigms.io.checks import naming
from paradigms.model import Paradigm
from paradigms.recipe import Recipe

NUMBERS = ("Float32", "BFloat16", "Float64")  # types of stored vectors
ADDRESS = re.compile(r"https?://")


class Connection(Protocol):
    def query(self, sql: str) -> Any:
        """Run a statement, and return its rows as a table of pyarrow."""

    def insert(self, table: str, rows: Any) -> None: ...

    def close(self) -> None: ...


class Folder:
    """ClickHouse as a library, chdb, over a folder."""

    def __init__(self, place: str) -> None:
        from chdb.session import Session

        self.session = Session(place)

    def query(self, sql: str) -> Any:
        import pyarrow as pa

        data = self.session.query(sql, "ArrowStream").bytes()
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all() if data else None

    def insert(self, table: str, rows: Any) -> None:
        self.session.query(f"INSERT INTO {table} SELECT * FROM Python(rows)")  # the variable of that name

    def close(self) -> None:
        self.session.close()


class Server:
    """A ClickHouse server's HTTP interface, with the user and password of the address, if it has them."""

    def __init__(self, place: str) -> None:
        parts = urlsplit(place)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self.headers = {"Content-Type": "application/octet-stream"}
        if parts.username:
            self.headers["X-ClickHouse-User"] = unquote(parts.username)
            self.headers["X-ClickHouse-Key"] = unquote(parts.password or "")

    def query(self, sql: str) -> Any:
        import pyarrow as pa

        data = self._post({}, sql.encode())
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all() if data else None

    def insert(self, table: str, rows: Any) -> None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        self._post({"query": f"INSERT INTO {table} FORMAT ArrowStream"}, sink.getvalue().to_pybytes())

    def close(self) -> None:
        pass

    def _post(self, parameters: Mapping[str, str], body: bytes) -> bytes:
        asked = urlencode({"default_format": "ArrowStream", **parameters})
        request = Request(f"{self.address}/?{asked}", data=body, headers=self.headers)
        try:
            with urlopen(request) as answer:
                data: bytes = answer.read()
                return data
        except HTTPError as error:
            raise ValueError(error.read().decode(errors="replace").partition("\n")[0]) from error


class ClickHouseEngine(Engine):
    """Documents in a ClickHouse database, with the token ids and saliences that A may read.

    place: a folder, or the address of a server's HTTP interface, such as http://user:password@host:8123.
    single: whether each document has one vector. database: name of the database, created if it does not
    exist. numbers: type of the stored vectors, one of `NUMBERS`. candidates: number of documents to score,
    the nearest ones by the cosine of their mean vector with the query's; 0 scores all. where: SQL on the
    column `metadata`, a Map of strings, that documents must fulfil, such as "metadata['language'] = 'en'".

    Raises ValueError if the database has vectors of another type.
    """

    def __init__(
        self,
        place: str,
        dim: int,
        *,
        single: bool = False,
        database: str = "paradigms",
        numbers: str = "Float32",
        candidates: int = 0,
        where: str = "",
    ) -> None:
        if numbers not in NUMBERS:
            raise ValueError(f"numbers={numbers!r}: choose one of {', '.join(NUMBERS)}")
        self.place, self.dim, self.single = (
            f"{ADDRESS.sub('', place).rpartition('@')[2]}/{database}",
            dim,
            False,
        )
        self.numbers, self.candidates, self.where = numbers, candidates, where
        with naming(self.place):
            self.connection: Connection = Server(place) if ADDRESS.match(place) else Folder(place)
            name = f"`{database}`"
            self.tokens, self.documents, self.makers = (
                f"{name}.{t}" for t in ("tokens", "documents", "made")
            )
            precise = "Float64" if numbers == "Float64" else "Float32"
            self.run(f"CREATE DATABASE IF NOT EXISTS {name} ENGINE = Atomic")
            self.run(
                f"CREATE TABLE IF NOT EXISTS {self.tokens} (document String, place UInt32, token Int64, "
                f"salience {precise}, vector Array({numbers})) ENGINE = MergeTree ORDER BY (document, place)"
            )
            self.run(
                f"CREATE TABLE IF NOT EXISTS {self.documents} (document String, text Int64, "
                "pooled Array(Float32), metadata Map(String, String)) ENGINE = MergeTree ORDER BY document"
            )
            self.run(f"CREATE TABLE IF NOT EXISTS {self.makers} (made String) ENGINE = MergeTree ORDER BY ()")
            types = {row["name"]: row["type"] for row in self.rows(f"DESCRIBE TABLE {self.tokens}")}
            if types.get("vector") != f"Array({numbers})":
                raise ValueError(f"its vectors are {types.get('vector')}, not Array({numbers}): say numbers=")
            [width] = self.rows(f"SELECT max(length(vector)) AS most FROM {self.tokens}")
            if width["most"] not in (0, dim):
                raise ValueError(f"its vectors have {width['most']} numbers, not {dim}: use another database")
            self.weighed = bool(self.rows(f"SELECT 1 FROM {self.tokens} WHERE salience != 1 LIMIT 1"))
            recorded = self.rows(f"SELECT made FROM {self.makers}")
            self.made = json.loads(recorded[0]["made"]) if recorded else None

    def run(self, sql: str) -> Any:
        """Run a statement, and return its rows as a table of pyarrow, or None if it has none."""
        return self.connection.query(sql)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        table = self.run(sql)
        return [] if table is None else list(table.to_pylist())

    def check(self, model: Paradigm) -> None:
        """Raise ValueError unless there is SQL for the model's A, and its dimension is the engine's."""
        check_alignment(model.recipe.align)
        if model.encoder.dim != self.dim:
            raise ValueError(f"{model.recipe.name} has {model.encoder.dim} dimensions, the engine {self.dim}")

    def write(self, ids: Sequence[str], documents: Tokens, texts: Sequence[int] | None = None) -> int:
        import pyarrow as pa

        n, i = documents.mask[0].nonzero(as_tuple=True)
        names = [ids[row] for row in n.tolist()]
        count = len(names)
        tokens = torch.full((count,), -1) if documents.ids is None else documents.ids[0][n, i]
        salience = torch.ones(count) if documents.salience is None else documents.salience[0][n, i]
        vectors = (
            documents.vectors[0][n, i].double()
            if self.numbers == "Float64"
            else documents.vectors[0][n, i].float()
        )
        sizes = documents.mask[0].sum(1)
        pooled = (documents.vectors * documents.mask[..., None])[0].sum(1) / sizes.clamp(min=1)[:, None]
        full = sizes.nonzero()[:, 0].tolist()
        written = [ids[row] for row in full]
        self.weighed |= bool((salience != 1).any())
        with naming(self.place):
            self.delete(written)
            self.connection.insert(
                self.tokens,
                pa.table(
                    {
                        "document": names,
                        "place": pa.array(i.numpy(), pa.uint32()),
                        "token": tokens.numpy(),
                        "salience": salience.numpy(),
                        "vector": _lists(vectors),
                    }
                ),
            )
            digests = [0 if texts is None else texts[row] for row in full]
            rows = {"document": written, "text": pa.array(digests, pa.int64())}
            rows["pooled"] = _lists(pooled[full].float())
            self.connection.insert(f"{self.documents} (document, text, pooled)", pa.table(rows))
        return len(written)

    def approximate(self) -> None:
        """Build an HNSW index over the documents' mean vectors, which chooses `candidates`.

        Deleted documents remain in it until ClickHouse merges its parts: a search then has fewer candidates.
        """
        with naming(self.place):
            kind = f"vector_similarity('hnsw', 'cosineDistance', {self.dim})"
            self.run(f"ALTER TABLE {self.documents} ADD INDEX IF NOT EXISTS pooled pooled TYPE {kind}")
            self.run(f"ALTER TABLE {self.documents} MATERIALIZE INDEX pooled SETTINGS mutations_sync = 2")

    def delete(self, ids: Collection[str]) -> None:
        """Delete documents; ids that are not stored are ignored."""
        names = ", ".join(map(_text, ids))
        if ids and self.rows(f"SELECT 1 FROM {self.documents} WHERE document IN ({names}) LIMIT 1"):
            for table in (self.tokens, self.documents):
                self.run(f"DELETE FROM {table} WHERE document IN ({names})")

    def describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        """Set the metadata of stored documents, id -> {name: value}, which `where` reads."""
        import pyarrow as pa

        ids = ", ".join(map(_text, metadata))
        stored = self.rows(f"SELECT document, text, pooled FROM {self.documents} WHERE document IN ({ids})")
        if missing := metadata.keys() - {row["document"] for row in stored}:
            raise ValueError(f"{self.place} has no document {min(missing)!r}")
        pairs = pa.map_(pa.string(), pa.string())
        rows = {
            "document": [row["document"] for row in stored],
            "text": pa.array([row["text"] for row in stored], pa.int64()),
            "pooled": pa.array([row["pooled"] for row in stored], pa.list_(pa.float32())),
            "metadata": pa.array([list(metadata[row["document"]].items()) for row in stored], pairs),
        }
        self.run(f"DELETE FROM {self.documents} WHERE document IN ({ids})")
        self.connection.insert(self.documents, pa.table(rows))

    def rank(self, query: Tokens, recipe: Recipe, k: int, among: Collection[str] | None = None) -> list[Hit]:
        real = query.mask[0, 0]
        query = query.map(lambda t: t[:, :, real])
        self._check("the query", query.vectors[0, 0].numpy())
        if not real.any() or (among is not None and not among):
            return []
        rows = similarities(query, self.tokens, self.numbers, self.weighed, self._documents(query, among))
        with naming(self.place):
            if recipe.reads_pool:
                [pool] = self.rows(f"SELECT count() AS tokens FROM ({rows})")
            if recipe.search == "impute":
                retrieved = self._retrieved(rows, query, recipe.search_tokens)
                missing = IMPUTATIONS[recipe.imputation](retrieved, pool["tokens"])
                scored = imputed(rows, retrieved.amin(1).tolist(), missing.tolist())
                if among is None:
                    scored = f"SELECT * FROM ({scored}) WHERE reached"
            else:
                floors: list[float] = []
                if isinstance(recipe.align, PoolTopK):
                    count = int(pool_count(recipe.align.k, torch.tensor([[pool["tokens"]]])))
                    floors = self._retrieved(rows, query, count).amin(1).tolist()
                scored = relevance(query, recipe.align, recipe.normalise, rows, floors, self.weighed)
            best = self.rows(f"SELECT * FROM ({scored}) ORDER BY score DESC, document LIMIT {k}")
            names = ", ".join(_text(row["document"]) for row in best) or "''"
            stored = self.rows(f"SELECT document, text FROM {self.documents} WHERE document IN ({names})")
        texts = {row["document"]: row["text"] for row in stored}
        return [Hit(row["document"], row["score"], texts[row["document"]]) for row in best]

    def close(self) -> None:
        self.connection.close()

    def _record(self, made: str) -> None:
        self.run(f"INSERT INTO {self.makers} SELECT {_text(made)}")

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        tensors = [torch.from_numpy(vectors) for vectors in documents]
        padded = pad_sequence(tensors, batch_first=True)[None]
        lengths = torch.tensor([len(vectors) for vectors in documents])
        mask = torch.arange(padded.shape[2]) < lengths[:, None]
        self.write(ids, Tokens(padded, mask[None]), texts)

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[Hit]:
        vectors = torch.from_numpy(query)[None, None]
        tokens = Tokens(vectors, torch.ones(1, 1, len(query), dtype=torch.bool))
        return self.rank(tokens, Recipe("maxsim", QueryToDocument(), "one"), k, among)

    def _documents(self, query: Tokens, among: Collection[str] | None) -> str:
        """Return SQL that limits rows to the documents to score."""
        if among is not None:
            return f"document IN ({', '.join(map(_text, among))})"
        if not self.where and not self.candidates:
            return "1"
        chosen = f"SELECT document FROM {self.documents} WHERE {self.where or '1'}"
        if self.candidates:
            mean = query.vectors[0, 0].double().mean(0).tolist()
            chosen += (
                f" ORDER BY cosineDistance(pooled, {vector_of(mean, 'Float32')}) LIMIT {self.candidates}"
            )
        return f"document IN ({chosen})"

    def _retrieved(self, rows: str, query: Tokens, count: int) -> torch.Tensor:
        """Return each query token's `count` largest similarities in the rows, or all, padded with −∞."""
        names = [f"s{n}" for n in range(1, query.mask.shape[-1] + 1)]
        lists = ", ".join(f"groupArraySorted({count})(-{name}) AS {name}" for name in names)
        [row] = self.rows(f"SELECT {lists} FROM (SELECT {', '.join(names)} FROM ({rows}))")
        return -torch.tensor([row[name] for name in names], dtype=torch.float64)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _lists(vectors: torch.Tensor) -> Any:
    """Convert vectors [n, h] to a list column of pyarrow."""
    import pyarrow as pa

    count, dim = vectors.shape
    return pa.ListArray.from_arrays(
        np.arange(0, (count + 1) * dim, dim, dtype=np.int32), vectors.flatten().numpy()
    )
