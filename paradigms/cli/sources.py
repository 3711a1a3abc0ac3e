"""The documents of a source: text files, JSON lines, or a collection. Imports no model."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from paradigms.data import LAYOUTS, Corpus, Problems, load_collection
from paradigms.data.collection import Document, gathered, mended
from paradigms.data.texts import CORPUS, JSON_LINES, WORDS, json_lines, text_passages

NAMES = ("hf:", "irds:")  # of collections that are no folder


def documents(source: str, problems: Problems, words: int) -> Iterator[Document]:
    """(id, title, text) of text files, of a file of JSON lines, or of a collection by name or folder.

    words: of a passage of a text file. The source exists (`check_source`).
    """
    rows = _rows(source)
    if rows is not None:
        return _readable(json_lines(rows, problems))
    if is_text(source):
        return _readable(text_passages(Path(source), problems, words))
    collection = load_collection(source)
    problems.counts, problems.examples = collection.problems.counts, collection.problems.examples
    return _readable(zip(collection.corpus.ids, collection.corpus.titles, collection.corpus, strict=True))


def corpus_of(source: str, words: int, problems: Problems | None = None) -> Corpus:
    """All documents of a source. ValueError where it is empty; arguments as in `documents`."""
    rows = documents(source, Problems() if problems is None else problems, words)
    return gathered(source, ((n, *row) for n, row in enumerate(rows)))


def _readable(rows: Iterable[Document]) -> Iterator[Document]:
    """As corpus.jsonl gives them back: no half characters, and no white space around."""
    return ((id, mended(title).strip(), mended(text).strip()) for id, title, text in rows)


def check_source(source: str) -> None:
    """FileNotFoundError where there is none."""
    if not Path(source).exists() and source != "pydocs" and not source.startswith(NAMES):
        raise FileNotFoundError(
            f"{source}: no such folder or file. A source is a folder of text files, one such file, JSON "
            "lines (.jsonl), or a collection: pydocs, hf:OWNER/NAME, irds:IDENTIFIER, or a folder in the "
            f"layout of {' or '.join(LAYOUTS)}"
        )


def is_text(source: str) -> bool:
    """Whether the source is text files, which are cut into passages."""
    path = Path(source)
    collection = path.is_dir() and any(recognised(path) for recognised, _ in LAYOUTS.values())
    return path.exists() and not collection and _rows(source) is None


def words_of(source: str, asked: int | None, fit: int = WORDS, passages: bool = False) -> int:
    """Words of a passage: as asked, or as fit the model; 0 of a source that is not cut.

    passages: whether documents are split, too, that are no text files. FileNotFoundError where there is no
    source, ValueError where words are asked for of one that is not cut.
    """
    check_source(source)
    if passages or is_text(source):
        return asked or fit
    if asked:
        raise ValueError(f"--words is of text files, and {source} has documents, which --passages splits")
    return 0


def _rows(source: str) -> Path | None:
    """The file of JSON lines that a source is, or has."""
    path = Path(source)
    files = (path, *(path / name for name in (CORPUS, f"{CORPUS}.gz")))  # of a folder in BEIR layout
    return next((file for file in files if file.is_file() and file.name.endswith(JSON_LINES)), None)
