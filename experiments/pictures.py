"""Draw three pages' pictures: quality by cost, learning curves, and A of every idea for one pair.

    .venv/bin/python experiments/pictures.py

writes which_paradigm.svg and learning.svg, from the committed results of comparisons, and ideas.svg, from the
alignments of the untrained paradigms over the default encoder.
"""

from dataclasses import dataclass
from pathlib import Path

from studies.settings import launch

RESULTS = Path(__file__).parent / "results"


@dataclass
class Settings:
    """Settings for the output."""

    output: str = str(RESULTS)
    """folder of the pictures"""


launch(__name__, Settings, __doc__)  # before the slow imports

import base64
import re

import numpy as np
import torch
from matplotlib.figure import Figure
from studies.pages import Section

from paradigms import PARADIGMS
from paradigms.data import Corpus
from paradigms.evaluate import Interval
from paradigms.explanation import Explanation
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.checks import read_json
from paradigms.io.files import write_text
from paradigms.registry import GENERATIVE
from paradigms.view.report import PALETTE

# What is searched with what -> the committed comparison, and its column.
DATA = {
    "Senses: definitions of 1913 find 117,659 glosses": ("senses", "nDCG@10, whole corpus"),
    "Debian: short descriptions find 28,682 long ones": ("debian-28682-two-seeds", "nDCG@10, whole corpus"),
    "Python: summary lines find 2,000 docstrings": ("compare-pydocs", "nDCG@10, whole corpus"),
    "Python: a docstring's own words find it": ("compare-pydocs", "nDCG@10, parameters"),
}
# What is learned from which encoder -> the committed comparisons, of different systems.
CURVES = {
    "Debian, from MiniLM": ["debian-28682"],
    "Senses, from MiniLM": ["senses"],
    "Debian, from T5": ["debian-28682-t5", "debian-28682-t5-aligner", "debian-28682-t5-xtr"],
    "Senses, from T5": ["senses-t5", "senses-t5-splade"],
}
SEEN = "training pairs seen = "
COSTS = {"bytes/document": "bytes a document", "ms/query": "milliseconds a query"}
SYSTEMS = ("dpr", "me_bert", "colbert", "coil", "aligner", "xtr", "splade")
LOOKS = {"bm25": ("black", "o")} | dict(zip(SYSTEMS, zip(PALETTE, "sv^DPX*", strict=True), strict=True))
# Title -> paradigm, and the A in place of its own.
IDEAS = {
    "DPR: AllPairs()": ("dpr", ""),
    "ME-BERT: QueryToDocument()": ("me_bert", ""),
    "ColBERT: QueryToDocument()": ("colbert", ""),
    "MVDR: DocumentToQuery()": ("colbert", "DocumentToQuery()"),
    "XTR: PoolTopK(k=1)": ("colbert", "PoolTopK(k=1)"),
    "COIL: EqualIds()": ("colbert", "EqualIds()"),
    "ALIGNER: TopK(k=2)": ("colbert", "TopK(k=2)"),
    "ALIGNER, soft: Entropic(k=2)": ("colbert", "Entropic(k=2, eps=0.02)"),
    "MUVERA: Buckets()": ("colbert", "Buckets(planes=4, repetitions=10)"),
}

QUERY = "who walked on the moon first?"
DOCUMENT = "Neil Armstrong was the first person to walk on the moon."
OTHERS = ["Buzz Aldrin walked on the moon as well.", "Yuri Gagarin was the first person in space."]


def main(settings: Settings) -> None:
    figures = {"which_paradigm": which_paradigm(), "learning": learning(), "ideas": ideas()}
    for name, figure in figures.items():
        file = Path(settings.output) / f"{name}.svg"
        write_text(file, base64.b64decode(Section(name, figure=figure).image).decode())
        print(f"Picture: {file}")


