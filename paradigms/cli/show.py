"""Print results as a table, JSON lines or a TREC run, and aligned tokens in colours."""

import json
from collections import Counter
from collections.abc import Mapping
from math import isfinite

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paradigms.data import Corpus, Run
from paradigms.data.collection import body
from paradigms.explanation import Explanation
from paradigms.io.terminal import Terminal, printable
from paradigms.view.report import PALETTE

SNIPPET = 240  # characters
RANKS = 10  # results per system, side by side
LINKS = 30  # listed links per alignment


def tell(line: str, style: str = "") -> None:
    """Print a line to standard error, unwrapped."""
    Terminal(stderr=True, highlight=False).print(Text(line, style), soft_wrap=True)


def results(queries: Mapping[str, str], run: Run, corpus: Corpus | None, form: str) -> None:
    """Print each query's documents, best first, with their texts if `corpus` is given.

    form: "table", "jsonl" or "trec". A document without tokens has the score −inf, which JSON shows as null.
    """
    console = Terminal(highlight=False)
    for query, text in queries.items():
        documents = run.get(query, {})
        if form == "table":
            console.print(_listed(text, documents, corpus))
            continue
        for rank, (id, score) in enumerate(documents.items(), 1):
            if form == "trec":
                print(printable(f"{query} Q0 {id} {rank} {score!r} paradigms"))
                continue
            number = score if isfinite(score) else None
            row = {"query": query, "text": text, "rank": rank, "id": id, "score": number}
            print(json.dumps(row | ({} if corpus is None else {"document": corpus.document(id)[2]})))


def side_by_side(queries: Mapping[str, str], runs: Mapping[str, Run]) -> None:
    """Print the top documents of all systems side by side; shared documents are bold and counted."""
    console = Terminal(highlight=False)
    for query, text in queries.items():
        table = Table(title=Text(text), title_justify="left")
        table.add_column("rank", justify="right")
        for name in runs:
            table.add_column(Text(name))
        firsts = {name: list(run[query])[:RANKS] for name, run in runs.items()}
        counts = Counter(id for ids in firsts.values() for id in ids)
        for rank in range(max(map(len, firsts.values()), default=0)):
            ids = [first[rank] if rank < len(first) else "" for first in firsts.values()]
            cells = [Text(id, "bold" if counts[id] == len(runs) else "") for id in ids]
            table.add_row(str(rank + 1), *cells)
        shared = sum(count == len(runs) for count in counts.values())
        console.print(table)
        console.print(f"{shared} of the first {RANKS} are shared by all (bold)")


def alignment(explanation: Explanation, query: str, document: str) -> None:
    """Print query tokens in colours; each document token has the colour of its best-scoring query token.

    Then list the links that make up the score, largest first, with S, A and the share of rel.
    """
    console = Terminal(highlight=False)
    links = explanation.links
    colours = {j: PALETTE[n % len(PALETTE)] for n, j in enumerate(sorted({j for _, j, _, _ in links}))}
    best: dict[int, tuple[float, int]] = {}
    for i, j, s, a in links:
        best[i] = max(best.get(i, (s * a, j)), (s * a, j))
    console.print(Text(query, "bold"))
    console.print(_tokens(explanation.query_tokens, colours))
    console.print(Text(document, "bold"))
    console.print(_tokens(explanation.document_tokens, {i: colours[j] for i, (_, j) in best.items()}))
    Z = explanation.Z
    table = Table(caption=f"rel = {explanation.rel:.4g}, Z = {Z:.4g}; A reads {explanation.reads}")
    for name in ("query token", "document token", "place"):
        table.add_column(name, justify="right" if name == "place" else "left")
    for name in ("S", "A", "S·A/Z"):
        table.add_column(name, justify="right")
    for i, j, s, a in sorted(links, key=lambda link: (-link[2] * link[3], link[1], link[0]))[:LINKS]:
        tokens = explanation.query_tokens[j], explanation.document_tokens[i]
        share = f"{s * a / Z:.3f}" if Z else "–"
        table.add_row(*(Text(token, colours[j]) for token in tokens), str(i), f"{s:.3f}", f"{a:.3g}", share)
    console.print(table)
    if len(links) > LINKS:
        console.print(f"{len(links) - LINKS:,} smaller links are not listed")


def _tokens(tokens: list[str], colours: Mapping[int, str]) -> Text:
    line = Text()
    for n, token in enumerate(tokens):
        style = f"bold {colours[n]}" if n in colours else "dim"
        inside = token.startswith("##")  # WordPiece's mark of a token within a word
        line.append("" if inside or not n else " ").append(token.removeprefix("##"), style)
    return line


def _listed(query: str, documents: Mapping[str, float], corpus: Corpus | None) -> Group:
    lines: list[RenderableType] = [Text(query, "bold")]
    for rank, (id, score) in enumerate(documents.items(), 1):
        _, title, text = ("", "", "") if corpus is None else corpus.document(id)
        heading = "" if id.startswith(title) else f"  {title}"
        lines.append(Text.assemble(f"{rank:>3}. ", (id, "cyan"), heading, (f"  {score:.4f}", "dim")))
        snippet = " ".join(body(title, text).split())
        if snippet:
            cut = snippet if len(snippet) <= SNIPPET else snippet[: SNIPPET - 1] + "…"
            lines.append(Padding(Text(cut), (0, 0, 0, 5), expand=False))
    return Group(*lines, "" if documents else "  nothing found")
