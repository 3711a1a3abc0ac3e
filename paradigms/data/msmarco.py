"""MS MARCO's tab-separated layout, in which ColBERT's code reads collections: MS MARCO and NQ320K among them.

Nguyen et al., "MS MARCO: A Human Generated MAchine Reading COmprehension Dataset", 2016. The code of Wu et
al. 2024 (arXiv:2404.00684, Table 4) reads NQ320K and a subset of MS MARCO's documents, as Sun et al.
processed them (arXiv:2304.04171), in this layout.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from paradigms.data.collection import Collection, assemble, joined
from paradigms.data.lines import Document, decoded, read_documents
from paradigms.io.gzipped import numbered_lines

QUERIES = re.compile(r"queries\.\w+\.tsv")
JUDGEMENTS = re.compile(r"(?P<kind>qrels?|triples)\.(?P<split>\w+)(\.[\w.]+)?\.tsv")


def is_msmarco(folder: Path) -> bool:
    return (folder / "collection.tsv").is_file() and any(folder.glob("queries.*.tsv"))


def read_msmarco(folder: Path) -> Collection:
    """Collection of collection.tsv (id, text, and perhaps a title) and queries.<split>.tsv (id, text).

    queries.all.tsv stands for all others. Judgements are qrels.<split>.tsv or qrel.<split>.tsv (query, 0,
    document, grade) or else triples.<split>.tsv (query, a relevant document, others), with anything after the
    split. Papers report on `dev`: without another split `test` that is its name. ValueError names the file
    and line of what is not so, FileNotFoundError a missing file.
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
    documents, stored = read_documents([folder / "collection.tsv"], _document)
    return assemble(
        folder.name,
        documents,
        ((id, text) for name in every for id, text in _rows(folder / name, 2)),
        {split: _judgements(file) for split, file in sorted(files.items())},
        stored=stored,
    )


def _document(line: bytes, where: str) -> Document:
    id, text, *title = _columns(decoded(line, where), where, 2)
    name = title[0].strip() if title else ""
    return id.strip(), name, joined(name, text.strip())


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    if path.name.startswith("triples"):
        yield from ((query, document, 1) for query, document in dict.fromkeys(_rows(path, 2)))
        return
    for query, _, document, grade in _rows(path, 4):
        yield query, document, int(grade)


def _rows(path: Path, columns: int) -> Iterator[tuple[str, ...]]:
    """The first so many columns of each line."""
    for number, line in numbered_lines(path):
        yield tuple(cell.strip() for cell in _columns(line, f"{path}, line {number}", columns)[:columns])


def _columns(line: str, where: str, least: int) -> list[str]:
    cells = line.split("\t")
    if len(cells) < least or not cells[0].strip():
        raise ValueError(f"{where}: not {least} columns with tabs between them: {line[:60]!r}")
    return cells
