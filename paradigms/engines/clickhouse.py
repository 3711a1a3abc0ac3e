"""Search with ClickHouse, in this process or on a server, by any A that is SQL (`paradigms.engines.sql`).

Extra `clickhouse`. A row of the table `tokens` is a document token: its vector, vocabulary id and salience. A
row of `documents` names the version of the document's tokens: a write is complete once that row is there, and
searches read named versions only. `chdb` is ClickHouse as a library: one folder in a process, and one process
for a folder. A server is spoken to over HTTP.

Several servers are shards. Each stores and scores the documents that a hash of their ids assigns to it. If A
reads the pool, each query token's largest similarities are merged from all shards before any shard scores, so
scores do not depend on the number of shards.
"""

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen
from zlib import crc32

import numpy as np
import torch

from paradigms.align import EqualIds, PoolExcess, PoolTopK, PositiveEqualIds, pool_count
from paradigms.core import Tokens
from paradigms.engines.base import Engine, Hit, check_numbers
from paradigms.engines.sql import (
    JOINED,
    check_alignment,
    equal_ids,
    imputed,
    relevance,
    similarities,
    vector_of,
)
from paradigms.impute import IMPUTATIONS
from paradigms.io.checks import naming
from paradigms.model import Paradigm
from paradigms.recipe import Recipe

NUMBERS = ("Float32", "BFloat16", "Float64")  # types of stored vectors
NEW: dict[str, Any] = {"metadata": [], "edition": 0}  # what a replaced document keeps, and a new one has
NO_ID = -1 << 63  # id of a token whose encoder has no vocabulary
COLUMNS = {"document", "version", "place", "token", "salience", "vector"}
COLUMNS |= {"edition", "text", "pooled", "metadata", "made", "shard", "shards"}
LONGEST = 1 << 30  # bytes of a statement, which names documents and contains a query's vectors
GRANULE = 128  # rows that are read together: about two documents
MOST = (1 << 24) - 1  # similarities that ClickHouse keeps in order, for each query token
TOO_LARGE = re.compile("TOO_(BIG_AST|DEEP_AST|SLOW_PARSING)")  # errors of ClickHouse
ADDRESS = re.compile(r"https?://")


class Connection(ABC):
    """ClickHouse in this process or on a server."""

    def query(self, sql: str) -> Any:
        """Run a statement, and return its rows as a table of pyarrow, or None if it returns nothing."""
        import pyarrow as pa

        data = self.answer(sql)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all() if data else None

    @abstractmethod
    def answer(self, sql: str) -> bytes:
        """Run a statement, and return its rows in the format ArrowStream."""

    @abstractmethod
    def insert(self, table: str, rows: Any) -> None: ...

    def close(self) -> None:  # noqa: B027  a server's requests are separate
        """Release the folder."""


class Folder(Connection):
    """ClickHouse as a library, chdb, over a folder."""

    def __init__(self, place: str) -> None:
        from chdb.session import Session

        self.session = Session(place)
        self.session.query(f"SET max_query_size = {LONGEST}")

    def answer(self, sql: str) -> bytes:
        data: bytes = self.session.query(sql, "ArrowStream").bytes()
        return data

    def insert(self, table: str, rows: Any) -> None:
        self.session.query(f"INSERT INTO {table} SELECT * FROM Python(rows)")  # the variable of that name

    def close(self) -> None:
        self.session.close()