def which_paradigm() -> Figure:
    """Draw nDCG@10 against bytes and milliseconds, in a row for each kind of data."""
    figure = Figure(figsize=(5.8, 9.8), layout="constrained")
    panels = figure.subplots(len(DATA), len(COSTS), sharex="col", sharey="row")
    points = {}
    for row, (kind, (study, column)) in zip(panels, DATA.items(), strict=True):
        rows = read_json(RESULTS / f"{study}.json")["sections"]["overview"]["rows"]
        for axes, cost in zip(row, COSTS, strict=True):
            for values in (values for values in rows if values["system"] in LOOKS):
                mean, low, high = trained(values[column])
                colour, marker = LOOKS[values["system"]]
                bars = [[mean - low], [high - mean]]
                points[values["system"]] = axes.errorbar(
                    values[cost], mean, bars, fmt=marker, color=colour, ms=7, elinewidth=0.8
                )
            axes.set_xscale("log")
            axes.grid(color="0.92")
        row[0].set_title(kind, fontsize=10, loc="left")
        row[0].set_ylabel("nDCG@10")
        row[0].locator_params(axis="y", nbins=5)
    for axes, label in zip(panels[-1], COSTS.values(), strict=True):
        axes.set_xlabel(label)
    names = [name for name in LOOKS if name in points]
    figure.legend([points[name] for name in names], names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def learning() -> Figure:
    """Draw the gain in nDCG@10 on dev queries against the pairs seen, in a panel for each training."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    lines = {}
    for axes, (training, studies) in zip(panels.flat, CURVES.items(), strict=True):
        for study in studies:
            for row in read_json(RESULTS / f"{study}.json")["sections"]["learning"]["rows"]:
                if row["system"] not in SYSTEMS:
                    continue
                cells = {name.removeprefix(SEEN): cell for name, cell in row.items() if name.startswith(SEEN)}
                means = {pairs: float(cell.split()[0]) for pairs, cell in cells.items() if cell != "–"}
                gains = [mean - means["0"] for mean in means.values()]
                colour, marker = LOOKS[row["system"]]
                lines[row["system"]] = axes.plot([*means], gains, color=colour, marker=marker, ms=5, lw=1)[0]
        axes.axhline(0, color="0.6", lw=0.8)
        axes.grid(color="0.92")
        axes.set_title(training, fontsize=10, loc="left")
    for axes in panels[:, 0]:
        axes.set_ylabel("nDCG@10 − untrained")
    for axes in panels[-1]:
        axes.set_xlabel("training pairs seen")
    handles = [lines[name] for name in SYSTEMS]
    figure.legend(handles, SYSTEMS, loc="outside lower center", ncols=4, frameon=False)
    return figure


def trained(cell: str) -> Interval:
    """Parse the mean and interval of a comparison's cell, after training.

    >>> trained(".742 ↗ .771† [.753, .789]")
    Interval(mean=0.771, low=0.753, high=0.789)
    """
    return Interval(*map(float, re.findall(r"\.\d+", cell)[-3:]))


def ideas() -> Figure:
    """Draw A as a matrix, document tokens by query tokens, for every idea."""
    pairs = explained()
    figure = Figure(figsize=(6, 2.7 * ((len(pairs) + 1) // 2)), layout="constrained")
    panels = figure.subplots((len(pairs) + 1) // 2, 2).flat
    for axes, (title, pair) in zip(panels, pairs.items(), strict=True):
        A = np.zeros((len(pair.document_tokens), len(pair.query_tokens)))
        for i, j, _, weight in pair.links:
            A[i, j] = weight
        axes.imshow(A, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(A)), pair.document_tokens, fontsize=8)
        axes.set_xticks(range(A.shape[1]), pair.query_tokens, fontsize=8, rotation=60, ha="right")
        axes.set_title(title, fontsize=10, loc="left")
    return figure


def explained() -> dict[str, Explanation]:
    """Explain the example pair under each idea, by untrained models."""
    torch.manual_seed(0)  # the decoder's weights
    pairs = {}
    for title, (paradigm, align) in IDEAS.items():
        model = PARADIGMS[paradigm]("offline")
        pool = model.encode_documents(OTHERS)
        pairs[title] = (model.with_alignment(align) if align else model).explain(QUERY, DOCUMENT, pool)
    texts = Corpus(["moon", "aldrin", "gagarin"], [DOCUMENT, *OTHERS])
    dsi = GenerativeRetriever(GENERATIVE["dsi"]("offline", texts))
    return pairs | {"DSI: attention of a decoder": dsi.explain(QUERY, "moon")[0]}
