"""Write results to one self-contained HTML file, with tables, recall curves, costs and token alignments.

The page is rendered from plain data (`Report`); the browser draws alignments from a JSON block. The page's
content security policy forbids all requests.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradigms.evaluate.measures import Interval
from paradigms.evaluate.table import ResultTable
from paradigms.explanation import Explanation
from paradigms.io.files import atomic_folder, contents, write_text
from paradigms.view import card_data, environment, framed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours for colour-blind readers, without yellow, which is too pale for lines.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D")


@dataclass
class AlignmentExample:
    """A query and a document, with an explanation from each system."""

    query_id: str
    document_id: str
    query: str
    document: str
    relevant: bool
    systems: list[Explanation]

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the cards of all systems."""
        return framed(self.systems, self.query, self.document)


@dataclass
class Picture:
    """A figure, or a table alone, with a heading, and the numbers as rows (dicts with identical keys).

    The value of a row's first key names the row.

    name: file name of the figure, without .png.
    """

    name: str
    heading: str
    text: str
    figure: "Figure | None"
    rows: list[dict] = field(default_factory=list)

    @property
    def image(self) -> str:
        """Return the figure as a base64-encoded PNG, or "" if there is none."""
        stream = io.BytesIO()
        if self.figure is not None:
            self.figure.savefig(stream, format="png", dpi=130)
        return base64.b64encode(stream.getvalue()).decode()


@dataclass
class Report:
    """The content of the page: plain data and figures.

    curves: system -> k -> the measure `curve` at k. costs: rows whose first value is the system; the columns
    are all keys of the rows, in order of appearance.
    """

    title: str
    summary: str
    tables: list[ResultTable] = field(default_factory=list)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    costs: list[dict] = field(default_factory=list)
    settings: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    curve: str = "Recall"
    alignments: list[AlignmentExample] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def write_report(path: str | Path, report: Report) -> None:
    """Render the report to one self-contained HTML file, atomically.

    Raises ValueError, naming the query, document and system, if a number is not finite.
    """
    templates = environment(Path(__file__).parent)
    templates.filters["number"] = format_number
    chart = io.BytesIO()
    if any(report.curves.values()):
        recall_picture(report.curves, report.curve).savefig(chart, format="png")
    html = templates.get_template("report.html.j2").render(
        report=report,
        chart=base64.b64encode(chart.getvalue()).decode(),
        cutoffs=sorted({k for curve in report.curves.values() for k in curve}),
        cost_columns=list(dict.fromkeys(key for row in report.costs for key in row)),
        examples=[_example_data(example) for example in report.alignments],
        has_rest=any(system.rest for example in report.alignments for system in example.systems),
    )
    write_text(path, html, errors="replace")


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """Write recall.png and NAME.png for each figure of `report.pictures`, replacing `folder`."""
    figures = {"recall": recall_picture(report.curves, report.curve)}
    figures |= {picture.name: picture.figure for picture in report.pictures if picture.figure}
    with atomic_folder(folder, contents("*.png", marks=["recall.png"])) as fresh:
        for name, figure in figures.items():
            figure.savefig(fresh / f"{name}.png", dpi=120)
    return [folder / f"{name}.png" for name in figures]


