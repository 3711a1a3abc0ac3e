"""rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A) as SQL of ClickHouse, over a table with a row for each document token.

`relevance` turns an alignment A and a normaliser Z into one statement that groups the rows by document. It
equals `core.rel` for every A of `ALIGNED`, and `equal_ids` for A of equal ids, where a query may have tens of
thousands of terms. `imputed` equals `impute.imputed_rel` (Lee et al. 2023, Eq. 4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import torch

from paradigms.align import (
    SMALLEST,
    Alignment,
    AllPairs,
    DocumentToQuery,
    EqualIds,
    Excess,
    Idf,
    PoolExcess,
    PoolTopK,
    PositiveEqualIds,
    QueryToDocument,
    TableExcess,
    TopK,
    TopP,
)
from paradigms.core import Tokens
from paradigms.statistics import statistics_of


@dataclass(frozen=True)
class Column:
    """Query token j over the rows of a document. In SQL, `similarity` is S_ij, and `u` a row's salience.

    number: j, from 1. id: vocabulary id of the query token, if queries have ids. floor: the least similarity
    that the query token retrieved from the pool, if A reads the pool. weighed: whether salience may not be 1.
    """

    number: int
    id: int | None
    floor: float
    weighed: bool

    @property
    def similarity(self) -> str:
        return f"s{self.number}"

    def maximum(self, condition: str = "") -> tuple[str, str]:
        """Σ_i S_ij A_ij u_i and Σ_i A_ij u_i if A is the argmax over rows that fulfil the condition."""
        rows = f"if({condition}, {self.similarity}, -inf)" if condition else self.similarity
        weight = f"argMax(u, {rows})" if self.weighed else "1"
        if not condition:
            return f"max({rows}) * {weight}", weight
        return f"if(max({rows}) = -inf, 0, max({rows}) * {weight})", f"if(max({rows}) = -inf, 0, {weight})"

    def excess(self, floor: float) -> tuple[str, str]:
        """The same if A is that of `align.Excess`."""
        best = f"max({self.similarity})"
        weight = f"argMax(u, {self.similarity})" if self.weighed else "1"
        floor = max(floor, 0.0)
        above = f"if({best} > {floor!r}, 1 - {floor!r} / {best}, 0)"
        return f"greatest({best} - {floor!r}, 0) * {weight}", f"{above} * {weight}"

    def largest(self, count: str) -> tuple[str, str]:
        """The same if A is 1 for the `count` rows of the largest similarities."""
        rows = f"arraySlice(arrayReverseSort(row -> row.1, groupArray(({self.similarity}, u))), 1, {count})"
        return f"arraySum(row -> row.1 * row.2, {rows})", f"arraySum(row -> row.2, {rows})"


def _table_excess(align: TableExcess, column: Column) -> tuple[str, str]:
    if column.id is None:
        raise ValueError("TableExcess needs the ids of query tokens; Tokens.ids is None")
    return column.excess(float(statistics_of(align.statistics).floors_of(torch.tensor(column.id))))


# Class of A -> function (A, column) -> SQL of Σ_i S_ij A_ij u_i and of Σ_i A_ij u_i, as aggregates over a
# document's rows. A plug-in adds its own A.
ALIGNED: dict[type[Alignment], Callable[[Any, Column], tuple[str, str]]] = {
    AllPairs: lambda align, column: (f"sum({column.similarity} * u)", "sum(u)"),
    QueryToDocument: lambda align, column: column.maximum(),
    Idf: lambda align, column: column.maximum(),  # its weights become saliences (`Alignment.with_salience`)
    DocumentToQuery: lambda align, column: (
        f"sumIf({column.similarity} * u, best = {column.number})",
        f"sumIf(u, best = {column.number})",
    ),
    PoolTopK: lambda align, column: column.maximum(f"{column.similarity} >= {column.floor!r}"),
    Excess: lambda align, column: column.excess(float(align.tau)),
    TableExcess: _table_excess,
    PoolExcess: lambda align, column: column.excess(column.floor),
    TopK: lambda align, column: column.largest(str(align.k)),
    TopP: lambda align, column: column.largest(
        f"toUInt32(greatest(floor({align.p!r} * count() + 1e-9), 1))"  # as TopP.kept
    ),
}
JOINED = (EqualIds, PositiveEqualIds)  # classes of A whose SQL is that of `equal_ids`


def check_alignment(align: Alignment) -> None:
    """Raise ValueError unless there is SQL for the alignment."""
    kinds = (*ALIGNED, *JOINED)
    if type(align) not in kinds:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{align} has no SQL; there is SQL for {names}")


def _normaliser(name: str, count: int, total: str, retrieved: str) -> str:
    """Return SQL of Z. count: query tokens. total: SQL of ΣA. retrieved: of the query tokens with ΣA > 0."""
    of_name = {"one": "1", "query_tokens": str(count), "document_tokens": "rows"}
    of_name |= {"total": f"greatest({total}, {SMALLEST})", "retrieved": f"greatest({retrieved}, {SMALLEST})"}
    if name not in of_name:
        raise ValueError(f"the normaliser {name!r} has no SQL")
    return of_name[name]


def similarities(query: Tokens, table: str, numbers: str, weighed: bool, where: str) -> str:
    """Return SQL of the rows of `table`, with s1, s2, … in place of the vectors, and `best`, their argmax."""
    vectors = query.vectors[0, 0].double().tolist()
    products = [f"dotProduct(vector, {vector_of(v, numbers)}) AS s{n}" for n, v in enumerate(vectors, 1)]
    names = ", ".join(f"s{n}" for n in range(1, len(vectors) + 1))
    u = "salience" if weighed else "1"
    best = f"indexOf([{names}], greatest({names})) AS best"
    return f"SELECT document, token, {u} AS u, {', '.join(products)}, {best} FROM {table} WHERE {where}"


def relevance(
    query: Tokens, align: Alignment, normalise: str, rows: str, floors: Sequence[float], weighed: bool = True
) -> str:
    """Return SQL with the columns `document` and `score`, rel(d, q) of each document that has rows.

    query: one query [1, 1, j, h] without padding. rows: SQL as of `similarities`. floors, weighed: see
    `Column`. Raises ValueError if there is no SQL for the alignment or the normaliser.
    """
    align, query = align.with_salience(query)
    check_alignment(align)
    count = query.mask.shape[-1]
    ids = [None] * count if query.ids is None else query.ids[0, 0].tolist()
    salience = [1.0] * count if query.salience is None else query.salience[0, 0].tolist()
    pairs = [
        ALIGNED[type(align)](align, Column(n + 1, ids[n], floors[n] if floors else -inf, weighed))
        for n in range(count)
    ]
    aggregates = [f"{value} AS v{n}, {weight} AS w{n}" for n, (value, weight) in enumerate(pairs)]
    matched = _sum([f"{u!r} * v{n}" for n, u in enumerate(salience)])
    weights = [f"{u!r} * w{n}" for n, u in enumerate(salience)]
    Z = _normaliser(normalise, count, _sum(weights), _sum([f"toFloat64({weight} > 0)" for weight in weights]))
    grouped = f"SELECT document, count() AS rows, {', '.join(aggregates)} FROM ({rows}) GROUP BY document"
    return f"SELECT document, {matched} / {Z} AS score FROM ({grouped})"


def equal_ids(
    query: Tokens,
    align: EqualIds | PositiveEqualIds,
    normalise: str,
    table: str,
    numbers: str,
    where: str,
    *,
    all_documents: bool,
) -> str:
    """Return SQL as of `relevance`, whose rows are joined with the query's tokens of the same id.

    where: SQL that limits the rows of `table`. all_documents: whether to list documents without an id of the
    query, too, whose rel is 0. Otherwise, other rows are not read, and Z cannot be the number of all rows.
    """
    assert query.ids is not None
    count = query.mask.shape[-1]
    salience = [1.0] * count if query.salience is None else query.salience[0, 0].tolist()
    vectors = query.vectors[0, 0].double().tolist()
    columns = zip(range(count), query.ids[0, 0].tolist(), salience, vectors, strict=True)
    # As one string, the query is one node of ClickHouse's syntax tree, which has at most 50,000.
    tokens = f"'[{','.join(map(str, columns))}]'::Array(Tuple(UInt32, Int64, Float64, Array({numbers})))"
    terms = f"SELECT t.1 AS j, t.2 AS token, t.3 AS u, t.4 AS other FROM (SELECT arrayJoin({tokens}) AS t)"
    read = f"token IN (SELECT token FROM ({terms}))"
    rows = f"SELECT document, token, salience, vector FROM {table} WHERE {read}"
    pairs = (
        "SELECT document, j, u * salience AS weight, dotProduct(vector, other) AS s "
        f"FROM ({rows} AND {where}) AS stored INNER JOIN ({terms}) AS terms ON stored.token = terms.token"
    )
    if isinstance(align, PositiveEqualIds):
        pairs += " WHERE s > 0 OR stored.token < 0"
    best = f"SELECT document, max(s) AS best, argMax(weight, s) AS w FROM ({pairs}) GROUP BY document, j"
    sums = "sum(best * w) AS matched, sum(w) AS total, toFloat64(countIf(w > 0)) AS retrieved"
    scored = f"(SELECT document, {sums} FROM ({best}) GROUP BY document) AS scored"
    if all_documents:
        documents = f"SELECT document, count() AS rows FROM {table} WHERE {where} GROUP BY document"
        scored = f"({documents}) AS documents LEFT JOIN {scored} USING document"
    Z = _normaliser(normalise, count, "total", "retrieved")
    return f"SELECT document, matched / {Z} AS score FROM {scored}"


def imputed(rows: str, floors: Sequence[float], missing: Sequence[float]) -> str:
    """Return SQL of `impute.imputed_rel`: `document`, `score`, and `reached`, whether a token was retrieved.

    floors: the least similarity that each query token retrieved. missing: what it imputes, or NaN to leave
    the query token out of the sum and of Z.
    """
    values = []
    counted = []
    reached = []
    for n, (floor, value) in enumerate(zip(floors, missing, strict=True), 1):
        retrieved = f"(max(s{n}) >= {floor!r})"
        reached.append(retrieved)
        values.append(f"if({retrieved}, max(s{n}), {0.0 if isnan(value) else value!r})")
        counted.append(retrieved if isnan(value) else "1")
    score = f"{_sum(values)} / greatest({_sum(counted)}, 1)"
    any_ = " OR ".join(reached)
    return f"SELECT document, {score} AS score, {any_} AS reached FROM ({rows}) GROUP BY document"


def vector_of(numbers: Sequence[float], kind: str) -> str:
    return f"[{', '.join(map(repr, numbers))}]::Array({kind})"


def _sum(terms: Sequence[str]) -> str:
    """Return SQL of a sum whose depth, which ClickHouse limits, does not grow with the terms."""
    return f"arraySum([{', '.join(terms)}])"
