"""What a saved ALIGNER finds salient in a query and a document, and which tokens it aligns: as text to read.

Qian et al. 2022, Tables 4 and 5: for chosen queries, a relevant document with its most salient words marked,
and for the query's most salient words the k document tokens that they align with, for each k. In the
terminal, and as one HTML file that needs nothing else. A model without salience is shown too: its query
words are then ordered by what they add to the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which model reads what."""

    checkpoint: str
    """folder of a saved ALIGNER, such as experiments/train.py writes"""
    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    split: str = "test"
    queries: list[str] = field(default_factory=list)
    """ids of queries; empty: `count` of them, evenly spaced in the order of their ids"""
    count: int = 4
    k: list[int] = field(default_factory=lambda: [1, 2, 4])
    """numbers of document tokens that a query token aligns with"""
    words: int = 3
    """query words whose alignments are shown, the most salient ones"""
    query_share: float = 0.5
    """share of the query's words that are marked as salient"""
    document_share: float = 0.2
    """share of the document's words that are marked as salient"""
    output: str = "results/interpret.html"

    def __post_init__(self) -> None:
        if not self.k or min(self.k) < 1 or self.count < 1:
            raise SystemExit("every k and count must be at least 1")
        if not 1 <= self.words <= len(PALETTE):
            raise SystemExit(f"words must lie between 1 and {len(PALETTE)}, as many as there are colours")
        if not (0 < self.query_share <= 1 and 0 < self.document_share <= 1):
            raise SystemExit("query_share and document_share must lie in (0, 1]")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from rich import box
from rich.table import Table
from rich.text import Text
from torch import Tensor

from paradigms import Paradigm
from paradigms.core import similarity
from paradigms.data import Split
from paradigms.encoder.text import Side
from paradigms.evaluate.report import PALETTE
from paradigms.io.files import write_text
from paradigms.io.terminal import Terminal, shown
from paradigms.train.job import open_collection

CLOSING, OPENING = set(".,;:!?)]}%'’"), set("([{")
CONTRACTED = {"s", "t", "re", "ve", "ll", "d", "m"}  # after an apostrophe
NO_SALIENCE: dict[Side, str] = {
    "query": "This model has no salience for queries: words are ordered by their best similarity.",
    "document": "This model has no salience for documents: none of their words is marked as salient.",
}


@dataclass
class Word:
    """Pieces of a text that belong together, and how they are marked."""

    text: str
    places: list[int]  # of its pieces among the text's tokens
    weight: float = 0.0  # of its heaviest piece: salience, or without one what it adds
    salient: bool = False
    color: str = ""  # of a query word whose alignments are shown, and of nothing else
    marks: list[tuple[str, int]] = field(default_factory=list)  # colour and rank of alignments to it


@dataclass
class Pair:
    """One query and one document, ready to show."""

    query_id: str
    document_id: str
    written: str  # the query as it was written
    query: list[Word]
    document: list[Word]
    rows: list[dict[str, str]]  # of the alignments' table
    rel: dict[int, float]  # k -> rel


def main(settings: Settings) -> None:
    console = Terminal()
    try:
        paradigm = Paradigm.from_pretrained(settings.checkpoint)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--checkpoint: {shown(error)}") from error
    paradigm.to("cuda" if torch.cuda.is_available() else "cpu")
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    split = collection.split(settings.split)
    pairs = []
    for query in chosen_queries(split, settings):
        judged = split.judgements[query]
        document = min(judged, key=lambda d: (-judged[d], d))
        text = collection.corpus[collection.corpus.position(document)]
        pairs.append(interpret(paradigm, (query, split.queries[query]), (document, text), settings))
    notes = [text for side, text in NO_SALIENCE.items() if not weighs(paradigm, side)]
    title = f"What {Path(settings.checkpoint)} aligns on {collection.name}"
    for pair in pairs:
        show(pair, console)
    for note in notes:
        console.print(note)
    write_text(settings.output, page(title, notes, pairs), errors="replace")
    console.print(f"Page: {settings.output}")


