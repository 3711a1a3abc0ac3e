"""Documents that come without queries: a folder of text files cut into passages, or any JSON lines.

Streams of (id, title, text), as `collection.assemble` takes them; what was left out is counted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paradigms.data.collection import Problems, joined
from paradigms.data.files import numbered_lines
from paradigms.data.lines import Document
from paradigms.data.passages import read_runs, units

WORDS = 150  # of a passage at most
IDS, TEXTS = ("_id", "id", "docid", "doc_id"), ("text", "contents", "content", "body")
MARKER = "search.json"  # stands in a folder that an index command wrote, which is no source


def text_passages(folder: Path, problems: Problems, words: int = WORDS) -> Iterator[Document]:
    """Passages of at most `words` words of every text file in and below a folder, which may also be one file.

    A passage is named "path:line" by the line that it begins on, a second one of that line "path:line.2"; its
    title, no part of the text, is the path. Files and folders whose name begins with a dot are left out
    silently; files that are not UTF-8 text, and empty ones, are counted.
    """
    for file in text_files(folder):
        name = file.relative_to(folder).as_posix() if file != folder else file.name
        text = read_text(file, name, problems)
        [(_, runs)] = read_runs([text])
        line, upto, places = 1, 0, dict[int, int]()
        for unit in units(runs, words):
            line, upto = line + text.count("\n", upto, unit.start), unit.start
            places[line] = places.get(line, 0) + 1
            repeat = f".{places[line]}" if places[line] > 1 else ""
            yield f"{name}:{line}{repeat}", name, text[unit.start : unit.end]


def text_files(folder: Path) -> Iterator[Path]:
    """The files in and below a folder by name, hidden ones and what an index command wrote left out."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        if entry.name.startswith(".") and entry != folder:
            continue
        if entry.is_dir():
            if not (entry / MARKER).is_file() and not entry.is_symlink():  # a link may lead back up
                yield from text_files(entry)
        elif entry.is_file():
            yield entry


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


def is_json_lines(file: Path) -> bool:
    """Whether a file of that name is there."""
    return file.is_file() and file.name.removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def json_lines(file: Path, problems: Problems) -> Iterator[Document]:
    """One document of each line {"_id", "title", "text"}, plain or .gz; the text begins with its title.

    The id may also be called id, docid or doc_id, and is the number of the line where there is none; the text
    contents, content or body. Of equal ids the first counts. ValueError names the line of bad JSON, and of a
    row without a text.
    """
    seen: set[str] = set()
    for number, line in numbered_lines(file):
        where = f"{file}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: bad JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: bad JSON (a {type(row).__name__}, not an object)")
        text = next((row[key] for key in TEXTS if key in row), None)
        if not isinstance(text, str):
            raise ValueError(
                f"{where}: none of {', '.join(TEXTS)} is a string; its keys are {', '.join(row)}"
            )
        id = str(next((row[key] for key in IDS if key in row), number))
        if id in seen:
            problems.add("duplicate document id (first one kept)", id)
            continue
        if not text.strip():
            problems.add("document with empty text (kept)", id)
        seen.add(id)
        title = _title(row)
        yield id, title, joined(title, text)


def _title(row: dict[str, Any]) -> str:
    title = row.get("title")
    return title.strip() if isinstance(title, str) else ""
