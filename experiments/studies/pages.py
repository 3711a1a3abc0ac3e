"""Figures, tables and one self-contained HTML page for the experiments on theory, and their tracker."""

from __future__ import annotations

import base64
import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from studies.shared_settings import DIVISIONS, Tracker

from paradigms.data import Split, hold_out
from paradigms.evaluate import Interval
from paradigms.evaluate.claims import UNDECIDED, Claim, judge
from paradigms.evaluate.report import format_number
from paradigms.io.files import atomic_text, write_json, write_text
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal

if TYPE_CHECKING:
    from accelerate import Accelerator
    from matplotlib.figure import Figure

Measured = dict[str, Any]  # of one seed or model, as JSON holds it
Rows = list[dict[str, Any]]
Undecided = tuple[str, str, str]  # of a claim that nothing here can test: place, sentence, what it would take

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9rem; display: block; overflow-x: auto }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
img { max-width: 100%; height: auto }
</style>
<h1>{{ title }}</h1><p>{{ summary }}</p>
{% for section in sections %}<h2>{{ section.heading }}</h2>
{% if section.text %}<p>{{ section.text }}</p>{% endif %}
{% for name in section.figures %}<img alt="{{ name }}" src="data:image/png;base64,{{ images[name] }}">
{% endfor %}
{% if section.rows %}<table><tr>{% for key in section.rows[0] %}<th>{{ key }}</th>{% endfor %}</tr>
{% for row in section.rows %}<tr>{% for value in row.values() %}<td>{{ shown(value) }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}{% endfor %}
<h2>Settings</h2>
<table>{% for key, value in settings.items() %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}</table></html>
"""


@dataclass
class Section:
    """A heading, a paragraph, rows (all with the same keys) and names of figures, on page and console."""

    heading: str
    text: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    figures: list[str] = field(default_factory=list)


def write_page(
    folder: Path,
    title: str,
    summary: str,
    sections: Sequence[Section],
    figures: Mapping[str, Figure],
    settings: Mapping[str, Any],
) -> Path:
    """Write every figure as NAME.png and the page that embeds them as report.html; returns its path."""
    import jinja2

    images = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        temporary = folder / f".{name}.{os.getpid()}.partial"
        temporary.write_bytes(buffer.getvalue())
        os.replace(temporary, folder / f"{name}.png")
        images[name] = base64.b64encode(buffer.getvalue()).decode()
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)
    page = template.render(
        title=title, summary=summary, sections=sections, images=images, settings=settings, shown=format_number
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def tracked(sequence: Sequence[Any], name: str) -> Iterator[Any]:
    """The sequence under a progress bar of this name; none without a name."""
    with progress_bar(bool(name)) as progress:
        yield from progress.track(sequence, description=name)


def print_sections(sections: Sequence[Section]) -> None:
    """The same sections on the console, without figures."""
    console = Terminal()
    for section in sections:
        console.print(f"\n{section.heading}", style="bold")
        if section.text:
            console.print(section.text, highlight=False)
        if section.rows:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            cells = [[format_number(value) for value in row.values()] for row in section.rows]
            for position, key in enumerate(section.rows[0]):
                widest = max(len(row[position]) for row in cells)
                side = "right" if position else "left"
                # In a narrow terminal headings and text fold, numbers do not.
                table.add_column(key, justify=side, min_width=min(widest, 12), overflow="fold")
            for row in cells:
                table.add_row(*row)
            console.print(table)


def track(
    tracker: Tracker,
    run: str,
    settings: Mapping[str, Any],
    numbers: Mapping[str, float],
    images: Iterable[Path],
    folder: Path,
) -> None:
    """Send the numbers and images of a finished run to W&B, whose own files go to `folder`."""
    if tracker == "none":
        return
    import wandb

    from paradigms.train.tracking import wandb_or_offline

    def begin(options: dict[str, Any]) -> wandb.Run:
        return wandb.init(project="retrieval-paradigms", name=run, config=dict(settings), **options)

    session = wandb_or_offline(begin, folder)
    session.log({**numbers, **{image.stem: wandb.Image(str(image)) for image in images}})
    session.finish()


def finish(
    settings: Any,
    run: str,
    title: str,
    summary: str,
    results: Mapping[str, Any],
    sections: Sequence[Section],
    figures: Mapping[str, Figure],
    numbers: Mapping[str, float],
    told: int | None = None,
) -> None:
    """Print the first `told` sections, or all; write results.json, the figures and the page; track `numbers`.

    settings: a dataclass with an output folder and a tracker.
    """
    given = {key: str(value) for key, value in asdict(settings).items()}
    print_sections(sections[:told])
    write_json(settings.output / "results.json", dict(results) | {"settings": given})
    page = write_page(settings.output, title, summary, sections, figures, given)
    images = [settings.output / f"{name}.png" for name in figures]
    track(settings.tracker, run, given, numbers, images, settings.output)
    Terminal().print(f"\n{summary}\n{page}", soft_wrap=True)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the same keys as path.csv and path.json, with all digits, and path.md, as people read it."""
    write_json(path.with_suffix(".json"), list(rows))
    with atomic_text(path.with_suffix(".csv")) as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([*map(format_number, row.values())] for row in rows)]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    write_text(path.with_suffix(".md"), "".join(f"| {' | '.join(line)} |\n" for line in cells))


