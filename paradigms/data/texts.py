"""Documents that come without queries, as (id, title, text): a folder of text files, or any JSON lines."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from paradigms.data.collection import Document, Problems, checked, joined
from paradigms.data.lines import json_id, json_object
from paradigms.io.gzipped import numbered_lines

WORDS = 85  # of a passage at most: about what 128 tokens hold
TEXTS = ("text", "contents", "content", "body")
CORPUS, INDEX = "corpus.jsonl", "index"
MARKER = "search.json"  # written last into a folder that an index command makes, which is no source
OWN = {CORPUS, INDEX, MARKER}
# Scripts without white space between words: each character is one. Thai, Lao, Burmese, Khmer, kana, Han.
ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
RUN, WORD = re.compile(r"\S+"), re.compile(rf"[{ALONE}]|(?:(?![{ALONE}])\w)+")
UNNAMED = re.compile(r"[\s%\ud800-\udfff]")  # what an id has none of, and the sign that stands for it


def text_passages(folder: Path, problems: Problems, words: int = WORDS) -> Iterator[Document]:
    """Passages of at most `words` words of every text file in and below a folder, which may also be one file.

    A passage is named "path:line" by its first line, white space as in URLs (%20), a second one of that line
    "path:line.2"; its title is the path. Hidden files are left out; files that
    are empty or no UTF-8 text are counted.
    """
    for file in text_files(folder):
        name = file.relative_to(folder).as_posix() if file != folder else file.name
        text = read_text(file, name, problems)
        id = UNNAMED.sub(lambda found: quote(os.fsencode(found[0])), name)
        line, upto, places = 1, 0, dict[int, int]()
        for start, end in passages(text, words):
            line, upto = line + text.count("\n", upto, start), start
            places[line] = places.get(line, 0) + 1
            repeat = f".{places[line]}" if places[line] > 1 else ""
            yield f"{id}:{line}{repeat}", name, text[start:end]


def passages(text: str, words: int) -> Iterator[tuple[int, int]]:
    """Start and end of passages of at most `words` words, cut on white space, or else before a word."""
    start, last, count = -1, 0, 0
    for first, end, more in _runs(text, words):
        if start >= 0 and count + more > words:
            yield start, last
            start, count = -1, 0
        start, last, count = first if start < 0 else start, end, count + more
    if start >= 0:
        yield start, last


def _runs(text: str, words: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and words of what is not cut: the text between white space, or each word of a longer one."""
    for run in RUN.finditer(text):
        first, end = run.span()
        places = [word.start() for word in WORD.finditer(text, first, end)]
        if len(places) <= words:
            yield first, end, len(places)
            continue
        places[0] = first
        yield from ((a, b, 1) for a, b in zip(places, [*places[1:], end], strict=True))


def text_files(folder: Path) -> Iterator[Path]:
    """The files in and below a folder by name, hidden ones and what an index command wrote left out."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        if entry.name.startswith(".") and entry != folder:
            continue
        if entry.is_dir():
            if not entry.is_symlink() and not is_index(entry):  # a link may lead back up
                yield from text_files(entry)
        elif entry.is_file():
            yield entry


def is_index(folder: Path) -> bool:
    """Whether an index command made this folder, or began to."""
    names = visible(folder)
    return MARKER in names or (CORPUS in names and names <= OWN)


def visible(folder: Path) -> set[str]:
    """The names of a folder's entries, hidden ones left out."""
    return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


def read_text(file: Path, name: str, problems: Problems) -> str:
    """A file's text; "" where it holds none, which is counted under its name."""
    data = file.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        problems.add("file that is not UTF-8 text (left out)", name)
        return ""
    if not text.strip():
        problems.add("file without text (left out)", name)
    return text


def json_lines(file: Path, problems: Problems) -> Iterator[Document]:
    """One document of each line {"_id", "title", "text"}, plain or .gz; the text begins with its title.

    The id may also be called id, docid or doc_id, by default the line's number; the text contents, content or
    body. Of equal ids the first counts. ValueError names the line of bad JSON, or without a usable id or
    text.
    """

    def rows() -> Iterator[Document]:
        for number, line in numbered_lines(file):
            where = f"{file}, line {number}"
            row = json_object(line, where)
            text = next((row[key] for key in TEXTS if key in row), None)
            if not isinstance(text, str):
                raise ValueError(
                    f"{where}: none of {', '.join(TEXTS)} is a string; keys are {', '.join(row)}"
                )
            title = row["title"].strip() if isinstance(row.get("title"), str) else ""
            yield json_id(row, where, number), title, joined(title, text)

    return ((id, title, text) for _, (id, title, text) in checked("document", rows(), problems))
