"""Show, for a saved ALIGNER, the salient words of queries and documents, and the aligned tokens.

Qian et al. 2022, Tables 4 and 5: for chosen queries with a relevant document, show the most salient words
and, for each k, the k document tokens that every query token aligns with. The output appears in the terminal
and as one HTML page with the alignments side by side. A model without salience has no salient words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from math import ceil
from pathlib import Path

from studies.settings import Checkpoint, OneCollection, OneSplit, Output, launch, refusing

from paradigms.io.command_line import flags


@flags(documents=2000, output="results/interpret.html")
class Settings(Output, OneCollection, OneSplit, Checkpoint):
    """Settings for the model and the texts."""

    queries: list[str] = field(default_factory=list)
    """ids of queries; empty: 4 queries, evenly spaced in the order of ids"""


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
from studies.alignment_view import chosen_queries, words

from paradigms import Paradigm
from paradigms.align import TopK
from paradigms.cli.show import alignment
from paradigms.encoder.text import Side
from paradigms.evaluate.gate import measure_gate
from paradigms.io.device import chosen_device
from paradigms.io.terminal import Terminal
from paradigms.train.script import open_collection
from paradigms.view.report import AlignmentExample, Report, write_report

KS = (1, 2, 4)  # numbers of document tokens that a query token aligns with
QUERIES = 4
SHARES: dict[Side, float] = {"query": 0.5, "document": 0.2}  # share of the words that are called salient


def main(settings: Settings) -> None:
    console = Terminal()
    with refusing("--checkpoint: "):
        paradigm = Paradigm.from_pretrained(settings.checkpoint)
    paradigm.to(chosen_device())
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    split = collection.split(settings.split)
    if unknown := [query for query in settings.queries if query not in split.queries]:
        raise SystemExit(f"--queries: {', '.join(unknown)} not in split {settings.split}")
    examples = []
    notes = list[str]()
    texts = list[str]()
    for query in settings.queries or chosen_queries(split, QUERIES):
        judged = split.judgements[query]
        query_text = split.queries[query]
        document = min(judged, key=lambda d: (-judged[d], d))
        text = collection.corpus[collection.corpus.position(document)]
        texts.append(text)
        views = [
            replace(paradigm.with_alignment(TopK(k=k)).explain(query_text, text), system=f"k = {k}")
            for k in KS
        ]
        for view in views:
            alignment(view, f"query {query}, {view.system}", f"document {document}", console)
        notes.append(f"Most salient in query {query}: {salient(paradigm, query_text, 'query')}")
        notes.append(f"Most salient in document {document}: {salient(paradigm, text, 'document')}")
        console.print("\n".join(notes[-2:]), markup=False)
        examples.append(AlignmentExample(query, document, query_text, text, judged[document] > 0, views))
    for line in gate(paradigm, texts):
        notes.append(f"These documents have {line}")
        console.print(notes[-1], markup=False)
    title = f"What {Path(settings.checkpoint)} aligns on {collection.name}"
    summary = "Each query with its most relevant document, by the number k of tokens that a query token has. "
    summary += "; ".join(notes) + "."
    write_report(settings.output, Report(title=title, summary=summary, alignments=examples))
    console.print(f"Page: {settings.output}")


def gate(paradigm: Paradigm, texts: Sequence[str]) -> Iterator[str]:
    """Describe how active the salience gate is on the documents; nothing without document salience."""
    if texts and (tokens := paradigm.encode_documents(texts).to("cpu")).salience is not None:
        mask = tokens.mask[0]
        yield str(measure_gate(tokens.salience[0][mask].numpy(), np.cumsum([0, *mask.sum(-1).tolist()])))


def salient(paradigm: Paradigm, text: str, side: Side) -> str:
    """Return the most salient words, a share `SHARES[side]`; a word's salience is its pieces' maximum."""
    encode = paradigm.encode_queries if side == "query" else paradigm.encode_documents
    tokens = encode([text])
    if tokens.salience is None:
        return f"nothing: this model has no salience for {'queries' if side == 'query' else 'documents'}"
    spans = words(paradigm, text, side, tokens.mask[0, 0])
    weights = [max(float(tokens.salience[0, 0, place]) for place in places) for _, places in spans]
    order = sorted(range(len(spans)), key=lambda n: -weights[n])[: ceil(SHARES[side] * len(spans))]
    return ", ".join(f"{spans[n][0]} {weights[n]:.3f}" for n in order if weights[n] > 0) or "nothing"
