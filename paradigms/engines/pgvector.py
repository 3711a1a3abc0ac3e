"""Search with PostgreSQL and pgvector, in a table of vectors on a server (extra `pgvector`)."""

import json
from collections.abc import Collection, Sequence

from paradigms.engines.base import Engine, Vectors
from paradigms.io.checks import naming

TABLE, INDEX = "documents", "documents_vector"
COLUMNS = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""


class PgvectorEngine(Engine):
    """Documents in a PostgreSQL table, one row per vector.

    address: address of the database for psycopg, such as postgresql://user@host/database. The password may
    also come from PGPASSWORD or ~/.pgpass, and never appears in error messages. single: whether each document
    has one vector. nearest: number of rows, up to 1,000, that each query vector retrieves from the index
    built by `approximate`; the documents of these rows are then scored in full. 0 scores every document.
    schema: schema of the table, created if missing, which holds one collection. Raises ValueError if the
    schema contains a table with different columns.
    """

    def __init__(
        self, address: str, dim: int, *, schema: str, single: bool = False, nearest: int = 0
    ) -> None:
        import psycopg
        from pgvector.psycopg import register_vector

        if not 0 <= nearest <= 1000:  # pgvector would only warn and use 40
            raise ValueError(f"nearest must be from 0 to 1,000, got {nearest}")
        self.dim, self.single, self.nearest = dim, single, nearest
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
        self.columns |= {"vector": f"vector({dim})", "text": "bigint"}
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
        statement = f"COPY {TABLE} ({', '.join(self.columns)}) FROM STDIN (FORMAT BINARY)"
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {TABLE} WHERE id = ANY(%s)", [list(ids)])
            with cursor.copy(statement) as copy:
                copy.set_types([kind.partition("(")[0] for kind in self.columns.values()])
                for id, vectors, text in zip(ids, documents, texts, strict=True):
                    for n, vector in enumerate(vectors):
                        copy.write_row((id, vector, text) if self.single else (id, n, vector, text))

    def _record(self, made: str) -> None:
        from psycopg import sql

        self.connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.Identifier(TABLE), made))

    def _top(self, query: Vectors, k: int, among: Collection[str] | None) -> list[tuple[str, float, int]]:
        # rel = Σⱼ maxᵢ dᵢᵀqⱼ, where <#> is the negative inner product.
        rel = " + ".join(["max(-(vector <#> %s))"] * len(query))
        where, values = "", [*query]
        if among is not None:
            where, values = "WHERE id = ANY(%s)", [*query, list(among)]
        elif self.nearest:
            near = f"(SELECT id FROM {TABLE} ORDER BY vector <#> %s LIMIT {self.nearest})"
            where, values = f"WHERE id IN ({' UNION '.join([near] * len(query))})", [*query] * 2
        select = f"SELECT id, {rel} AS rel, max(text) FROM {TABLE} {where}"
        select += f" GROUP BY id ORDER BY rel DESC LIMIT {k}"
        return self.connection.execute(select, values).fetchall()

    def approximate(self, m: int = 16, ef_construction: int = 64) -> None:
        """Build pgvector's HNSW index of all vectors, replacing any earlier index.

        Raises ValueError if vectors have more than 2,000 dimensions.
        """
        options = f"WITH (m = {int(m)}, ef_construction = {int(ef_construction)})"
        with naming(self.place), self.connection.transaction():
            self.connection.execute(f"DROP INDEX IF EXISTS {INDEX}")
            self.connection.execute(
                f"CREATE INDEX {INDEX} ON {TABLE} USING hnsw (vector vector_ip_ops) {options}"
            )
            self.connection.execute(f"ANALYZE {TABLE}")
