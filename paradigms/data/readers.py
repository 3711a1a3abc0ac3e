"""Read the text of files: plain text in any encoding, PDF, and documents that pandoc reads.

The extra `files` installs pypdf, pandoc and charset-normalizer, which guesses encodings; without them, only
text in UTF-8, UTF-16 and UTF-32 is read.
"""

import codecs
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from paradigms.data.collection import Problems
from paradigms.io.checks import is_blank

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
