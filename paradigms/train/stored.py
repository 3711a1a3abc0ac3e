"""Training examples in memory-mapped Arrow files: as many as a disk holds, in memory that does not grow.

    texts, examples = stored_rows("pairs.jsonl", "folder")
    train(model, Contrastive(model, texts, examples), settings, "results")

The loop asks for examples by position, in the order of `order.step_batches`.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paradigms.io.checks import read_json
from paradigms.io.files import atomic_folder, contents, sha256, write_json
from paradigms.store.shards import text_digest
from paradigms.train.examples import Example
from paradigms.train.rows import parsed_rows

ROWS = 1024  # rows of an Arrow batch
TEXTS = pa.schema([("text", pa.large_string())])
EXAMPLES = pa.schema(
    [
        ("query", pa.large_string()),
        ("documents", pa.list_(pa.int64())),  # positions of the relevant document and of the negatives
        ("relevant", pa.list_(pa.int64())),
        ("teacher", pa.list_(pa.float64())),
    ]
)
SUMMARY = "examples.json"
STORED = contents("texts.arrow", "examples.arrow", SUMMARY, marks=[SUMMARY])


class Table(Sequence[Any]):
    """Rows of a memory-mapped Arrow file, as tuples, read on demand."""

    def __init__(self, file: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(file)))
        last = self._reader.num_record_batches - 1
        self._count = 0 if last < 0 else last * ROWS + len(self._reader.get_batch(last))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        row = range(self._count)[index]
        batch = self._reader.get_batch(row // ROWS)
        return tuple(column[row % ROWS].as_py() for column in batch.columns)


class StoredTexts(Table):
    """The distinct documents of rows, by position."""

    def __getitem__(self, index: Any) -> Any:
        (text,) = super().__getitem__(index)
        return text


class StoredExamples(Table):
    """Examples as `examples_from_rows` makes them.

    negatives: the numbers of negatives that examples have. taught: whether each example has a teacher's
    scores. digest: SHA-256 of the files, which identifies the examples.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "examples.arrow")
        summary = read_json(folder / SUMMARY)
        self.negatives: list[int] = summary["negatives"]
        self.taught: bool = summary["taught"]
        self.digest: str = summary["sha256"]

    def __getitem__(self, index: Any) -> Any:
        query, (positive, *negatives), relevant, teacher = super().__getitem__(index)
        return Example(query, positive, tuple(negatives), tuple(relevant), tuple(teacher))


def stored_rows(rows: str | Path | Iterable[Any], folder: str | Path) -> tuple[StoredTexts, StoredExamples]:
    """Convert rows as `examples_from_rows` does, into files in `folder`, and open them.

    rows: a file's name, a Hugging Face `Dataset` or a list: they are read twice. Files that were made of the
    same file are used again. Queries and documents are told apart by 8 bytes of a hash. Making the files
    takes about 100 bytes of memory per row; reading them takes none that grows. Raises the errors of
    `examples_from_rows`, and FileExistsError if the folder contains anything else.
    """
    if isinstance(rows, Iterator):
        raise TypeError("rows are read twice: give a file's name, a Dataset or a list")
    place = Path(folder)
    source = sha256(Path(rows)) if isinstance(rows, str | Path) else None
    summary = place / SUMMARY
    if source is None or not summary.is_file() or read_json(summary)["source"] != source:
        with atomic_folder(place, STORED) as fresh:
            write_rows(rows, fresh, source)
    return open_rows(place)


def open_rows(folder: Path) -> tuple[StoredTexts, StoredExamples]:
    """Open the files that `stored_rows` has made in a folder."""
    return StoredTexts(folder / "texts.arrow"), StoredExamples(folder)


def write_rows(rows: Any, folder: Path, source: str | None) -> None:
    """Write the files of `stored_rows`. source: SHA-256 of the file of the rows, if they have one."""
    queries = array("q")
    documents = array("q")
    counts = array("q")
    taught = True
    for row in parsed_rows(rows):
        queries.append(text_digest(row.query))
        documents.extend(map(text_digest, row.documents))
        counts.append(len(row.documents))
        taught = taught and bool(row.scores)
    ends = np.cumsum(counts, dtype=np.int64)
    _, first, places = np.unique(np.array(documents), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))  # documents in the order of their first appearance
    positions = rank[places]
    positives = positions[ends - np.array(counts, np.int64)]
    _, groups = np.unique(np.array(queries), return_inverse=True)
    pairs = groups * len(first) + positives
    _, firsts = np.unique(pairs, return_index=True)
    firsts = firsts[np.lexsort((firsts, groups[firsts]))]  # by query, in the order of the rows
    relevant = positives[firsts]
    bounds = np.searchsorted(groups[firsts], np.arange(len(queries) + 1))

    written_texts = 0
    with (
        arrow_writer(folder / "examples.arrow", EXAMPLES) as append_example,
        arrow_writer(folder / "texts.arrow", TEXTS) as append_text,
    ):
        for n, row in enumerate(parsed_rows(rows)):
            places = positions[ends[n] - counts[n] : ends[n]].tolist()
            judged = relevant[bounds[groups[n]] : bounds[groups[n] + 1]].tolist()
            row.check(set(judged).isdisjoint(places[1:]))
            append_example((row.query, places, judged, list(row.scores)))
            for document, place in zip(row.documents, places, strict=True):
                if place == written_texts:
                    append_text((document,))
                    written_texts += 1
    files = sha256(folder / "examples.arrow") + sha256(folder / "texts.arrow")
    negatives = (np.unique(np.array(counts)) - 1).tolist()
    summary = {"negatives": negatives, "taught": taught, "sha256": files, "source": source}
    write_json(folder / SUMMARY, summary)


@contextmanager
def arrow_writer(file: Path, schema: Any) -> Iterator[Callable[[tuple[Any, ...]], None]]:
    """Open an Arrow file, and yield a function that appends a row; ROWS rows are written at once."""
    rows: list[tuple[Any, ...]] = []
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:

        def write() -> None:
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            rows.clear()

        def append(row: tuple[Any, ...]) -> None:
            rows.append(row)
            if len(rows) == ROWS:
                write()

        yield append
        if rows:
            write()
