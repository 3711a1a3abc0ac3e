"""What a saved ALIGNER finds salient in a query and a document, and which tokens it aligns: as text to read.

Qian et al. 2022, Tables 4 and 5: for chosen queries, a relevant document with its most salient words marked,
and for the query's most salient words the k document tokens that they align with, for each k. In the
terminal, and the same as one HTML file. A model without salience is shown too: its query
words are then ordered by what they add to the score.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from math import ceil
from pathlib import Path
from typing import Any

from studies.settings import at_least, different

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
        different(self, "k")
        at_least(self, k=1, count=1)
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
from studies.alignment_view import chosen_queries
from torch import Tensor

from paradigms import Paradigm
from paradigms.core import similarity
from paradigms.encoder.text import Side
from paradigms.evaluate.report import PALETTE
from paradigms.io.files import write_text
from paradigms.io.terminal import Terminal, shown
from paradigms.train.job import open_collection

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
    if unknown := [query for query in settings.queries if query not in split.queries]:
        raise SystemExit(f"--queries: {', '.join(unknown)} not in split {settings.split}")
    pairs = []
    for query in settings.queries or chosen_queries(split, settings.count):
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
    return Pair(query[0], document[0], query_words, document_words, rows, rel)


def words(paradigm: Paradigm, text: str, side: Side, mask: Tensor) -> list[Word]:
    """The text's tokens that count, as words: pieces that continue a word joined to it.

    WordPiece marks the pieces that continue (##), the vocabularies of SentencePiece and byte-level BPE those
    that begin (▁, Ġ).
    """
    begins, special = _pieces(paradigm.encoder.tokenizer)
    found: list[Word] = []
    before = -2
    for place, (label, counts) in enumerate(
        zip(paradigm.encoder.labels(text, side), mask.tolist(), strict=True)
    ):
        if not counts or label in special:
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


@lru_cache(maxsize=1)
def _pieces(tokenizer: Any) -> tuple[bool, frozenset[str]]:
    """Whether the vocabulary marks pieces that begin a word, and its special tokens."""
    begins = any(piece.startswith(("▁", "Ġ")) for piece in tokenizer.get_vocab())
    return begins, frozenset(tokenizer.all_special_tokens)


def weigh(found: list[Word], weights: Tensor, share: float) -> list[Word]:
    """The words with their weights; the heaviest ⌈share · number⌉ of weight above 0 are salient."""
    for word in found:
        word.weight = max(float(weights[place]) for place in word.places)
    for word in sorted(found, key=lambda word: -word.weight)[: ceil(share * len(found))]:
        word.salient = word.weight > 0
    return found


def show(pair: Pair, console: Terminal) -> None:
    """One pair in the terminal: salient words are bold, aligned ones have the colour of their query word."""
    console.print()
    console.rule(Text(f"query {pair.query_id} → document {pair.document_id}"))
    for name, found in (("Query", pair.query), ("Document", pair.document)):
        text = Text(f"{name}:", "dim")
        for word in found:
            color = word.color or (word.marks[0][0] if word.marks else "")
            style = " ".join(filter(None, ["bold" if word.salient else "not bold not dim", color]))
            text.append(f" {word.text}", style)
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


def page(title: str, notes: list[str], pairs: list[Pair]) -> str:
    """What the terminal shows, as one HTML page that loads nothing."""
    console = Terminal(record=True, file=StringIO(), width=110)
    console.rule(Text(title))
    scaled = "" if notes else " × salience of the document's word"
    console.print(
        "Bold: the most salient words. Coloured: the query's most salient words, and the words of the "
        "document that they align with, numbered by rank: k aligns those up to number k. In the tables: "
        f"similarity{scaled}."
    )
    for pair in pairs:
        show(pair, console)
    for note in notes:
        console.print(note)
    return console.export_html(inline_styles=True)


if __name__ == "__main__":
    main(Settings(**given))
