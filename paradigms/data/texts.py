"""Read documents without queries, as (id, title, text), from a folder of files or from JSON lines.

The extra `files` installs pypdf, pandoc and charset-normalizer, which guesses encodings; without them, only
text in UTF-8, UTF-16 and UTF-32 is read.
"""

import codecs
import logging
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

from paradigms.data.assembly import checked
from paradigms.data.collection import Document, Problems, joined
from paradigms.data.lines import json_id
from paradigms.io.checks import is_blank, json_object
from paradigms.io.gzipped import numbered_lines

WORDS = 85  # maximum words per passage: about 128 tokens
TEXTS = ("text", "contents", "content", "body")
JSON_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
HTML = (".html", ".htm", ".xhtml")
UNSEEN = {"script", "style", "template", "noscript"}  # tags whose text a page does not show
INLINE = {"a", "abbr", "b", "bdi", "code", "em", "font", "i", "mark", "s", "small", "span", "strong"}
INLINE |= {"sub", "sup", "u", "wbr"}  # tags that may occur within a word
CORPUS, INDEX = "corpus.jsonl", "index"
MARKER = "search.json"  # the last file that the command `index` writes; its folder is not a source
# Scripts without white space between words: each character is a word. Thai, Lao, Burmese, Khmer, kana, Han.
ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
RUN = re.compile(r"\S+")
WORD = re.compile(rf"[{ALONE}]|(?:(?![{ALONE}])\w)+")
UNNAMED = re.compile(r"[\s%\ud800-\udfff]")  # characters that ids escape as in URLs
PANDOC = (".docx", ".epub", ".fb2", ".odt", ".pptx", ".rtf", ".xlsx")
OTHERS = (".doc", ".ppt", ".xls")  # formats that no library here reads
# Byte-order marks; that of UTF-32 begins with that of UTF-16.
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
RULE = re.compile(r"^[ \t+|=-]+$", re.MULTILINE)  # a line that pandoc draws in a table
LACKING = "file whose reader is not installed: pip install 'retrieval-paradigms[files]' (left out)"


def text_passages(folder: Path, problems: Problems, words: int = WORDS) -> Iterator[Document]:
    """Yield passages of at most `words` words from a text file, or from all text files in and below a folder.

    A passage's id is "path:line", with the line where the passage begins, or a PDF's page, and white space
    escaped as in URLs (%20); the second passage of a line is "path:line.2". The title is the path.
    """
    for file in text_files(folder, problems):
        name = file.relative_to(folder).as_posix() if file != folder else file.name
        id = UNNAMED.sub(lambda match: quote(os.fsencode(match[0])), name)
        places = dict[int, int]()
        for line, title, text in sections(file, name, problems):
            upto = 0
            for start, end in passages(text, words):
                line = line + text.count("\n", upto, start)
                upto = start
                places[line] = places.get(line, 0) + 1
                repeat = f".{places[line]}" if places[line] > 1 else ""
                yield f"{id}:{line}{repeat}", title or name, text[start:end]


def sections(file: Path, name: str, problems: Problems) -> Iterator[tuple[int, str, str]]:
    """Yield (line, title, text) of each document in JSON lines, of a PDF's pages, or of a whole file.

    A page's line is its number. Invalid JSON lines are counted under the file's name.
    """
    if file.name.lower().endswith(JSON_LINES):
        try:
            for number, _, title, text in json_rows(file):
                yield number, title, text
        except (ValueError, OSError) as error:
            problems.add("JSON lines that cannot be read as documents (left out from there)", str(error))
        return
    for number, text in read_parts(file, name, problems):
        if file.suffix.lower() in HTML:
            page = _Page()
            page.feed(text)
            page.close()
            text = "".join(page.parts)
        yield number, "", text


class _Page(HTMLParser):
    """HTML parser that collects the text outside tags, scripts and styles, keeping each word on its line."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.line = 1
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in UNSEEN
        if tag not in INLINE:
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in UNSEEN and self.hidden > 0
        if tag not in INLINE:
            self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            breaks = max(0, self.getpos()[0] - self.line)
            self.parts += ["\n" * breaks, data]
            self.line += breaks + data.count("\n")


def passages(text: str, words: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of passages of at most `words` words, cut at white space if possible."""
    start = -1
    last = 0
    count = 0
    for first, end, more in _runs(text, words):
        if start >= 0 and count + more > words:
            yield start, last
            start = -1
            count = 0
        start = first if start < 0 else start
        last = end
        count = count + more
    if start >= 0:
        yield start, last


