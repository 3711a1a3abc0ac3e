"""Collections in the BEIR folder layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv, plain or .gz.

Thakur et al., "BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval Models",
NeurIPS 2021 (Datasets and Benchmarks). A plain corpus.jsonl stays on disk and only the offsets of its lines
are kept (8 bytes a document beside the id); a .gz cannot be entered in the middle and is read into memory.
Titles lie where the texts do: read on demand from a plain file, held in memory beside the texts of a .gz.
"""

import json
import mmap
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.data.collection import Collection, Problems, assemble, grade, text_of, title_of
from paradigms.data.files import BROKEN_GZIP, numbered_lines, open_binary
from paradigms.files import atomic_folder, atomic_text

HEADER = ("query-id", "corpus-id", "score")
SPLITS = ("train", "dev", "test")


class JsonLines(Sequence[str]):
    """`part` of a .jsonl file's documents, read when asked for. offsets: byte where each line starts."""

    def __init__(self, path: Path, offsets: np.ndarray, part: Callable[[dict], str]):
        self._path = path
        self._offsets = offsets
        self._part = part
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: Any) -> Any:
        start = int(self._offsets[index])
        end = self._map.find(b"\n", start)
        line = self._map[start : end if end >= 0 else len(self._map)]
        return self._part(json.loads(line))

    def __reduce__(self) -> tuple:
        # A memory map does not travel to worker processes; the path and the offsets do.
        return JsonLines, (self._path, self._offsets, self._part)


def read_folder(path: str | Path) -> Collection:
    """Collection of a folder in BEIR layout, named after the folder.

    Any subset of splits may exist under qrels/. FileNotFoundError names a missing file; ValueError names the
    file and line of bad JSON, a line without _id or one whose text is no string.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    problems = Problems()
    corpus = _existing(folder, "corpus.jsonl")
    offsets = array("q")
    on_disk = corpus.suffix != ".gz"

    def stored(kept: np.ndarray) -> tuple[JsonLines, JsonLines]:
        lines = np.frombuffer(offsets, dtype=np.int64)[kept]
        return JsonLines(corpus, lines, title_of), JsonLines(corpus, lines, text_of)

    return assemble(
        folder.resolve().name,
        ((id, title_of(row), text_of(row)) for id, row in _records(corpus, offsets)),
        ((id, row.get("text") or "") for id, row in _records(_existing(folder, "queries.jsonl"))),
        {split: _judgements(file, problems) for split, file in _qrels(folder).items()},
        problems=problems,
        stored=stored if on_disk else None,
    )


def write_folder(collection: Collection, path: str | Path) -> None:
    """Write a collection in BEIR layout (plain .jsonl), whole or not at all.

    A title with which the text does not begin is written as `metadata.title`, where it joins no text.
    """
    with atomic_folder(path) as folder:
        with atomic_text(folder / "corpus.jsonl") as stream:
            corpus = collection.corpus
            for id, title, text in zip(corpus.ids, corpus.titles, corpus, strict=True):
                stream.write(json.dumps({"_id": id, **_divided(title, text)}) + "\n")
        queries = {id: text for split in collection.splits.values() for id, text in split.queries.items()}
        with atomic_text(folder / "queries.jsonl") as stream:
            for id, text in queries.items():
                stream.write(json.dumps({"_id": id, "text": text}) + "\n")
        for name, split in collection.splits.items():
            with atomic_text(folder / "qrels" / f"{name}.tsv") as stream:
                stream.write("\t".join(HEADER) + "\n")
                for query, grades in split.judgements.items():
                    stream.writelines(f"{query}\t{document}\t{value}\n" for document, value in grades.items())


def _existing(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{folder} holds neither {name} nor {name}.gz (BEIR layout)")


def _qrels(folder: Path) -> dict[str, Path]:
    """Split name -> file: train, dev, test first, any others after them by name."""
    found: dict[str, Path] = {}
    for file in sorted([*folder.glob("qrels/*.tsv.gz"), *folder.glob("qrels/*.tsv")]):
        found[file.name.removesuffix(".gz").removesuffix(".tsv")] = file
    if not found:
        raise FileNotFoundError(f"{folder} holds no qrels/<split>.tsv (BEIR layout)")
    known = [name for name in SPLITS if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - set(known))]}


def _divided(title: str, text: str) -> dict[str, Any]:
    """The row of which `title_of` and `text_of` give back the title and the text."""
    if not title:
        return {"text": text}
    rest = text.removeprefix(f"{title} ")
    return {"metadata": {"title": title}, "text": text} if rest == text else {"title": title, "text": rest}


def _records(path: Path, offsets: array | None = None) -> Iterator[tuple[str, dict]]:
    """(id, row) of each line that is not blank; the byte at which the line starts is added to `offsets`."""
    start = 0
    with open_binary(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    id, row = _record(line, f"{path}, line {number}")
                    if offsets is not None:
                        offsets.append(start)
                    yield id, row
                start += len(line)
        except BROKEN_GZIP as error:
            raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def _record(line: bytes, where: str) -> tuple[str, dict]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: bad JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: bad JSON (a {type(row).__name__}, not an object)")
    id = row.get("_id")
    if isinstance(id, bool) or not isinstance(id, str | int) or id == "":
        raise ValueError(f'{where}: no usable "_id" (found {id!r})')
    for key in ("title", "text"):
        if not isinstance(row.get(key), str | None):
            raise ValueError(f"{where}: {key!r} is not a string but {row[key]!r}")
    return str(id), row


def _judgements(path: Path, problems: Problems) -> Iterator[tuple[str, str, int]]:
    for number, line in numbered_lines(path):
        parts = line.split("\t")
        try:
            query, document, value = parts
            row = query, document, grade(value)
        except (ValueError, OverflowError):
            if number > 1:  # BEIR's first line names the columns; files without it are read too
                problems.add(
                    "malformed judgement line (left out)", f"{path.name}, line {number}: {line[:60]!r}"
                )
        else:
            yield row
