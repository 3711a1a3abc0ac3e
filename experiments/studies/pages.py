"""Show a study's sections of rows and figures in the terminal, as files, and on one HTML page."""

import base64
import csv
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich import box
from rich.table import Table
from studies.settings import DIVISIONS

from paradigms.evaluate import Interval, seeds_interval
from paradigms.io.checks import json_or_empty
from paradigms.io.command_line import folder_name
from paradigms.io.device import processor
from paradigms.io.files import atomic_text, replace_file, write_json, write_text
from paradigms.io.flags import spelled
from paradigms.io.terminal import Terminal
from paradigms.view.report import format_number

if TYPE_CHECKING:
    from accelerate import Accelerator
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
STUDY = "study.json"
SPENT = "spent.json"  # the CPU minutes of a study that may not have ended
VALUES = "values.npz"  # the values behind a study's verdicts: SECTION/NAME -> array
PATH = re.compile(r"[\w.+~-]*/[\w./+~-]*\w")
Measured = dict[str, Any]  # measurements of one seed or model, as in JSON
Rows = list[dict[str, Any]]
_earlier: dict[Path, float] = {}  # file -> CPU minutes of earlier processes


@dataclass
class Section:
    """A heading, a paragraph, rows (all with the same keys) and a figure, for the page and the console.

    A cell with values [seeds, queries] is shown as the mean with an interval. values: what its verdicts rest
    on, by name (`claims.Study.judged_values`).
    """

    heading: str
    text: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    figure: "Figure | None" = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = [{key: cell(value) for key, value in row.items()} for row in self.rows]

    @cached_property
    def image(self) -> str:
        """The figure as a base64 SVG, which is deterministic, or "" if there is no figure."""
        stream = io.BytesIO()
        if self.figure is not None:
            import matplotlib

            with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.heading}):
                self.figure.savefig(stream, format="svg", metadata={"Date": None})
        return base64.b64encode(stream.getvalue()).decode()


def print_sections(sections: Iterable[Section]) -> None:
    """Print the sections to the console, without figures; name the columns that do not fit."""
    console = Terminal()
    for section in sections:
        console.print(f"\n{section.heading}", style="bold")
        if section.text:
            console.print(section.text, highlight=False)
        names = list(section.rows[0])
        shown = len(names)
        wide = console.options.update(width=1_000)
        while shown > 1:
            needed = console.measure(table_of(section.rows, shown), options=wide)
            if needed.minimum <= console.width:
                break
            shown -= 1
        console.print(table_of(section.rows, shown))
        if names[shown:]:
            console.print(f"Also in the report: {', '.join(names[shown:])}", highlight=False)


