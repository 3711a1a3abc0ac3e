"""Is the index or the query encoder the limit? Compare achieved and achievable quality by bytes.

Every finished encoder of compare.py is measured untrained and trained, at full width and on the first
principal axes. Two shares of test queries are reported: the share that some query vectors answer, that is,
for which they rank every relevant document above all others; and the share that the model's own query vectors
answer (`python -m paradigms oracle`). For some queries, neither such query vectors nor a certificate that
none exist is found; the first share is then a range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from studies.settings import at_least, different, launch, refusing


@dataclass
class Settings:
    """Settings for the results of compare.py, dimensions, and queries."""

    results: list[str] = field(default_factory=lambda: ["results/compare-pydocs"])
    """folders that compare.py wrote, one per collection"""
    systems: list[str] = field(default_factory=list)
    """systems in these folders; empty: all systems that align each query token with one document token"""
    dims: list[int] = field(default_factory=lambda: [4, 16, 64])
    """numbers of dimensions to measure, besides the full width"""
    queries: int = 100
    """judged test queries, drawn at random"""
    output: str = "results/oracle"

    def __post_init__(self) -> None:
        different(self, "results", "dims")
        at_least(self, queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from compare import reopened
from fewer_bytes import principal_axes
from matplotlib.figure import Figure
from studies import systems
from studies.pages import Rows, Section, publish

from paradigms import Paradigm, load
from paradigms.cli.oracle import Outcome, check, drawn, outcomes, proportion, stored
from paradigms.data import Split
from paradigms.evaluate import seeds_interval
from paradigms.find import kinds, open_index
from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal
from paradigms.store import Store

PANEL = (3.2, 2.8)  # size of a panel in inches
KEYS = ("bytes", "possible", "neither found", "reached", "R-precision", "queries", "verified")


def main(settings: Settings) -> None:
    console, folder, rows = Terminal(), Path(settings.output), Rows()
    for results in map(Path, settings.results):
        with refusing():
            compared, collection = reopened(results)
        data = systems.prepare(collection, compared)
        if data.own or compared.passages:
            raise SystemExit(f"{results}: passages, and queries that are documents, are not supported")
        for name in settings.systems or compared.chosen:
            place = results / name
            if not (place / "costs.json").is_file() or not (place / "index").is_dir():
                continue
            trained = systems.training_settings(compared.chosen[name], compared, 0)
            endings = [systems.UNTRAINED, ""] if trained else [""]
            files = {ending: folder / collection.name / f"{name}{ending}.json" for ending in endings}
            asked = {"dims": settings.dims, "queries": settings.queries}
            for ending in endings:
                if files[ending].is_file() and read_json(files[ending])["asked"] == asked:
                    continue
                if ending:
                    torch.manual_seed(compared.seeds[0])
                    model = systems.built(compared.chosen[name], compared).eval()
                else:
                    model = load(place / "checkpoint")
                try:
                    stored_ones = open_index(place / "index").store
                    check(model, stored_ones.longest)
                except ValueError as error:
                    console.print(f"{name} is left out: {error}", soft_wrap=True)
                    break
                corpus = collection.corpus
                store = (
                    Store.build(kinds.exact(), model, corpus.ids, corpus, progress=True)
                    if ending or compared.index != "exact"
                    else stored_ones
                )
                made = list(measured(store, model, data.test, f"{name}{ending}", settings))
                write_json(files[ending], {"asked": asked, "rows": made})
            else:
                for ending, file in files.items():
                    moved = not ending and bool(trained or compared.chosen[name].checkpoint)
                    same = {"collection": collection.name, "system": name, "trained": moved}
                    rows += [same | row for row in read_json(file)["rows"]]
    if not rows:
        raise SystemExit("no finished system has an index: run compare.py first, or choose others")
    sections = {
        "oracle": Section(
            "Quality possible and reached",
            "possible: the share of queries that some query vectors answer. reached: that the model's own "
            "answer. Shaded, and neither found: neither query vectors nor a certificate were found.",
            rows=[told(row) for row in rows],
            figure=draw(rows),
        )
    }
    publish(settings, "Index or query encoder", text(rows), sections)


def measured(
    store: Store, model: Paradigm, test: Split, name: str, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Measure a system at each number of dimensions below its full width, and at full width.

    Query vectors that answer a query on the first principal axes are tried on more axes.
    """
    known: list[np.ndarray | None] = []
    for dim in (*sorted(dim for dim in settings.dims if dim < store.dim), store.dim):
        axes = principal_axes(store, dim) if dim < store.dim else None
        tokens = stored(store, axes)
        asked = drawn(test, tokens.documents, settings.queries)
        with progress_bar() as bar:
            work = outcomes(tokens, model, asked, known)
            made = list(bar.track(work, description=f"{name}, {dim} numbers", total=len(asked)))
        if axes is not None:
            found = [one.answer.query for one in made]
            known = [None if query is None else query @ axes.T for query in found]
        yield {"h": dim, **row_of(made, store.bytes_per_document * dim / store.dim)}


