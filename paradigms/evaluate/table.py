"""Result tables, with one structure for the terminal, Markdown, CSV and the report."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paradigms.evaluate.measures import PerQuery, seeds_interval
from paradigms.evaluate.significance import (
    ALPHA,
    BETTER,
    FALLS,
    RISES,
    STAYS,
    WORSE,
    Comparison,
    compare,
    compare_training,
)
from paradigms.io.files import write_text

MATRIX_COLUMNS = 6  # columns of a difference table, to fit in an 80-column terminal
ZERO = re.compile(r"(?<!\d)0\.")  # the start of a number below 1


@dataclass(frozen=True)
class Cell:
    """A mean over queries, its interval, and its significance mark ("" if not tested).

    before: the untrained system's mean and test arrow, such as "0.713 ↗ "; "" if nothing was trained.
    """

    mean: float
    low: float
    high: float
    mark: str = ""
    before: str = ""

    def __str__(self) -> str:
        return ZERO.sub(".", f"{self.before}{self.mean:.3f}{self.mark} [{self.low:.3f}, {self.high:.3f}]")


@dataclass(frozen=True)
class ResultTable:
    """A table of systems × measures for one stage, "retrieve" or "rerank".

    `note` explains the intervals and marks.
    """

    title: str
    measures: list[str]
    rows: dict[str, dict[str, Cell]]  # system -> measure -> cell
    comparisons: list[Comparison]
    note: str
    pairs: list[Comparison] = field(default_factory=list)  # all pairs of systems, if there are more than two
    training: list[Comparison] = field(default_factory=list)  # trained systems against untrained ones
    effect: str = ""  # by how much training changes the mean of all trained systems, on the first measure

    def best(self, measure: str) -> float:
        return max(cells[measure].mean for cells in self.rows.values())

    @property
    def matrix(self) -> list[tuple[str, list[str]]]:
        """Return each system with its marked differences from all earlier systems, taken from `pairs`."""
        rows: dict[str, list[str]] = {}
        for pair in self.pairs:
            cell = f"{ZERO.sub('.', f'{pair.difference:+.3f}')}{pair.mark}"
            rows.setdefault(pair.system, []).append(cell)
        return list(rows.items())

    @property
    def matrix_note(self) -> str:
        return (
            f"{self.pairs[0].measure}, row − column: {BETTER} better, {WORSE} worse (paired permutation "
            f"test, after Holm's correction for {len(self.pairs)} comparisons)."
        )

    def limits(self, measure: str) -> tuple[float, float]:
        """Return the lowest and highest limits of a measure's intervals, as the scale for drawing them."""
        cells = [cells[measure] for cells in self.rows.values()]
        return min(cell.low for cell in cells), max(cell.high for cell in cells)

    def _repr_markdown_(self) -> str:
        """Return the table for a notebook."""
        return markdown_table(self)


def result_table(
    title: str,
    systems: Mapping[str, PerQuery],
    *,
    baseline: str | None = None,
    primary: Sequence[str] = ("nDCG@10",),
    untrained: Mapping[str, PerQuery] | None = None,
) -> ResultTable:
    """Make a table of means, intervals and significance against the baseline.

    systems: system -> values. With a baseline, the `primary` measures are tested as one family (`compare`).
    With more than two systems, all pairs are also tested on the first of these measures, as another family.
    untrained: the values of trained systems before training, which are compared as a third family.
    """
    if not systems:
        raise ValueError(f"the table {title!r} has no system")
    untrained = untrained or {}
    comparisons = [] if baseline is None else compare(systems, baseline, primary)
    training = compare_training(systems, untrained, primary)
    pairs = compare(systems, None, primary[:1]) if comparisons and len(systems) > 2 else []
    marks = {(row.system, row.measure): row.mark for row in comparisons}
    before = {
        (row.system, row.measure): f"{untrained[row.system].mean(row.measure):.3f} {row.mark} "
        for row in training
    }
    rows: dict[str, dict[str, Cell]] = {}
    for system, results in systems.items():
        rows[system] = {}
        for measure, interval in results.intervals().items():
            key = system, measure
            rows[system][measure] = Cell(*interval, marks.get(key, ""), before.get(key, ""))
    notes = [*_notes(systems, f"{baseline} on {', '.join(primary)}", comparisons, training)]
    effect = ""
    if untrained:
        measure = primary[0]
        changes = [systems[name].by_seed(measure) - row.weighted(measure) for name, row in untrained.items()]
        change = seeds_interval(np.mean(changes, axis=0), groups=next(iter(untrained.values())).groups)
        effect = ZERO.sub(".", "{:+.3f} [{:+.3f}, {:+.3f}]".format(*change))
        these = "the trained system" if len(untrained) == 1 else f"all {len(untrained)} trained systems"
        notes.append(f"Training changes the mean {measure} of {these} by {effect}.")
    names = list(next(iter(rows.values())))
    return ResultTable(title, names, rows, comparisons, " ".join(notes), pairs, training, effect)