class Server(Connection):
    """A ClickHouse server's HTTP interface, with the user and password of the address, if it has them."""

    def __init__(self, place: str) -> None:
        parts = urlsplit(place)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self.headers = {"Content-Type": "application/octet-stream"}
        user = unquote(parts.username or "") or os.environ.get("CLICKHOUSE_USER", "")
        if user:
            password = os.environ.get("CLICKHOUSE_PASSWORD", "")
            self.headers["X-ClickHouse-User"] = user
            self.headers["X-ClickHouse-Key"] = password if parts.password is None else unquote(parts.password)

    def answer(self, sql: str) -> bytes:
        return self._post({}, sql.encode())

    def insert(self, table: str, rows: Any) -> None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        self._post({"query": f"INSERT INTO {table} FORMAT ArrowStream"}, sink.getvalue().to_pybytes())

    def _post(self, parameters: Mapping[str, str], body: bytes) -> bytes:
        settings = urlencode({"default_format": "ArrowStream", "max_query_size": LONGEST, **parameters})
        request = Request(f"{self.address}/?{settings}", data=body, headers=self.headers)
        try:
            with urlopen(request) as answer:
                data: bytes = answer.read()
                return data
        except HTTPError as error:
            raise ValueError(error.read().decode(errors="replace").partition("\n")[0]) from error


