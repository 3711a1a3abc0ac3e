"""Search with PostgreSQL and pgvector, in a table of vectors on a server (extra `pgvector`)."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paradigms.engines.base import MaxSimEngine, Vectors, check_numbers
from paradigms.io.checks import naming

TABLE, INDEX, METADATA = "documents", "documents_vector", "metadata"
NUMBERS = {"float32": "vector", "float16": "halfvec"}
COLUMNS = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""


class PgvectorEngine(MaxSimEngine):
    """Documents in a PostgreSQL table, one row per vector.

    address: address of the database for psycopg, such as postgresql://user@host/database. The password may
    also come from PGPASSWORD or ~/.pgpass, and never appears in error messages. single: whether each document
    has one vector. nearest: number of rows, up to 1,000, that each query vector retrieves from the index
    built by `approximate`; the documents of these rows are then scored in full. 0 scores every document.
    schema: schema of the table, created if missing, which holds one collection. numbers: type of stored
    numbers, float32 or float16. Raises ValueError if the schema contains a table with different columns.
    """

    def __init__(
        self,
        address: str,
        dim: int,
        *,
        schema: str,
        single: bool = False,
        numbers: str = "float32",
        nearest: int = 0,
    ) -> None:
        import psycopg
        from pgvector.psycopg import register_vector

        if not 0 <= nearest <= 1000:  # pgvector would only warn and use 40
            raise ValueError(f"nearest must be from 0 to 1,000, got {nearest}")
        check_numbers(numbers, NUMBERS)
        self.dim, self.single, self.nearest = dim, single, nearest
        self.type = NUMBERS[numbers]
        try:
            parts = psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.ProgrammingError:  # its message contains the address
            parts = {"host": "@"}
        host, name = parts.get("host", "PGHOST"), parts.get("dbname", "default database")
        if "@" in f"{host}{name}":  # part of a password
            raise ValueError(
                "address must be like postgresql://user@host/database; in a password write @ and / as "
                "%40 and %2F"
            )
        self.place = f"PostgreSQL at {host}, {name}, schema {schema}"
        self.columns = {"id": "text"} | ({} if single else {"n": "integer"})
        self.columns |= {"vector": f"{self.type}({dim})", "text": "bigint"}
        lines = ", ".join(f"{name} {kind} NOT NULL" for name, kind in self.columns.items())
        key = "id" if single else "id, n"
        with naming(self.place):
            self.connection = psycopg.connect(address, autocommit=True)
            run = self.connection.execute
            try:
                quoted = psycopg.sql.Identifier(schema)
                run("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
                run(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(quoted))
                run(psycopg.sql.SQL("SET search_path TO {}, public").format(quoted))
                register_vector(self.connection)
                run(f"CREATE TABLE IF NOT EXISTS {TABLE} ({lines}, PRIMARY KEY ({key}))")
                run(f"CREATE TABLE IF NOT EXISTS {METADATA} (id text PRIMARY KEY, value jsonb NOT NULL)")
                if nearest:  # deleted rows stay in the index: the scan continues past them
                    run(f"SET hnsw.ef_search = {nearest}")
                    run("SET hnsw.iterative_scan = strict_order")
                ((made,),) = run("SELECT obj_description(to_regclass(%s), 'pg_class')", [TABLE]).fetchall()
                self.made = json.loads(made) if made else None
                columns: dict[str, str] = dict(run(COLUMNS, [TABLE]).fetchall())
                if columns != self.columns:
                    raise ValueError(
                        f"it has a table {TABLE!r} with the columns {columns}, not {self.columns}: use "
                        "another schema or database"
                    )
            except BaseException:
                self.connection.close()
                raise

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None:
        from pgvector import HalfVector

        statement = f"COPY {TABLE} ({', '.join(self.columns)}) FROM STDIN (FORMAT BINARY)"
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {TABLE} WHERE id = ANY(%s)", [list(ids)])
            with cursor.copy(statement) as copy:
                copy.set_types([kind.partition("(")[0] for kind in self.columns.values()])
                for id, vectors, text in zip(ids, documents, texts, strict=True):
                    rows = vectors if self.type == "vector" else map(HalfVector, vectors)
                    for n, vector in enumerate(rows):
                        copy.write_row((id, vector, text) if self.single else (id, n, vector, text))

    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        where = "" if ids is None else "WHERE id = ANY(%s)"
        values = [] if ids is None else [list(ids)]
        select = f"SELECT id, max(text) FROM {TABLE} {where} GROUP BY id"
        return dict(self.connection.execute(select, values).fetchall())

    def delete(self, ids: Collection[str]) -> None:
        with naming(self.place), self.connection.transaction():
            for table in (TABLE, METADATA):
                self.connection.execute(f"DELETE FROM {table} WHERE id = ANY(%s)", [list(ids)])

    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        with self.connection.cursor() as cursor:
            statement = f"INSERT INTO {METADATA} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE"
            rows = [(id, json.dumps(dict(values))) for id, values in metadata.items()]
            cursor.executemany(f"{statement} SET value = excluded.value", rows)

    def _record(self, made: str) -> None:
        from psycopg import sql

        self.connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.Identifier(TABLE), made))

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        # rel = Σⱼ maxᵢ dᵢᵀqⱼ, where <#> is the negative inner product.
        vector = f"%s::{self.type}({self.dim})"
        rel = " + ".join([f"max(-(vector <#> {vector}))"] * len(query))
        chosen = "true"
        filters: list[Any] = []
        if self.where:
            chosen = f"id IN (SELECT id FROM {METADATA} WHERE value @> %s::jsonb)"
            filters = [json.dumps(dict(self.where))]
        values = [*query, *filters]
        if among is not None:
            chosen += " AND id = ANY(%s)"
            values.append(list(among))
        elif self.nearest:
            order = f"ORDER BY vector <#> {vector} LIMIT {self.nearest}"
            nearest = f"(SELECT id FROM {TABLE} WHERE {chosen} {order})"
            chosen = f"id IN ({' UNION '.join([nearest] * len(query))})"
            values = [*query, *(value for row in query for value in (*filters, row))]
        select = f"SELECT id, {rel} AS rel, max(text) FROM {TABLE} WHERE {chosen}"
        select += f" GROUP BY id ORDER BY rel DESC LIMIT {k}"
        return self.connection.execute(select, values).fetchall()

    def close(self) -> None:
        self.connection.close()

    def approximate(self, m: int = 16, ef_construction: int = 64) -> None:
        """Build pgvector's HNSW index of all vectors, replacing any earlier index.

        Raises ValueError if vectors have more than 2,000 dimensions, or 4,000 in float16.
        """
        options = f"WITH (m = {int(m)}, ef_construction = {int(ef_construction)})"
        with naming(self.place), self.connection.transaction():
            self.connection.execute(f"DROP INDEX IF EXISTS {INDEX}")
            kind = f"USING hnsw (vector {self.type}_ip_ops)"
            self.connection.execute(f"CREATE INDEX {INDEX} ON {TABLE} {kind} {options}")
            self.connection.execute(f"ANALYZE {TABLE}")
