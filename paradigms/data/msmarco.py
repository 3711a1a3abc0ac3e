"""MS MARCO's tab-separated layout, in which ColBERT's code reads collections: MS MARCO and NQ320K among them.

Nguyen et al., "MS MARCO: A Human Generated MAchine Reading COmprehension Dataset", 2016. The code of Wu et
al. 2024 (arXiv:2404.00684, Table 4) reads NQ320K and a subset of MS MARCO's documents, as Sun et al.
processed them (arXiv:2304.04171), in this layout.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from paradigms.data.collection import Collection, assemble, grade, joined
from paradigms.data.lines import Document, decoded, read_documents
from paradigms.io.gzipped import numbered_lines

QUERIES = re.compile(r"queries\.[\w.]+\.tsv")
JUDGEMENTS = re.compile(r"(?P<kind>qrels?|triples)\.(?P<split>\w+)(\.[\w.]+)?\.tsv")


def is_msmarco(folder: Path) -> bool:
    return (folder / "collection.tsv").is_file() and any(folder.glob("queries.*.tsv"))


def read_msmarco(folder: Path) -> Collection:
    """Collection of collection.tsv (id, text, and perhaps a title) and queries.<split>.tsv (id, text).

    queries.all.tsv stands for all others. Judgements are qrels.<split>.tsv or qrel.<split>.tsv (query, 0,
    document, grade) or else triples.<split>.tsv (query, a relevant document, others); anything may follow the
    split, as in queries.dev.small.tsv. Papers report on `dev`: without a split `test` that is its name.
    ValueError names file and line, or judgements whose queries have no text; FileNotFoundError a missing
    file.
    """
    folder = folder.resolve()
    names = sorted(file.name for file in folder.iterdir())
    found = [match for match in map(JUDGEMENTS.fullmatch, names) if match]
    found.sort(key=lambda match: match["kind"] != "triples")  # of a split with both, the judgements count
    files = {match["split"]: folder / match.string for match in found}
    if not files:
        raise FileNotFoundError(f"{folder} holds no qrels.<split>.tsv and no triples.<split>.tsv")
    if "dev" in files and "test" not in files:
        files["test"] = files.pop("dev")
    every = ["queries.all.tsv"] if "queries.all.tsv" in names else list(filter(QUERIES.fullmatch, names))
    queries = [(id, text) for name in every for id, text in _rows(folder / name, 2)]
    known = {id for id, _ in queries}
    judgements: dict[str, Iterable[tuple[str, str, int]]] = {}
    for split, file in sorted(files.items()):
        rows = judgements[split] = list(_judgements(file))
        if rows and not any(query in known for query, _, _ in rows):
            read = ", ".join(every) or "no queries.<split>.tsv"
            raise ValueError(f"{file} judges no query that has a text; texts of queries are in: {read}")
    documents, stored = read_documents([folder / "collection.tsv"], _document)
    return assemble(folder.name, documents, queries, judgements, stored=stored)


def _document(line: bytes, where: str) -> Document:
    id, text, *title = _columns(decoded(line, where), where, 2)
    name = title[0].strip() if title else ""
    return id.strip(), name, joined(name, text.strip())


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    if path.name.startswith("triples"):
        yield from ((query, document, 1) for query, document in dict.fromkeys(_rows(path, 2)))
        return
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        query, _, document, value = _cells(line, where, 4)
        yield query, document, grade(value, where)


def _rows(path: Path, columns: int) -> Iterator[tuple[str, ...]]:
    for number, line in numbered_lines(path):
        yield _cells(line, f"{path}, line {number}", columns)


def _cells(line: str, where: str, columns: int) -> tuple[str, ...]:
    """The first so many columns of a line."""
    return tuple(cell.strip() for cell in _columns(line, where, columns)[:columns])


def _columns(line: str, where: str, least: int) -> list[str]:
    cells = line.split("\t")
    if len(cells) < least or not cells[0].strip():
        raise ValueError(f"{where}: not {least} columns with tabs between them: {line[:60]!r}")
    return cells