def _runs(text: str, words: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, words) of each run without white space; runs of more than `words` are split."""
    for run in RUN.finditer(text):
        first, end = run.span()
        places = [word.start() for word in WORD.finditer(text, first, end)]
        if len(places) <= words:
            yield first, end, len(places)
            continue
        places[0] = first
        yield from ((a, b, 1) for a, b in zip(places, [*places[1:], end], strict=True))


def text_files(folder: Path, problems: Problems) -> Iterator[Path]:
    """Yield the files in and below a folder, sorted by name; `folder` may also be one file.

    Hidden files, folders made by the command `index` and links to folders are left out; links to files
    outside the folder are left out and counted.
    """
    root = folder.resolve()
    places = [folder]
    while places:
        entry = places.pop()
        if entry.is_dir():
            if entry == folder or not (entry.is_symlink() or is_index(entry)):  # a link may lead back up
                places += sorted((e for e in entry.iterdir() if not e.name.startswith(".")), reverse=True)
        elif entry.is_file():
            if entry.resolve().is_relative_to(root):
                yield entry
            else:
                link = str(entry.relative_to(folder))
                problems.add("link to a file outside of the folder (left out)", link)


def is_index(folder: Path) -> bool:
    """Return whether the command `index` made this folder, completely or partly."""
    names = visible(folder)
    return MARKER in names or (CORPUS in names and names <= {CORPUS, INDEX})


def visible(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


def json_lines(file: Path, problems: Problems) -> Iterator[Document]:
    """Yield a document for each line {"_id", "title", "text"}, plain or .gz; the text begins with its title.

    The id may also be called id, docid or doc_id, and defaults to the line's number; the text may be called
    contents, content or body. If an id repeats, only its first document is kept. Raises ValueError, with the
    line, if the JSON is invalid or lacks a usable id or text.
    """
    rows = ((id, title, text) for _, id, title, text in json_rows(file))
    return ((id, title, text) for _, (id, title, text) in checked("document", rows, problems))


def json_rows(file: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line number, id, title, text). Raises the same errors as `json_lines`."""
    for number, line in numbered_lines(file):
        where = f"{file}, line {number}"
        row = json_object(line, where)
        text = next((row[key] for key in TEXTS if key in row), None)
        if not isinstance(text, str):
            raise ValueError(f"{where}: none of {', '.join(TEXTS)} is a string; keys are {', '.join(row)}")
        title = row["title"].strip() if isinstance(row.get("title"), str) else ""
        yield number, json_id(row, where, number), title, joined(title, text)


def read_parts(file: Path, name: str, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of a PDF's pages, or (1, text) of another file.

    A file without text is counted under its name, with the reason. A page's text is one line.
    """
    suffix = file.suffix.lower()
    try:
        with file.open("rb") as stream:
            pdf = suffix == ".pdf" or stream.read(5) == b"%PDF-"
        if pdf:
            parts = list(_pages(file))
        elif suffix in PANDOC:
            parts = [(1, _by_pandoc(file))]
        else:
            parts = [(1, _text(file, name, problems))]
    except ImportError as error:
        problems.add(LACKING, f"{name} ({error.name})")
    except NotText as reason:
        problems.add(f"{reason} (left out)", name)
    except Exception as error:  # of any class: the libraries meet damaged files
        kind = f"{suffix.removeprefix('.') or 'pdf'} file that cannot be read (left out)"
        problems.add(kind, f"{name}: {' '.join(str(error).split())[:200]}")
    else:
        if all(is_blank(text) for _, text in parts):
            scanned = ", such as scanned pages" if suffix == ".pdf" else ""
            problems.add(f"file without text{scanned} (left out)", name)
        yield from parts


class NotText(Exception):
    """A file has no text that can be read. The message says what it is."""


def _pages(file: Path) -> Iterator[tuple[int, str]]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of every irregular object
    reader = PdfReader(file)
    if reader.is_encrypted and not reader.decrypt(""):
        raise NotText("encrypted PDF")
    for number, page in enumerate(reader.pages, 1):
        yield number, " ".join(page.extract_text().split())


def _by_pandoc(file: Path) -> str:
    import pypandoc

    options = {"format": file.suffix.lower()[1:], "sandbox": True, "extra_args": ["--wrap=none"]}
    return RULE.sub("", str(pypandoc.convert_file(str(file), "plain", **options)))


def _text(file: Path, name: str, problems: Problems) -> str:
    data = file.read_bytes()
    encoding = next((encoding for mark, encoding in MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return text
    if file.suffix.lower() in OTHERS:
        raise NotText(f"{file.suffix.lower()[1:]} file: save it as PDF or in a newer format")
    if b"\0" in data:
        raise NotText("file that is not text")
    from charset_normalizer import from_bytes

    guesses = list(from_bytes(data))
    if not guesses:
        raise NotText("file that is not text")
    # Western text fits several encodings of one byte a character equally well.
    chosen = min(guesses, key=lambda guess: (guess.chaos, -guess.coherence, guess.encoding != "cp1252"))
    problems.add("text that is not UTF-8, read in a guessed encoding", f"{name} ({chosen.encoding})")
    return str(chosen)