def format_number(value: object) -> str:
    """Format a value: 1,234; 22.7 M from a million on; fractions with 3 significant digits."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        return str(value)
    value = int(value) if isinstance(value, Integral) else float(value)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def recall_picture(curves: dict[str, dict[int, float]], measure: str = "Recall") -> "Figure":
    """Draw Recall@k, or another measure, over log k: one line per system, the highest first in the legend."""
    from matplotlib.figure import Figure

    plotted = {system: curve for system, curve in curves.items() if curve}
    if not plotted:
        raise ValueError("no recall curve to draw")
    figure = Figure(figsize=(7.5, max(4.0, 0.5 + 0.24 * len(plotted))), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    lines = []
    for index, (system, curve) in enumerate(plotted.items()):
        ks = sorted(curve)
        colour = PALETTE[index % len(PALETTE)]
        dashes = DASHES[index // len(PALETTE) % len(DASHES)]
        (line,) = axes.plot(ks, [curve[k] for k in ks], color=colour, linestyle=dashes, marker="o", ms=3.5)
        lines.append((curve[ks[-1]], shortened(system, 24), line))
    lines.sort(key=lambda row: -row[0])
    names = [f"{last:.3f} {name}" for last, name, _ in lines]
    _legend(axes, [line for *_, line in lines], names, loc="center left", bbox_to_anchor=(1, 0.5))
    cutoffs = sorted({k for curve in plotted.values() for k in curve})
    axes.set_xscale("log")
    axes.set_xticks(cutoffs, [str(k) for k in cutoffs])
    axes.minorticks_off()
    axes.set(xlabel="k", ylabel=f"{measure}@k")
    axes.grid(color="0.92")
    return figure


def cost_picture(
    quality: Mapping[str, Mapping[str, Interval]],
    costs: Mapping[str, Mapping[str, float | None]],
    measure: str,
) -> "Figure":
    """Draw quality against cost, with a row of panels per kind of query and a column per cost.

    quality: kind of query → system → mean with its interval. costs: name of a cost → system → value; systems
    without a value are left out. A grey line joins the systems that are better than all cheaper systems.
    """
    from matplotlib.figure import Figure

    names = dict.fromkeys(system for systems in quality.values() for system in systems)
    looks = {
        name: (PALETTE[n % len(PALETTE)], MARKERS[n // len(PALETTE) % len(MARKERS)])
        for n, name in enumerate(names)
    }
    height = max(3.2 * len(quality), 0.5 + 0.21 * len(names))
    figure = Figure(figsize=(4.4 * len(costs) + 1.6, height), dpi=110, layout="constrained")
    panels = figure.subplots(len(quality), len(costs), squeeze=False, sharex="col", sharey="row")
    plotted = {}
    for axes, cost in zip(panels[-1], costs, strict=True):
        axes.set_xlabel(cost)
    for row, (kind, systems) in zip(panels, quality.items(), strict=True):
        for axes, values in zip(row, costs.values(), strict=True):
            points = sorted((value, name) for name in systems if (value := values.get(name)))
            means = [systems[name].mean for _, name in points]
            improving = [n for n, mean in enumerate(means) if all(mean > before for before in means[:n])]
            cheapest = [points[n][0] for n in improving]
            axes.step(cheapest, [means[n] for n in improving], where="post", color="0.8", zorder=0)
            for value, name in points:
                mean, low, high = systems[name]
                colour, marker = looks[name]
                bars = [[mean - low], [high - mean]]
                plotted[name] = axes.errorbar(
                    value, mean, bars, color=colour, marker=marker, ms=6, elinewidth=0.8, linestyle="none"
                )
            axes.set_xscale("log")
            axes.grid(color="0.92")
            axes.set_title(shortened(kind, 60), fontsize=9, loc="left", parse_math=False)
        row[0].set_ylabel(measure)
    present = [name for name in names if name in plotted]
    labels = [shortened(name, 24) for name in present]
    _legend(figure, [plotted[name] for name in present], labels, loc="outside right center", fontsize=9)
    return figure


def _legend(owner: Any, handles: list[Any], labels: list[str], **place: Any) -> None:
    """Add a legend to a figure or axes; labels are shown as they are, without mathematics."""
    for text in owner.legend(handles, labels, frameon=False, **place).get_texts():
        text.set_parse_math(False)


def shortened(text: str, most: int) -> str:
    """Shorten a text to one line of `most` characters, without lone surrogates, which matplotlib rejects."""
    text = " ".join(text.encode("utf-8", errors="replace").decode().split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _example_data(example: AlignmentExample) -> dict:
    """Convert an example for the page's JSON block."""
    where = f"query {example.query_id!r}, document {example.document_id!r}"
    return vars(example) | {"systems": [card_data(system, where) for system in example.systems]}