def _notes(
    systems: Mapping[str, PerQuery],
    against: str,
    comparisons: Sequence[Comparison],
    training: Sequence[Comparison],
) -> Iterator[str]:
    """Yield the sentences of a table's note. against: the baseline and the measures compared, in words."""
    first = next(iter(systems.values()))
    over = f"{len(first.queries):,} queries"
    if first.groups is not None:
        groups = len(set(first.groups))
        over = f"{groups:,} groups of the means over their queries ({len(first.queries):,} in all)"
    trainings = max(len(next(iter(row.seeds.values()))) if row.seeds else 1 for row in systems.values())
    also = f" and {trainings} training seeds" if trainings > 1 else ""
    yield f"Mean over {over}{also}, with its 95% bootstrap interval."
    if comparisons:
        times = f"{len(comparisons)} comparison{'s' if len(comparisons) > 1 else ''}"
        yield (
            f"{BETTER} better, {WORSE} worse than {against} (paired permutation test, p < {ALPHA:g} after "
            f"Holm's correction for {times})."
        )
    if training:
        yield (
            f"Before an arrow, {', '.join(dict.fromkeys(row.measure for row in training))} of the untrained "
            f"system: {RISES} training made it better, {FALLS} worse, {STAYS} neither (the same test, with a "
            f"Holm's correction for {len(training)} of its own)."
        )
    if first.without_relevant:
        yield f"Left out: {first.without_relevant:,} judged queries without a relevant document."
    for system, results in systems.items():
        if results.missing:
            yield f"{system} returned nothing for {results.missing:,} queries, scored 0."


def rich_table(table: ResultTable) -> Table:
    """Format the table for a terminal, to be printed with rich."""
    grid = Table(
        title=Text(table.title), caption=Text(table.note), caption_justify="left", title_justify="left"
    )
    grid.add_column("system", no_wrap=True)
    for measure in table.measures:
        grid.add_column(Text(measure), justify="right")
    for system, row in table.rows.items():
        cells = []
        for measure, cell in row.items():
            bold = "bold" if cell.mean == table.best(measure) else ""
            text = Text(ZERO.sub(".", cell.before)).append(f"{cell.mean:.3f}{cell.mark or ' '}", bold)
            interval = ZERO.sub(".", f"{cell.low:.3f}–{cell.high:.3f} ")  # five measures in 80 columns
            cells.append(text.append(f"\n{interval}", "dim not bold"))
        grid.add_row(Text(system), *cells)
    return grid


def rich_matrix(table: ResultTable) -> Group:
    """Format `ResultTable.matrix` for an 80-column terminal; column headers are system numbers."""
    numbers = {system: n for n, system in enumerate(table.rows, 1)}
    parts = []
    for start in range(0, len(numbers) - 1, MATRIX_COLUMNS):
        stop = min(start + MATRIX_COLUMNS, len(numbers) - 1)
        grid = Table(collapse_padding=True)
        grid.add_column("")
        for number in range(start, stop):
            grid.add_column(f"− {number + 1}", justify="right", no_wrap=True)
        for system, cells in [(next(iter(numbers)), []), *table.matrix]:
            if cells[start:stop] or start == 0:
                grid.add_row(Text(f"{numbers[system]} {system}"), *cells[start:stop])
        parts.append(grid)
    return Group(*parts, Text(table.matrix_note, "dim italic"))


def markdown_table(table: ResultTable) -> str:
    """Format the table in GitHub's Markdown: title, rows with the best mean in bold, and note."""
    lines = [
        f"**{_escape(table.title)}**",
        "",
        "| system | " + " | ".join(map(_escape, table.measures)) + " |",
        "|---|" + "---:|" * len(table.measures),
    ]
    for system, row in table.rows.items():
        cells = []
        for measure, cell in row.items():
            mean = f"**{cell.mean:.3f}**" if cell.mean == table.best(measure) else f"{cell.mean:.3f}"
            cells.append(f"{cell.before}{mean}{cell.mark} [{cell.low:.3f}, {cell.high:.3f}]")
        lines.append(f"| {_escape(system)} | " + " | ".join(cells) + " |")
    lines += ["", _escape(table.note), ""]
    if table.pairs:
        before = list(map(_escape, [*table.rows][:-1]))
        lines += ["| − | " + " | ".join(before) + " |", "|---|" + "---:|" * len(before)]
        for system, cells in table.matrix:
            padded = cells + [""] * (len(before) - len(cells))
            lines.append(f"| {_escape(system)} | " + " | ".join(padded) + " |")
        lines += ["", _escape(table.matrix_note), ""]
    return "\n".join(lines)


def csv_table(*tables: ResultTable) -> str:
    """Format tables as CSV: one line per system and measure, unrounded; p is empty if not tested."""
    lines: list[list[object]] = []
    for table in tables:
        tests = {(row.system, row.measure): row for row in table.comparisons}
        training = {(row.system, row.measure): row for row in table.training}
        for system, row in table.rows.items():
            for measure, cell in row.items():
                test = tests.get((system, measure))
                tested = (test.difference, test.p, test.p_adjusted) if test else ("",) * 3
                moved = training.get((system, measure))
                trained = (cell.mean - moved.difference, moved.p, moved.p_adjusted) if moved else ("",) * 3
                values = [cell.mean, cell.low, cell.high, cell.mark, *tested, *trained]
                lines.append([table.title, system, measure, *values])
    header = ["stage", "system", "measure", "mean", "low", "high", "mark", "difference", "p", "p_adjusted"]
    header += ["untrained", "p_training", "p_training_adjusted"]
    return _csv(header, lines)


def write_per_query(path: str | Path, stages: Mapping[str, Mapping[str, PerQuery]]) -> None:
    """Write stage -> system -> values to a CSV file with the columns system, stage, query, measure, value."""
    lines: list[list[object]] = [
        [system, stage, query, measure, value]
        for stage, systems in stages.items()
        for system, results in systems.items()
        for measure, values in results.values.items()
        for query, value in zip(results.queries, values.tolist(), strict=True)
    ]
    text = _csv(["system", "stage", "query", "measure", "value"], lines)
    write_text(path, text, errors="replace")


def _csv(header: list[str], lines: list[list[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()


def _escape(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]]|<(?=[a-zA-Z/!?]))", r"\\\1", " ".join(text.split()))
