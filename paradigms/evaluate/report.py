"""Results -> one self-contained HTML file: tables, recall curves, costs, and A between tokens.

The page is rendered from plain data (`Report`); the alignment view is drawn in the browser from a JSON block.
The page's content security policy forbids all requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, log
from numbers import Integral, Real
from pathlib import Path

import jinja2
import numpy as np

from paradigms.evaluate.table import ResultTable
from paradigms.io.files import write_text

# Okabe and Ito's colours, which colour-blind people can tell apart, without yellow, too pale for lines.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


@dataclass
class SystemAlignment:
    """One system's A for one (document, query): what `rel` sums, by token.

    links: the nonzero entries of A as (i, j, s, a): document token, query token, S[i, j], A[i, j]. rel = 1/Z
    Σ s·a + rest. reads: what A may read. A salience is one weight per token, or None.
    """

    system: str
    reads: str
    query_tokens: list[str]
    document_tokens: list[str]
    links: list[tuple[int, int, float, float]]
    Z: float
    rel: float
    query_salience: list[float] | None = None
    document_salience: list[float] | None = None
    rest: float = 0.0  # the part of rel that belongs to no pair


@dataclass
class AlignmentExample:
    query_id: str
    document_id: str
    query: str
    document: str
    relevant: bool
    systems: list[SystemAlignment]


@dataclass
class Report:
    """Everything that the page shows, as plain data.

    curves: system -> k -> the measure `curve` at k. Each dict of `costs` is a row whose first key names the
    system; the columns are all keys in order of appearance.
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


def write_report(path: str | Path, report: Report) -> None:
    """Render the report to one self-contained HTML file, atomically.

    ValueError for a link to a token that does not exist, a salience of the wrong length or a number that is
    not finite; it names query, document and system.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    compact = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}
    environment.policies["json.dumps_kwargs"] = compact
    page = environment.get_template("report.html.j2").render(
        report=report,
        chart=recall_chart(report.curves) if any(report.curves.values()) else None,
        cost_columns=list(dict.fromkeys(key for row in report.costs for key in row)),
        examples=[_example_data(example) for example in report.alignments],
        has_rest=any(system.rest for example in report.alignments for system in example.systems),
    )
    write_text(path, page, errors="replace")


def format_number(value: object) -> str:
    """A readable value: 1,234; 22.7 M from a million on; fractions to 3 significant digits."""
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


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions in [low, high] or beyond, at least `gap` apart, nearest to the given ones in squares."""
    from scipy.optimize import isotonic_regression

    given = np.asarray(positions, dtype=float)
    order = np.argsort(given, kind="stable")
    offsets = gap * np.arange(len(given))
    room = max(low, high - gap * (len(given) - 1))
    apart = np.empty_like(given)
    apart[order] = np.clip(isotonic_regression(given[order] - offsets).x, low, room) + offsets
    return apart.tolist()


def recall_range(curves: dict[str, dict[int, float]]) -> tuple[float, float]:
    """The limits of a recall axis: the smallest and largest value, rounded outwards to tenths."""
    values = [value for curve in curves.values() for value in curve.values()]
    low = np.floor(min(values) * 10 + 1e-9) / 10
    high = np.ceil(max(values) * 10 - 1e-9) / 10
    return (float(low), float(high)) if high > low else (max(0.0, float(low) - 0.1), float(high) + 0.1)


def recall_chart(curves: dict[str, dict[int, float]]) -> dict:
    """The geometry of the recall curves in SVG user units, over log k."""
    width, height, left, right, top, bottom = 640, 330, 38, 118, 10, 40
    cutoffs = sorted({k for curve in curves.values() for k in curve})
    low, high = recall_range(curves)
    span = log(cutoffs[-1] / cutoffs[0]) or 1.0

    def x(k: int) -> float:
        return round(left + (width - left - right) * log(k / cutoffs[0]) / span, 1)

    def y(recall: float) -> float:
        return round(top + (height - top - bottom) * (high - recall) / (high - low), 1)

    drawn = {system: curve for system, curve in curves.items() if curve}
    labels = spread(
        [y(curve[max(curve)]) for curve in drawn.values()], 16.0, float(top), float(height - bottom)
    )
    lines = []
    for index, ((system, curve), label) in enumerate(zip(drawn.items(), labels, strict=True)):
        points = [{"k": k, "value": curve[k], "x": x(k), "y": y(curve[k])} for k in sorted(curve)]
        lines.append(
            {
                "system": system,
                "color": PALETTE[index % len(PALETTE)],
                "dash": DASHES[index // len(PALETTE) % len(DASHES)],
                "path": " ".join(f"{point['x']},{point['y']}" for point in points),
                "points": points,
                "label_y": round(label, 1),
            }
        )
    step = 0.1 if high - low > 0.2 else 0.05
    ticks = [low + step * t for t in range(round((high - low) / step) + 1)]
    return {
        "width": width,
        "height": height,
        "left": left,
        "right": width - right,
        "bottom": height - bottom,
        "cutoffs": [{"k": k, "x": x(k)} for k in cutoffs],
        "ticks": [{"value": f"{tick:.2f}".removesuffix("0"), "y": y(tick)} for tick in ticks],
        "lines": lines,
    }


def _example_data(example: AlignmentExample) -> dict:
    """An example as the page's JSON block holds it; links flattened, numbers to 4 digits."""
    return vars(example) | {"systems": [_system_data(example, system) for system in example.systems]}


def _system_data(example: AlignmentExample, system: SystemAlignment) -> dict:
    where = f"query {example.query_id!r}, document {example.document_id!r}, system {system.system!r}"
    document, query = len(system.document_tokens), len(system.query_tokens)
    for i, j, _, _ in system.links:
        if not (0 <= i < document and 0 <= j < query):
            raise ValueError(f"{where}: link ({i}, {j}) outside {document} document and {query} query tokens")
    for name, salience, length in (
        ("query_salience", system.query_salience, query),
        ("document_salience", system.document_salience, document),
    ):
        if salience is not None and len(salience) != length:
            raise ValueError(f"{where}: {name} has {len(salience)} values for {length} tokens")

    def rounded(values: Iterable[float]) -> list[float]:
        digits = [float(f"{value:.4g}") for value in values]
        if not all(map(isfinite, digits)):
            raise ValueError(f"{where}: a number is not finite")
        return digits

    z, rel, rest = rounded([system.Z, system.rel, system.rest])
    return {
        "system": system.system,
        "reads": system.reads,
        "query": system.query_tokens,
        "document": system.document_tokens,
        "i": [int(i) for i, _, _, _ in system.links],
        "j": [int(j) for _, j, _, _ in system.links],
        "s": rounded(s for _, _, s, _ in system.links),
        "a": rounded(a for _, _, _, a in system.links),
        "Z": z,
        "rel": rel,
        "rest": rest,
        "query_salience": None if system.query_salience is None else rounded(system.query_salience),
        "document_salience": None if system.document_salience is None else rounded(system.document_salience),
    }