def chosen_queries(split: Split, settings: Settings) -> list[str]:
    """The queries of the settings, or some with a relevant document."""
    unknown = [query for query in settings.queries if query not in split.queries]
    if unknown:
        raise SystemExit(f"--queries: {', '.join(unknown)} not in split {settings.split}")
    ids = sorted(q for q, judged in split.judgements.items() if any(grade > 0 for grade in judged.values()))
    return settings.queries or ids[:: max(1, len(ids) // settings.count)][: settings.count]


def weighs(paradigm: Paradigm, side: Side) -> bool:
    """Whether the tokens of a side carry a salience."""
    encode = paradigm.encode_queries if side == "query" else paradigm.encode_documents
    return encode(["text"]).salience is not None


def interpret(
    paradigm: Paradigm, query: tuple[str, str], document: tuple[str, str], settings: Settings
) -> Pair:
    """The words of both (id, text), and what the most salient query words align with."""
    q, d = paradigm.encode_queries([query[1]]), paradigm.encode_documents([document[1]])
    S, valid = similarity(d, q)
    most = min(max(settings.k), int(d.mask.sum()))
    best = S[0, 0].masked_fill(~valid[0, 0], -torch.inf).topk(max(1, most), dim=0)
    added = best.values[0].where(valid[0, 0].any(0), 0)
    u_q = added if q.salience is None else q.salience[0, 0]
    u_d = torch.zeros_like(d.mask[0, 0], dtype=S.dtype) if d.salience is None else d.salience[0, 0]
    query_words = weigh(words(paradigm, query[1], "query", q.mask[0, 0]), u_q, settings.query_share)
    document_words = weigh(
        words(paradigm, document[1], "document", d.mask[0, 0]), u_d, settings.document_share
    )
    labels = paradigm.encoder.labels(document[1], "document")
    owner = {place: word for word in document_words for place in word.places}
    rows = []
    chosen = sorted(query_words, key=lambda word: -word.weight)[: settings.words]
    for word, color in zip(chosen, PALETTE, strict=False):
        word.color = color
        j = max(word.places, key=lambda place: float(u_q[place]))
        places = best.indices[:most, j].tolist()
        row = {"query word": word.text, "weight": f"{word.weight:.3f}"}
        for rank, (i, similar) in enumerate(zip(places, best.values[:most, j], strict=True), 1):
            weight = "" if d.salience is None else f" × {float(u_d[i]):.2f}"
            row[f"rank {rank}"] = f"{owner[i].text if i in owner else labels[i]} ({similar:.2f}{weight})"
            if i in owner and (color, rank) not in owner[i].marks:
                owner[i].marks.append((color, rank))
        rows.append(row)
    rel = {k: float(paradigm.with_alignment("top_k", k=k).score(d, q)[0, 0]) for k in settings.k}
    return Pair(query[0], document[0], query[1], query_words, document_words, rows, rel)


def words(paradigm: Paradigm, text: str, side: Side, mask: Tensor) -> list[Word]:
    """The text's tokens that count, as words: pieces that continue a word joined to it.

    WordPiece marks the pieces that continue (##), the vocabularies of SentencePiece and byte-level BPE those
    that begin (▁, Ġ).
    """
    tokenizer = paradigm.encoder.tokenizer
    begins = any(piece.startswith(("▁", "Ġ")) for piece in tokenizer.get_vocab())
    found: list[Word] = []
    before = -2
    for place, (label, counts) in enumerate(
        zip(paradigm.encoder.labels(text, side), mask.tolist(), strict=True)
    ):
        if not counts or label in tokenizer.all_special_tokens:
            continue
        continues = not label.startswith(("▁", "Ġ")) if begins else label.startswith("##")
        bare = label.lstrip("▁Ġ") if begins else label.removeprefix("##")
        if continues and found and before == place - 1:
            found[-1].text += bare
            found[-1].places.append(place)
        else:
            found.append(Word(bare, [place]))
        before = place
    return found


def weigh(found: list[Word], weights: Tensor, share: float) -> list[Word]:
    """The words with their weights; the heaviest ⌈share · number⌉ of weight above 0 are salient."""
    for word in found:
        word.weight = max(float(weights[place]) for place in word.places)
    for word in sorted(found, key=lambda word: -word.weight)[: ceil(share * len(found))]:
        word.salient = word.weight > 0
    return found


def spaced(found: Sequence[Word]) -> list[tuple[str, Word]]:
    """Each word with the space before it: none before closing, after opening punctuation, within it's."""
    result: list[tuple[str, Word]] = []
    for n, word in enumerate(found):
        before = found[n - 1].text if n else ""
        contracted = before in ("'", "’") and word.text in CONTRACTED
        tight = n == 0 or word.text in CLOSING or before in OPENING or contracted
        result.append(("" if tight else " ", word))
    return result


def show(pair: Pair, console: Terminal) -> None:
    """One pair in the terminal: salient words are bold, aligned ones have the colour of their query word."""
    console.print()
    console.rule(Text(f"query {pair.query_id} → document {pair.document_id}"))
    for name, found in (("Query", pair.query), ("Document", pair.document)):
        text = Text(f"{name}: ", "dim")
        for space, word in spaced(found):
            color = word.color or (word.marks[0][0] if word.marks else "")
            style = " ".join(filter(None, ["bold" if word.salient else "not bold not dim", color]))
            text.append(space).append(word.text, style)
            for own, rank in word.marks:
                text.append(f"[{rank}]", f"not bold {own}")
        console.print(text)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for key in pair.rows[0] if pair.rows else ():
        table.add_column(key)
    for row in pair.rows:
        table.add_row(*(Text(cell) for cell in row.values()))
    console.print(table)
    console.print(
        "rel: " + ", ".join(f"{rel:.4f} at k = {k}" for k, rel in pair.rel.items()), highlight=False
    )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
body { font: 16px/1.7 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem }
h2 { font-size: 1.1rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem }
table { border-collapse: collapse; font-size: .9rem; display: block; overflow-x: auto }
th, td { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #ddd }
.side { color: #777; font-size: .85rem }
.salient { background: #fff3bf; border-radius: 3px; padding: 0 .1rem }
.own { font-weight: 600 } sup { font-size: .7em; margin-left: .1em }
</style>
<h1>{{ title }}</h1>
<p>Yellow: the most salient words. Coloured: the query's {{ most }} most salient words, and the words of the
document that they align with, numbered by rank: k aligns those up to number k. In the tables: similarity
{%- if not notes %} × salience of the document's word{% endif %}. A word's weight shows under the pointer.</p>
{% for note in notes %}<p><strong>{{ note }}</strong></p>
{% endfor %}
{%- macro text(words) -%}
{% for space, word in spaced(words) %}{{ space }}<span title="{{ '%.3f' | format(word.weight) }}"
{%- if word.salient %} class="salient"{% endif %}><span
{%- if word.color %} class="own" style="color: {{ word.color }}"
{%- elif word.marks %} style="color: {{ word.marks[0][0] }}"{% endif %}>{{ word.text }}</span>
{%- for color, rank in word.marks %}<sup style="color: {{ color }}">{{ rank }}</sup>{% endfor %}</span>
{%- endfor %}
{%- endmacro -%}
{% for pair in pairs %}<h2>{{ pair.written }}</h2>
<p><span class="side">query {{ pair.query_id }}</span><br>{{ text(pair.query) }}</p>
<p><span class="side">document {{ pair.document_id }}</span><br>{{ text(pair.document) }}</p>
{% if pair.rows %}<table><tr>{% for key in pair.rows[0] %}<th>{{ key }}</th>{% endfor %}</tr>
{% for row in pair.rows %}<tr>{% for cell in row.values() %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
<p class="side">rel: {% for k, rel in pair.rel.items() %}{{ '%.4f' | format(rel) }} at k = {{ k }}
{{- ', ' if not loop.last }}{% endfor %}</p>
{% endfor %}</html>
"""


def page(title: str, notes: list[str], pairs: list[Pair]) -> str:
    """All pairs as one HTML page that loads nothing."""
    import jinja2

    template: Any = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)
    most = max((len(pair.rows) for pair in pairs), default=0)
    return template.render(title=title, notes=notes, pairs=pairs, spaced=spaced, most=most)


if __name__ == "__main__":
    main(Settings(**given))
