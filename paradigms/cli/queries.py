"""Read a command's queries from its arguments, a file, a collection's split or the keyboard."""

import argparse
import sys
from collections.abc import Iterator, Mapping

from rich.text import Text

from paradigms.data import load_collection
from paradigms.data.assembly import mended
from paradigms.data.lines import columns, json_row
from paradigms.io.checks import is_blank
from paradigms.io.gzipped import numbered_lines
from paradigms.io.terminal import Terminal


def read_queries(settings: argparse.Namespace, source: str | None) -> dict[str, str]:
    """Read queries (id -> text) from the setting query, queries or split; return {} if all are empty.

    source: the collection that contains the split. Raises ValueError if more than one of the settings is set.
    """
    places = [name for name in ("query", "queries", "split") if getattr(settings, name)]
    if len(places) > 1:
        raise ValueError(f"queries must come from one place, not from {' and '.join(places)}")
    if settings.query:
        queries = {str(n): mended(text) for n, text in enumerate(settings.query, 1)}
        refuse_blank(queries)
        return queries
    if settings.queries:
        return from_file(settings.queries)
    if settings.split:
        if source is None:
            raise ValueError("--split needs an index of a collection")
        return load_collection(source).split(settings.split).queries
    return {}


def refuse_blank(queries: Mapping[str, str]) -> None:
    """Raise ValueError if a query has no text, because it would match all documents alike."""
    blank = next((id for id, text in queries.items() if is_blank(text)), None)
    if blank is not None:
        raise ValueError(f"query {blank} is blank: give it a text")


def from_file(file: str) -> dict[str, str]:
    """Read JSON lines {"_id", "text"}, lines "id<tab>text", or lines of text, whose ids are line numbers.

    The first line determines the format. Raises ValueError, naming the line, if a line has a different
    format, a repeated id or a blank text.
    """
    queries: dict[str, str] = {}
    form = ""
    for number, line in numbered_lines(file):
        form = form or ("{" if line.startswith("{") else "\t" if "\t" in line else " ")
        where = f"{file}, line {number}"
        if form == "{":
            id, row = json_row(line, where)
            text = row.get("text") or ""
        elif form == "\t":
            cells = columns(line, where, 2)
            if cells is None:
                continue
            id, text = cells
        else:
            id = str(number)
            text = line
        if id in queries:
            raise ValueError(f"{where}: the id {id!r} is repeated")
        if is_blank(text):
            raise ValueError(f"{where}: the text of the query {id!r} is blank")
        queries[id] = mended(text)
    if not queries:
        raise ValueError(f"{file} holds no query")
    return queries


def typed_lines() -> Iterator[str]:
    """Yield the nonblank lines of standard input; at a terminal, prompt until a line is empty."""
    if not sys.stdin.isatty():
        yield from (mended(line.strip()) for line in sys.stdin if line.strip())
        return
    console = Terminal(stderr=True)
    while True:
        try:
            line = console.input(Text.assemble(("query", "bold"), " (empty to leave): ")).strip()
        except EOFError:
            return
        if not line:
            return
        yield mended(line)