class ClickHouseEngine(Engine):
    """Documents in a ClickHouse database, with the token ids and saliences that A may read.

    place: a folder, the address of a server's HTTP interface, such as http://user:password@host:8123, or the
    addresses of several shards, always in the same order, with commas between them. A user and a password may
    also come from CLICKHOUSE_USER and CLICKHOUSE_PASSWORD. dim: numbers of a vector; vectors of one number
    with ids are term weights, such as SPLADE's, of which a search reads those of its terms. single: whether
    each document has one vector. database: name of the database, created if it does not exist. numbers: type
    of the stored vectors, one of `NUMBERS`. candidates: number of documents to score in each shard, the
    nearest ones by the cosine of their mean vector with the query's; 0 scores all. condition: SQL on the
    column `metadata`, a Map of strings, that documents must fulfil beside `where`, such as
    "metadata['year'] > '2020'"; it also hides documents that expire, of which a table's TTL would bring back
    former rows. settings: settings of the new tables (MergeTree), such as {"storage_policy": "cold"}.

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
        condition: str = "",
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        check_numbers(numbers, NUMBERS)
        places = place.split(",") if ADDRESS.match(place) else [place]
        bare = (ADDRESS.sub("", one).rpartition("@")[2] for one in places)  # without a password
        self.place = f"{','.join(bare)}/{database}"
        self.dim = dim
        self.single = single
        self.numbers = numbers
        self.candidates = candidates
        self.condition = condition
        settings = {"index_granularity": GRANULE, **(settings or {})}
        literals = {n: _text(v) if isinstance(v, str) else v for n, v in settings.items()}
        options = " SETTINGS " + ", ".join(f"{name} = {literal}" for name, literal in literals.items())
        with naming(self.place):
            self.shards: list[Connection] = [
                Server(one) if ADDRESS.match(one) else Folder(one) for one in places
            ]
            name = f"`{database}`"
            self.tokens = f"{name}.tokens"
            self.documents = f"{name}.documents"
            self.makers = f"{name}.made"
            precise = "Float64" if numbers == "Float64" else "Float32"
            terms = "token, " if dim == 1 else ""  # a search of term weights reads those of its terms
            self.run(f"CREATE DATABASE IF NOT EXISTS {name} ENGINE = Atomic")
            self.run(
                f"CREATE TABLE IF NOT EXISTS {self.tokens} (document String, version UInt64, place UInt32, "
                f"token Int64, salience {precise}, vector Array({numbers}), INDEX weighed salience TYPE "
                f"minmax) ENGINE = MergeTree ORDER BY ({terms}document, version, place){options}"
            )
            self.run(
                f"CREATE TABLE IF NOT EXISTS {self.documents} (document String, version UInt64, "
                "edition UInt64, text Int64, pooled Array(Float32), metadata Map(String, String)) "
                f"ENGINE = ReplacingMergeTree(edition) ORDER BY document{options}"
            )
            self.run(
                f"CREATE TABLE IF NOT EXISTS {self.makers} (made String, shard UInt32, shards UInt32) "
                "ENGINE = MergeTree ORDER BY ()"
            )
            stored = f"SELECT name FROM system.columns WHERE database = {_text(database)}"
            if lost := ", ".join(sorted(COLUMNS - {row["name"] for row in self.rows(stored)})):
                raise ValueError(f"another release made it, without {lost}: index again, in another database")
            types = {row["name"]: row["type"] for row in self.rows(f"DESCRIBE TABLE {self.tokens}")}
            if types.get("vector") != f"Array({numbers})":
                raise ValueError(f"its vectors are {types.get('vector')}, not Array({numbers}): say numbers=")
            widths = self.rows(f"SELECT max(length(vector)) AS most FROM {self.tokens}")
            if other := {row["most"] for row in widths} - {0, dim}:
                raise ValueError(f"its vectors have {max(other)} numbers, not {dim}: use another database")
            for n, shard in enumerate(self.shards):
                recorded = shard.query(f"SELECT made, shard, shards FROM {self.makers}")
                for row in recorded.to_pylist() if recorded is not None else ():
                    if (row["shard"], row["shards"]) != (n, len(self.shards)):
                        raise ValueError(
                            f"address {n + 1} of {len(self.shards)} is that of shard {row['shard'] + 1} of "
                            f"{row['shards']}: give all addresses in the order in which they were indexed"
                        )
                    self.made = json.loads(row["made"])

    def run(self, sql: str) -> list[Any]:
        """Run a statement in every shard, and return its rows as tables of pyarrow."""
        if len(self.shards) == 1:
            tables = [self.shards[0].query(sql)]
        else:
            with ThreadPoolExecutor(len(self.shards)) as threads:
                tables = list(threads.map(lambda shard: shard.query(sql), self.shards))
        return [table for table in tables if table is not None]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of all shards. Raises ValueError if the statement is too large for ClickHouse."""
        try:
            tables = self.run(sql)
        except (RuntimeError, ValueError) as error:
            large = TOO_LARGE.search(str(error))
            if large is None:
                raise
            advice = "use fewer query tokens, or a shorter condition"
            raise ValueError(f"the statement is too large for ClickHouse ({large[0]}): {advice}") from error
        return [row for table in tables for row in table.to_pylist()]

    def insert(self, table: str, rows: Any) -> None:
        """Insert rows of pyarrow, with a column `document`, into the shards of their documents."""
        owners = np.array([crc32(id.encode()) for id in rows["document"].to_pylist()]) % len(self.shards)
        for n, shard in enumerate(self.shards):
            if (mine := owners == n).any():
                shard.insert(table, rows.filter(mine))

    def check(self, model: Paradigm) -> None:
        check_alignment(model.recipe.align)
        super().check(model)

    def _write(self, ids: Sequence[str], documents: Tokens, texts: Sequence[int]) -> None:
        import pyarrow as pa

        n, i = documents.mask[0].nonzero(as_tuple=True)
        vectors = documents.vectors[0, n, i].to(torch.float64 if self.numbers == "Float64" else torch.float32)
        count, dim = vectors.shape
        tokens = torch.full((count,), NO_ID) if documents.ids is None else documents.ids[0, n, i]
        salience = torch.ones(count) if documents.salience is None else documents.salience[0, n, i]
        pooled = [part.float().mean(0).tolist() for part in vectors.split(documents.mask[0].sum(-1).tolist())]
        former = {row["document"]: row for row in self._stored(ids)}
        # Above the former ones even if this machine's clock is behind the one that wrote them.
        version = max([time.time_ns(), *(row["version"] + 1 for row in former.values())])
        starts = np.arange(0, (count + 1) * dim, dim, dtype=np.int32)
        columns = {
            "document": [ids[row] for row in n.tolist()],
            "version": pa.array([version] * count, pa.uint64()),
            "place": pa.array(i.numpy(), pa.uint32()),
            "token": tokens.numpy(),
            "salience": salience.numpy(),
            "vector": pa.ListArray.from_arrays(starts, vectors.flatten().numpy()),
        }
        self.insert(self.tokens, pa.table(columns))
        rows = zip(ids, texts, pooled, strict=True)
        self._name(
            [
                {"document": id, "version": version, "text": text, "pooled": mean}
                | {name: former.get(id, NEW)[name] for name in NEW}
                for id, text, mean in rows
            ]
        )
        if former:
            names = ", ".join(map(_text, former))
            self.run(f"DELETE FROM {self.tokens} WHERE document IN ({names}) AND version < {version}")

    def approximate(self) -> None:
        """Build an HNSW index over the documents' mean vectors, which chooses `candidates`.

        Deleted and replaced rows remain in it until ClickHouse merges its parts: a search then has fewer
        candidates.
        """
        with naming(self.place):
            kind = f"vector_similarity('hnsw', 'cosineDistance', {self.dim})"
            self.run(f"ALTER TABLE {self.documents} ADD INDEX IF NOT EXISTS pooled pooled TYPE {kind}")
            self.run(f"ALTER TABLE {self.documents} MATERIALIZE INDEX pooled SETTINGS mutations_sync = 2")

    def delete(self, ids: Collection[str]) -> None:
        names = ", ".join(map(_text, ids))
        for table in (self.documents, self.tokens) if ids else ():
            self.run(f"DELETE FROM {table} WHERE document IN ({names})")

    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        return {row["document"]: row["text"] for row in self._stored(ids, "document, text")}

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        stored = self._stored(metadata)
        self._name([row | {"metadata": list(metadata[row["document"]].items())} for row in stored])

    def _rank(self, query: Tokens, recipe: Recipe, k: int, among: Collection[str] | None) -> list[Hit]:
        if "ids" in recipe.align.reads:
            unnumbered = f"SELECT 1 FROM {self.tokens} WHERE token = {NO_ID} LIMIT 1"
            if query.ids is None or self.rows(unnumbered):
                raise ValueError("an alignment of equal ids needs the token ids of queries and documents")
        where = self._current(query, among)
        if isinstance(recipe.align, JOINED):
            return self._matching(query, recipe.align, recipe.normalise, k, where)
        weighed = bool(self.rows(f"SELECT 1 FROM {self.tokens} WHERE salience != 1 LIMIT 1"))
        rows = similarities(query, self.tokens, self.numbers, weighed, where)
        retrieved = self._retrieved(rows, query, recipe) if recipe.reads_pool else None
        if retrieved is not None and not retrieved.shape[1]:
            return []
        floors = [] if retrieved is None else retrieved.amin(1).tolist()
        if recipe.search == "impute" and retrieved is not None:
            missing = IMPUTATIONS[recipe.imputation](retrieved, self._count(rows))
            scored = imputed(rows, floors, missing.tolist())
            if among is None:
                scored = f"SELECT * FROM ({scored}) WHERE reached"
        else:
            scored = relevance(query, recipe.align, recipe.normalise, rows, floors, weighed)
        return self._best(scored, k)

    def _matching(
        self, query: Tokens, align: EqualIds | PositiveEqualIds, normalise: str, k: int, where: str
    ) -> list[Hit]:
        """Return the k best documents; those without ids of the query, whose rel is 0, only if needed."""
        statement = partial(equal_ids, query, align, normalise, self.tokens, self.numbers, where)
        if normalise != "document_tokens":  # which counts all rows
            best = self._best(statement(all_documents=False), k)
            if len(best) == k and best[-1].score > 0:
                return best
        return self._best(statement(all_documents=True), k)

    def _best(self, scored: str, k: int) -> list[Hit]:
        """Return the k best of a statement's rows, with the columns `document` and `score`."""
        best = self.rows(f"SELECT * FROM ({scored}) ORDER BY score DESC, document LIMIT {k}")
        best = sorted(best, key=lambda row: (-row["score"], row["document"]))[:k]
        texts = self.stored([row["document"] for row in best])
        return [Hit(row["document"], row["score"], texts.get(row["document"], 0)) for row in best]

    def close(self) -> None:
        for shard in self.shards:
            shard.close()

    def _record(self, made: str) -> None:
        for n, shard in enumerate(self.shards):
            shard.query(f"INSERT INTO {self.makers} SELECT {_text(made)}, {n}, {len(self.shards)}")

    def _stored(self, ids: Collection[str] | None, columns: str = "*") -> list[dict[str, Any]]:
        """Return the rows of `documents`."""
        where = "" if ids is None else f" WHERE document IN ({', '.join(map(_text, ids)) or _text('')})"
        return self.rows(f"SELECT {columns} FROM {self.documents} FINAL{where}")

    def _name(self, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows of `documents`, which take the place of those with the same ids and these editions."""
        import pyarrow as pa

        edition = {"edition": max([time.time_ns(), *(row["edition"] + 1 for row in rows)])}
        types = {
            "document": pa.string(),
            "version": pa.uint64(),
            "edition": pa.uint64(),
            "text": pa.int64(),
            "pooled": pa.list_(pa.float32()),
            "metadata": pa.map_(pa.string(), pa.string()),
        }
        columns = {name: pa.array([(row | edition)[name] for row in rows], t) for name, t in types.items()}
        self.insert(self.documents, pa.table(columns))

    def _current(self, query: Tokens, among: Collection[str] | None) -> str:
        """Return SQL that limits rows to the documents to score, and to their named versions."""
        pairs = [(_text(name), _text(value)) for name, value in self.where.items()]
        # Without mapContains, a name that a document lacks has the value ''.
        conditions = [f"mapContains(metadata, {n}) AND metadata[{n}] = {value}" for n, value in pairs]
        chosen = " AND ".join([*conditions, f"({self.condition or 1})"])
        if among is not None:
            chosen += f" AND document IN ({', '.join(map(_text, among))})"
        elif self.candidates:
            mean = vector_of(query.vectors[0, 0].double().mean(0).tolist(), "Float32")
            latest = "" if self._indexed() else " FINAL"  # which would not use the index
            nearest = f"SELECT document FROM {self.documents}{latest} WHERE {chosen}"
            nearest += f" ORDER BY cosineDistance(pooled, {mean}) LIMIT {self.candidates}"
            chosen += f" AND document IN ({nearest})"  # without FINAL, `nearest` also reads former metadata
        named = f"SELECT document, version FROM {self.documents} FINAL WHERE {chosen}"
        return f"(document, version) IN ({named})"

    def _indexed(self) -> bool:
        database = self.documents.partition(".")[0].strip("`")
        indexes = f"SELECT 1 FROM system.data_skipping_indices WHERE database = {_text(database)}"
        return bool(self.rows(f"{indexes} AND table = 'documents' AND name = 'pooled'"))

    def _count(self, rows: str) -> int:
        return sum(row["tokens"] for row in self.rows(f"SELECT count() AS tokens FROM ({rows})"))

    def _retrieved(self, rows: str, query: Tokens, recipe: Recipe) -> torch.Tensor:
        """Return each query token's largest similarities [j, k], as many as the recipe retrieves."""
        tokens = self._count(rows)
        count = recipe.search_tokens
        if recipe.search != "impute" and isinstance(recipe.align, PoolTopK | PoolExcess):
            count = int(pool_count(recipe.align.k, torch.tensor([[tokens]])))
        count = min(count, tokens)
        if count > MOST:
            raise ValueError(f"ClickHouse orders up to {MOST:,} similarities, not {count:,}")
        names = [f"s{n}" for n in range(1, query.mask.shape[-1] + 1)]
        if not count:
            return torch.empty(len(names), 0, dtype=torch.float64)
        lists = ", ".join(f"groupArraySorted({count})(-{name}) AS {name}" for name in names)
        parts = self.rows(f"SELECT {lists} FROM (SELECT {', '.join(names)} FROM ({rows}))")
        merged = [sorted(chain.from_iterable(row[name] for row in parts))[:count] for name in names]
        return -torch.tensor(merged, dtype=torch.float64)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