def verdict_rows(claims: Sequence[Claim], undecided: Sequence[Undecided] = ()) -> Rows:
    """A row for each claim, which are one family of tests, and for each one that no run here can decide."""
    rows: Rows = [verdict.row for verdict in judge(claims)]
    for place, sentence, needs in undecided:
        row = {"claim": f"“{sentence}” ({place})"}
        row |= dict.fromkeys(("quantity", "printed", "measured", "p (Holm)", "sample"), "–")
        rows.append(row | {"verdict": f"{UNDECIDED}: it takes {needs}"})
    return rows


def verdict_lines(sections: Iterable[Section]) -> str:
    """Every verdict of a page in one line of Markdown."""
    rows = [row for section in sections for row in section.rows if "verdict" in row]
    return "".join(
        f"- {row['verdict']} · {row['quantity']}: {row['measured']} (printed {row['printed'] or '–'}; "
        f"{row['sample']}) · {row['claim']}\n"
        for row in rows
    )


def publish(
    settings: Any,
    title: str,
    summary: str,
    sections: Mapping[str, Section],
    figures: Mapping[str, Figure],
    accelerator: Accelerator,
) -> None:
    """Each section's rows as NAME.csv, NAME.json and NAME.md, the figures as PNG, and all on one page; the
    verdicts of claims in verdicts.md, one a line.

    settings: a dataclass with an output folder; a `division` of queries is said in each heading.
    """
    from paradigms.train.job import environment

    if division := DIVISIONS.get(getattr(settings, "division", "")):
        sections = {
            name: replace(section, heading=f"{section.heading}, {division}")
            for name, section in sections.items()
        }

    folder, where = Path(settings.output), environment(accelerator)
    for name, section in sections.items():
        write_rows(folder / name, section.rows)
    if lines := verdict_lines(sections.values()):
        write_text(folder / "verdicts.md", lines)
    write_json(folder / "environment.json", where)
    page = write_page(folder, title, summary, list(sections.values()), figures, asdict(settings) | where)
    print_sections(list(sections.values()))
    Terminal().print(f"{summary}\nReport: {page}", soft_wrap=True)
    if accelerator.trackers:
        import wandb

        run = accelerator.get_tracker("wandb").tracker
        run.log({name: wandb.Image(str(folder / f"{name}.png")) for name in figures})


def shown(interval: Interval, sign: str = "") -> str:
    """mean [low, high]; sign: "+" for differences."""
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def some_queries(split: Split, count: int) -> Split:
    """`count` of the split's queries, drawn by their ids alone; 0: all."""
    if not 0 < count < len(split.queries):
        return split
    return hold_out(split, count / len(split.queries))[1]