def row_of(made: Sequence[Outcome], size: float) -> dict[str, Any]:
    """Make a row with two shares of queries, answerable and answered by the system, each with an interval."""
    possible, neither = ([one.answer.answerable is value for one in made] for value in (True, None))
    tried = [one.verified for one in made if one.verified is not None]
    values = (
        size,
        proportion(possible),
        sum(neither) / len(made),
        proportion([one.reached for one in made]),
        seeds_interval(np.array([[one.precision for one in made]])),
        len(made),
        [sum(tried), len(tried)],
    )
    return dict(zip(KEYS, values, strict=True))


def told(row: dict[str, Any]) -> dict[str, Any]:
    """Format a row, without the columns that `text` summarises."""
    triples = ("possible", "reached", "R-precision")
    shares = {key: "{:.2f} [{:.2f}, {:.2f}]".format(*row[key]) for key in triples}
    system = f"{row['system']}, {'trained' if row['trained'] else 'untrained'}"
    return {
        key: value
        for key, value in (row | shares | {"system": system}).items()
        if key not in ("trained", "queries", "verified")
    }


def text(rows: Rows) -> str:
    """Summarise what all rows share: the queries, the columns, and how many results were verified."""
    held, tried = np.sum([row["verified"] for row in rows], axis=0)
    counts = sorted({row["queries"] for row in rows})
    return (
        f"Shares of {' or '.join(map(str, counts))} queries with all relevant documents above all others, by "
        f"numbers h of a vector and bytes of a document, with 95% intervals over queries. {held} of {tried} "
        "queries and certificates that were tried hold in rational arithmetic."
    )


def draw(rows: Rows) -> Figure:
    """Plot both shares against bytes per document: a row of panels per collection, a column per system."""
    collections, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("collection", "system"))
    size = PANEL[0] * len(names), PANEL[1] * len(collections) + 0.4
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(collections), len(names), squeeze=False, sharey=True)
    for line, collection in zip(panels, collections, strict=True):
        for panel, name in zip(line, names, strict=True):
            for trained in (False, True):
                here = [row for row in rows if (row["collection"], row["system"]) == (collection, name)]
                here = sorted((r for r in here if r["trained"] is trained), key=lambda r: r["bytes"])
                if not here:
                    continue
                x, colour = [row["bytes"] for row in here], f"C{int(trained)}"
                kind = "trained" if trained else "untrained"
                low = [row["possible"][0] for row in here]
                high = [row["possible"][0] + row["neither found"] for row in here]
                panel.plot(x, low, "o-", color=colour, label=f"possible, {kind}", markersize=4)
                panel.fill_between(x, low, high, color=colour, alpha=0.15)
                shares = np.array([row["reached"] for row in here])
                ends = np.abs(shares[:, 1:] - shares[:, :1]).T
                panel.errorbar(
                    x,
                    shares[:, 0],
                    ends,
                    fmt="s:",
                    color=colour,
                    label=f"reached, {kind}",
                    markersize=4,
                    capsize=2,
                )
            if not panel.lines:  # this system was not measured on this collection
                panel.set_axis_off()
                continue
            panel.set(title=f"{name}, {collection}", xscale="log", ylim=(-0.03, 1.03))
            panel.xaxis.set_minor_formatter("")  # labels between powers of ten would overlap
            panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("bytes per document")
    for line in panels:
        line[0].set_ylabel("share of queries")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
