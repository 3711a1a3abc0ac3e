"""Is the index or the query encoder the limit? Compare achieved and achievable quality by bytes.

Every finished encoder of compare.py is measured untrained and trained, at full width and on the first
principal axes. Two shares of test queries are reported: the share that some query vectors answer, that is,
for which they rank every relevant document above all others; and the share that the model's own query vectors
answer (`python -m paradigms oracle`). For some queries, neither such query vectors nor a certificate that
none exist is found; the first share is then a range. Only queries with several relevant documents count: one
document of length 1 is answered by its own vector, with any number of dimensions.
"""

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
    queries: int = 100
    """test queries with several relevant documents, drawn at random"""
    output: str = "results/oracle"

    def __post_init__(self) -> None:
        different(self, "results")
        at_least(self, queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from compare import reopened
from fewer_bytes import principal_axes
from studies import systems, trainings
from studies.model_runs import measured_once
from studies.pages import Rows, Section, publish

from paradigms import Paradigm, load
from paradigms.cli.oracle import Outcome, check, drawn, outcomes, proportion, stored
from paradigms.data import Split
from paradigms.evaluate import seeds_interval
from paradigms.find import kinds, open_index
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal
from paradigms.store import Store
from paradigms.train.script import content

DIMS = [4, 16, 64]  # measured besides the full width, in increasing order
FEWEST = 2  # relevant documents of a measured query


class Unsuitable(ValueError):
    """A system for which the oracle has no answer."""


def main(settings: Settings) -> None:
    rows = [row for results in map(Path, settings.results) for row in rows_of(results, settings)]
    if not rows:
        raise SystemExit("no finished system has an index and suitable queries: run compare.py first")
    columns = (
        "possible: the share of queries that some query vectors answer. reached: that the model's own "
        "answer. neither found: neither query vectors nor a certificate were found."
    )
    section = Section("Quality possible and reached", columns, [told(row) for row in rows])
    publish(settings, "Index or query encoder", text(rows), {"oracle": section})


def rows_of(results: Path, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the rows of every finished system of a comparison, untrained and trained."""
    with refusing():
        compared, collection = reopened(results)
    data = systems.prepare(collection, compared)
    if data.document_queries or compared.passages:
        raise SystemExit(f"{results}: passages, and queries that are documents, are not supported")
    request = {"dims": DIMS, "queries": settings.queries, "content": collection.fingerprint}
    for name in settings.systems or compared.chosen:
        if not (results / name / "costs.json").is_file() or not (results / name / "index").is_dir():
            continue
        system = compared.chosen[name]
        trained = bool(trainings.training_settings(system, compared, 0))
        files = {"checkpoint": "checkpoint", "index": "index/manifest.json"}  # with checksums of all files
        question = request | content(**{part: str(results / name / file) for part, file in files.items()})
        for untrained in (True, False) if trained else (False,):
            try:
                run = f"{name}{trainings.UNTRAINED * untrained}"
                file = Path(settings.output) / results.resolve().name / f"{run}.json"
                measure = partial(measured_run, results, name, untrained, data, settings)
                measured_rows = measured_once(file, question, measure)
            except Unsuitable as error:
                Terminal().print(f"{name} is left out: {error}", soft_wrap=True)
                break
            moved = not untrained and bool(trained or system.checkpoint)
            same = {"collection": collection.name, "system": name, "trained": moved}
            yield from (same | row for row in measured_rows)


def measured_run(
    results: Path, name: str, untrained: bool, data: systems.ComparisonData, settings: Settings
) -> list[dict[str, Any]]:
    """Measure a system of a comparison. Raises Unsuitable if its alignment has no oracle."""
    compared = data.settings
    corpus = data.collection.corpus
    model: Any
    if untrained:
        torch.manual_seed(compared.seeds[0])
        model = trainings.built(compared.chosen[name], compared).eval()
    else:
        model = load(results / name / "checkpoint")
    try:
        store = open_index(results / name / "index").store
        check(model, store.longest)
    except ValueError as error:
        raise Unsuitable(str(error)) from error
    if untrained or compared.index != "exact":
        store = Store.build(kinds.exact(), model, corpus.ids, corpus, progress=True)
    return list(measure_dimensions(store, model, data.test, name, settings))


def measure_dimensions(
    store: Store, model: Paradigm, test: Split, name: str, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Measure a system at each number of dimensions below its full width, and at full width.

    Query vectors that answer a query on the first principal axes are tried on more axes.
    """
    starts: list[np.ndarray | None] = []
    for dim in (*(dim for dim in DIMS if dim < store.dim), store.dim):
        axes = principal_axes(store, dim) if dim < store.dim else None
        tokens = stored(store, axes)
        queries = drawn(test, tokens.documents, settings.queries, FEWEST)
        if not queries:
            raise Unsuitable(f"no query has {FEWEST} relevant documents")
        with progress_bar() as bar:
            work = outcomes(tokens, model, queries, starts)
            answers = list(bar.track(work, description=f"{name}, {dim} numbers", total=len(queries)))
        if axes is not None:
            vectors = [one.answer.query for one in answers]
            starts = [None if query is None else query @ axes.T for query in vectors]
        yield {"h": dim, **row_of(answers, store.bytes_per_document * dim / store.dim)}


def row_of(answers: Sequence[Outcome], size: float) -> dict[str, Any]:
    """Make a row with two shares of queries, answerable and answered by the system, each with an interval."""
    possible, neither = ([one.answer.answerable is value for one in answers] for value in (True, None))
    tried = [one.verified for one in answers if one.verified is not None]
    row = {"bytes": size, "possible": proportion(possible), "neither found": sum(neither) / len(answers)}
    row["reached"] = proportion([one.reached for one in answers])
    row["R-precision"] = seeds_interval(np.array([[one.precision for one in answers]]))
    return row | {"queries": len(answers), "verified": [sum(tried), len(tried)]}


def told(row: dict[str, Any]) -> dict[str, Any]:
    """Format a row, without the columns that `text` summarises."""
    triples = ("possible", "reached", "R-precision")
    shares = {key: "{:.2f} [{:.2f}, {:.2f}]".format(*row[key]) for key in triples}
    system = f"{row['system']}, {'trained' if row['trained'] else 'untrained'}"
    left_out = ("trained", "queries", "verified")
    return {key: of for key, of in (row | shares | {"system": system}).items() if key not in left_out}


def text(rows: Rows) -> str:
    """Summarise what all rows share: the queries, the columns, and how many results were verified."""
    verified, tried = np.sum([row["verified"] for row in rows], axis=0)
    counts = sorted({row["queries"] for row in rows})
    return (
        f"Shares of {' or '.join(map(str, counts))} queries, with several relevant documents each, that rank "
        "these above all others, by numbers h of a vector and bytes of a document, with 95% intervals over "
        f"queries. {verified} of "
        f"{tried} queries and certificates that were tried hold in rational arithmetic."
    )