def table_of(rows: Sequence[Mapping[str, Any]], columns: int) -> Table:
    """Make a table of the first columns. In a narrow one, headings and text wrap, but numbers do not."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[format_number(value) for value in row.values()][:columns] for row in rows]
    for name, column in zip(rows[0], zip(*cells, strict=True), strict=False):
        side: Literal["left", "right"] = "right" if table.columns else "left"
        table.add_column(name, justify=side, min_width=min(max(map(len, column)), 12), overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def markdown_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a Markdown table with rounded numbers. All rows have the same keys."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([*map(format_number, row.values())] for row in rows)]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def write_sections(folder: Path, sections: Mapping[str, Section]) -> None:
    """Write each section's rows as NAME.csv and NAME.json, rounded as NAME.md, and the figure as NAME.svg."""
    for name, section in sections.items():
        write_json(folder / f"{name}.json", list(section.rows))
        with atomic_text(folder / f"{name}.csv") as stream:
            writer = csv.DictWriter(stream, list(section.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(section.rows)
        write_text(folder / f"{name}.md", markdown_rows(section.rows))
        if section.figure:
            write_text(folder / f"{name}.svg", base64.b64decode(section.image).decode())


def write_page(
    path: Path, title: str, summary: str, sections: Iterable[Section], settings: Mapping[str, Any]
) -> None:
    """Write all sections to one HTML file that loads no other files."""
    import jinja2

    template = Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(template)
    content = {"title": title, "summary": summary, "sections": list(sections), "settings": settings}
    write_text(path, page.render(**content, shown=format_number))


def publish(
    settings: Any,
    title: str,
    summary: str,
    sections: Mapping[str, Section],
    accelerator: "Accelerator | None" = None,
    minutes: float | None = None,
) -> None:
    """Write a study's files: sections, an HTML page, values and study.json. Only process 0 does.

    study.json contains all rows and the command, for `fill_pages.py`; values.npz what the verdicts of claims
    rest on, for `judge.py`. Sections without rows are left out.
    settings: a dataclass with an output folder; headings name its `division` of queries, if it has one.
    minutes: CPU minutes of the study; None means those of this process, its children, and earlier runs.
    """
    from paradigms.train.script import environment

    if os.environ.get("RANK", "0") != "0":
        return
    folder = Path(settings.output)
    where = environment(accelerator) if accelerator else {}
    sections = {name: section for name, section in sections.items() if section.rows}
    if division := DIVISIONS.get(getattr(settings, "division", "")):
        sections = {name: replace(s, heading=f"{s.heading}, {division}") for name, s in sections.items()}
    write_sections(folder, sections)
    if values := {f"{name}/{key}": of for name, s in sections.items() for key, of in s.values.items()}:
        temporary = folder / f".{VALUES}.partial"
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, **dict[str, Any](values))
        replace_file(temporary, folder / VALUES)
    if where:
        write_json(folder / "environment.json", where)
    write_json(folder / STUDY, study(settings, title, summary, sections, folder / STUDY, minutes))
    page = folder / "report.html"
    write_page(page, title, summary, sections.values(), asdict(settings) | where)
    print_sections(sections.values())
    Terminal().print(f"{summary}\nReport: {page}", soft_wrap=True)
    if accelerator and accelerator.trackers:
        import matplotlib.pyplot  # noqa: F401  wandb.Image reads it as an attribute of matplotlib
        import wandb

        run = accelerator.get_tracker("wandb").tracker
        run.log({name: wandb.Image(part.figure) for name, part in sections.items() if part.figure})


def study(
    settings: Any,
    title: str,
    summary: str,
    sections: Mapping[str, Section],
    path: Path,
    minutes: float | None = None,
) -> Measured:
    """Collect everything that a page may quote from a study, and record its CPU minutes (`spent`).

    path: study.json. minutes: as in `publish`.
    """
    if minutes is None:
        minutes = spent(path.parent)
    name = getattr(settings, "collection", "")
    names = [name] if name else getattr(settings, "collections", [])
    return {
        "title": title,
        "summary": without_paths(summary),
        "collection": ", ".join(map(folder_name, names)),
        "command": _command(sys.argv),
        "processor": processor(),
        "minutes": round(minutes, 1),
        "sections": {
            name: {"heading": s.heading, "text": s.text, "rows": list(s.rows)} for name, s in sections.items()
        },
    }


def spent(folder: Path) -> float:
    """Record the CPU minutes of a study's runs in its folder, and return them, this process's included.

    A run that did not end counts up to its last call. Other processes of a launch are not counted.
    """
    file = (folder / SPENT).resolve()
    if file not in _earlier:
        _earlier[file] = (json_or_empty(file) or json_or_empty(folder / STUDY)).get("minutes", 0.0)
    minutes = _earlier[file] + sum(os.times()[:4]) / 60
    write_json(file, {"minutes": minutes})
    return minutes


def _command(argv: Sequence[str]) -> str:
    """Format the command line for a page, without the output folder, the tracker and local paths."""
    script, *arguments = spelled(argv, "-")
    place = Path(script).resolve()
    folder = "experiments/benchmarks" if place.parent.name == "benchmarks" else "experiments"
    words = [f"{folder}/{place.name}"]
    skipped = False
    for word in arguments:
        if skipped or word.partition("=")[0] in ("--output", "--tracker"):
            skipped = not skipped and "=" not in word
            continue
        words.append(without_paths(word))
    return shlex.join(words)


def without_paths(text: str) -> str:
    """Replace each existing local path in the text with path/to/NAME, except files of this repository."""

    def named(match: re.Match[str]) -> str:
        path = Path(match[0])
        if path.resolve().is_relative_to(ROOT / "experiments"):
            return path.resolve().relative_to(ROOT).as_posix()
        return f"path/to/{path.name}" if path.exists() else match[0]

    return PATH.sub(named, text)


def resampled(seeds: int) -> str:
    return "seeds and queries" if seeds > 1 else "queries alone (one seed)"


def cell(value: Any) -> Any:
    """Replace values [seeds, queries] with their mean and interval; return other values unchanged."""
    return interval_text(seeds_interval(value)) if isinstance(value, np.ndarray) else value


def interval_text(interval: Interval, sign: str = "") -> str:
    """Format an interval as "mean [low, high]". sign: "+" for differences."""
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"
