"""Read and write collections in BEIR layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv, plain or .gz.

Thakur et al., "BEIR", NeurIPS 2021 (Datasets and Benchmarks). The texts in a plain corpus.jsonl are read from
disk on demand (`lines`).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from paradigms.data.assembly import Digest, assemble, gathered, grade
from paradigms.data.collection import Collection, Corpus, Document, Problems, all_queries, body
from paradigms.data.lines import is_header, json_document, json_row, read_documents
from paradigms.io.files import atomic_folder, atomic_text, contents
from paradigms.io.gzipped import byte_lines, existing, names_in, numbered_lines

HEADER = ("query-id", "corpus-id", "score")
# Files of `write_folder`, and meta.json of `pydocs`.
WRITTEN = contents(
    "corpus.jsonl", "queries.jsonl", "meta.json", "qrels/", "qrels/*.tsv", marks=["corpus.jsonl"]
)
SPLITS = ("train", "dev", "test")


def is_beir(folder: Path) -> bool:
    return not {"corpus.jsonl", "queries.jsonl"}.isdisjoint(names_in(folder))


def read_folder(path: str | Path) -> Collection:
    """Read a folder in BEIR layout, with any splits in qrels/. The collection takes the folder's name.

    Raises FileNotFoundError if a file is missing, and ValueError, with file and line, if a line is invalid.
    """
    folder = Path(path)
    problems = Problems()
    documents, stored = read_documents([existing(folder, "corpus.jsonl")], json_document)
    queries = existing(folder, "queries.jsonl")
    return assemble(
        folder.resolve().name,
        documents,
        (_query(line, f"{queries}, line {number}") for number, _, line in byte_lines(queries)),
        {split: _judgements(file, problems) for split, file in _qrels(folder).items()},
        problems=problems,
        stored=stored,
    )


def write_folder(collection: Collection, path: str | Path) -> None:
    """Write a collection in BEIR layout (plain .jsonl), atomically.

    A title that is not at the start of the text is written as `metadata.title`. Raises ValueError if the
    collection has answers, or if two splits use an id for different queries.
    """
    if any(split.answers for split in collection.splits.values()):
        raise ValueError(f"{collection.name} has answers, which a folder in BEIR layout cannot hold")
    with atomic_folder(path, WRITTEN) as folder:
        corpus = collection.corpus
        write_corpus(zip(corpus.ids, corpus.titles, corpus, strict=True), folder / "corpus.jsonl")
        with atomic_text(folder / "queries.jsonl") as stream:
            for id, text in all_queries(collection)[0].items():
                stream.write(json.dumps({"_id": id, "text": text}) + "\n")
        for name, split in collection.splits.items():
            with atomic_text(folder / "qrels" / f"{name}.tsv") as stream:
                stream.write("\t".join(HEADER) + "\n")
                for query, grades in split.judgements.items():
                    stream.writelines(f"{query}\t{document}\t{value}\n" for document, value in grades.items())


def write_corpus(documents: Iterable[Document], file: Path) -> None:
    """Write corpus.jsonl atomically from (id, title, text)."""
    with atomic_text(file) as stream:
        for id, title, text in documents:
            stream.write(json.dumps({"_id": id, **_divided(title, text)}) + "\n")


def read_corpus(file: Path, digest: Digest | None = None) -> Corpus:
    """Read the documents of a corpus.jsonl, at least one. digest: receives their ids, titles and texts."""
    documents, stored = read_documents([file], json_document)
    rows = documents if digest is None else digest.passing(documents)
    return gathered(str(file), ((n, *row) for n, row in enumerate(rows)), stored)


def _qrels(folder: Path) -> dict[str, Path]:
    """Map splits to files: train, dev and test first, then others by name."""
    names = [name for name in names_in(folder / "qrels") if name.endswith(".tsv")]
    files = {name.removesuffix(".tsv"): existing(folder / "qrels", name) for name in names}
    if not files:
        raise FileNotFoundError(f"{folder} holds no qrels/<split>.tsv (BEIR layout)")
    standard = [name for name in SPLITS if name in files]
    return {name: files[name] for name in [*standard, *sorted(files.keys() - set(standard))]}


def _divided(title: str, text: str) -> dict[str, Any]:
    """Make a row of corpus.jsonl from which `title_of` and `text_of` restore title and text."""
    if not title:
        return {"text": text}
    rest = body(title, text)
    return {"metadata": {"title": title}, "text": text} if rest == text else {"title": title, "text": rest}


def _query(line: bytes, where: str) -> tuple[str, str]:
    id, row = json_row(line, where)
    return id, row.get("text") or ""


def _judgements(path: Path, problems: Problems) -> Iterator[tuple[str, str, int]]:
    for number, line in numbered_lines(path):
        parts = line.split("\t")
        if is_header(parts, 3):
            continue
        try:
            query, document, value = parts
            row = query, document, grade(value)
        except ValueError:
            problems.add("malformed judgement line (left out)", f"{path.name}, line {number}: {line[:60]!r}")
        else:
            yield row
