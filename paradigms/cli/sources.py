"""Read documents from text files, JSON lines or a collection. This module imports no model."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from paradigms.data import LAYOUTS, Corpus, Problems, load_collection
from paradigms.data.assembly import gathered, mended
from paradigms.data.collection import Document
from paradigms.data.texts import CORPUS, JSON_LINES, WORDS, json_lines, text_passages

NAMES = ("hf:", "irds:")  # prefixes of collections that are not folders


def documents(source: str, problems: Problems, words: int) -> Iterator[Document]:
    """Yield (id, title, text) from text files, a JSON-lines file, or a collection by name or folder.

    words: maximum words per passage of a text file. The source must exist (`check_source`).
    """
    file = _rows(source)
    rows: Iterable[Document]
    if file is not None:
        rows = json_lines(file, problems)
    elif is_text(source):
        rows = text_passages(Path(source), problems, words)
    else:
        collection = load_collection(source)
        problems.counts = collection.problems.counts
        problems.examples = collection.problems.examples
        rows = zip(collection.corpus.ids, collection.corpus.titles, collection.corpus, strict=True)
    # As when reading corpus.jsonl, lone surrogates are replaced and white space is stripped.
    return ((id, mended(title).strip(), mended(text).strip()) for id, title, text in rows)


def corpus_of(source: str, words: int, problems: Problems | None = None) -> Corpus:
    """Read all `documents` of a source. Raises ValueError if it has none."""
    rows = documents(source, Problems() if problems is None else problems, words)
    return gathered(source, ((n, *row) for n, row in enumerate(rows)))


def check_source(source: str) -> None:
    """Raise FileNotFoundError if the source does not exist."""
    if not Path(source).exists() and source != "pydocs" and not source.startswith(NAMES):
        raise FileNotFoundError(
            f"{source}: no such folder or file. A source is a folder of text files, a text file, JSON "
            "lines (.jsonl), or a collection: pydocs, hf:OWNER/NAME, irds:IDENTIFIER, or a folder in the "
            f"layout of {' or '.join(LAYOUTS)}"
        )


def is_text(source: str) -> bool:
    """Return whether the source is a text file or a folder of text files, which are cut into passages."""
    path = Path(source)
    collection = path.is_dir() and any(recognised(path) for recognised, _ in LAYOUTS.values())
    return path.exists() and not collection and _rows(source) is None


def words_of(source: str, most: int | None, length: int | None = None, passages: bool = False) -> int:
    """Return the maximum words per passage, or 0 if the source is not cut.

    most: the value of --words; by default `WORDS`, or fewer if the model reads fewer. length: tokens that
    the model reads, for 2 words about 3. passages: whether documents other than text files are split. Raises
    ValueError if --words is given for a source that is not cut.
    """
    check_source(source)
    if passages or is_text(source):
        return most or (WORDS if length is None else max(1, min(WORDS, 2 * length // 3)))
    if most:
        raise ValueError(f"--words is for text files; to split the documents of {source}, add --passages")
    return 0


def _rows(source: str) -> Path | None:
    """Return the source's JSON-lines file: the source itself, or corpus.jsonl in its folder."""
    path = Path(source)
    files = (path, *(path / name for name in (CORPUS, f"{CORPUS}.gz")))
    return next((file for file in files if file.is_file() and file.name.endswith(JSON_LINES)), None)
