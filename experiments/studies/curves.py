"""Plot measures against k', length or training step, with intervals, and make a table for each figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from studies.pages import Section, shown

from paradigms.evaluate import Interval, seeds_interval
from paradigms.view.report import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Float[np.ndarray, "seeds queries"]
Point = Values | Interval | float | None  # a number has no interval; None: no point at this x


def at_path(results: Sequence[Any], *path: Any) -> np.ndarray:
    """Return the numbers at `path` in every result."""
    for key in path:
        results = [result[key] for result in results]
    return np.array(results, dtype=float)


def interval_of(point: Point) -> Interval:
    """Return a point's mean and interval over seeds and queries, or NaN if there is no point."""
    if isinstance(point, np.ndarray):
        return seeds_interval(point)
    number = np.nan if point is None else point
    return number if isinstance(number, Interval) else Interval(number, number, number)


@dataclass(frozen=True)
class Curves:
    """Panels of curves: measure -> system -> one point for each x. Values of x may be words."""

    name: str  # name of x, such as "k'"
    x: Sequence[float] | Sequence[str]
    panels: Mapping[str, Mapping[str, Sequence[Point]]]
    scale: str = "log"  # scale of x if x is numbers; symlog: x includes 0
    dotted: Mapping[str, Sequence[Point]] | None = None  # more series, only in the last panel
    printed: Mapping[str, Mapping[str, Sequence[float | None]]] | None = None  # measure -> a paper's series
    log_y: Sequence[str] = ()  # panels with a logarithmic measure
    joined: bool = True  # whether lines join a series' points; without an order of x they say nothing

    @cached_property
    def intervals(self) -> dict[str, dict[str, list[Interval]]]:
        return {
            measure: {system: [interval_of(at) for at in points] for system, points in series.items()}
            for measure, series in self.panels.items()
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Make a row for each measure and system, with a column for each x."""
        columns = [x if isinstance(x, str) else f"{self.name} = {x:g}" for x in self.x]
        return [
            {"measure": measure, "system": system}
            | {c: "–" if np.isnan(at.mean) else shown(at) for c, at in zip(columns, intervals, strict=True)}
            for measure, series in self.intervals.items()
            for system, intervals in series.items()
        ]

    def section(self, heading: str, text: str = "") -> Section:
        return Section(heading, text, self.rows, self.draw())

    def draw(self) -> "Figure":
        """Plot means with their intervals; a system has the same colour and marker in all panels.

        A paper's printed values have hollow markers and dashed lines.
        """
        from matplotlib.figure import Figure

        words = isinstance(self.x[0], str)
        places = np.arange(len(self.x)) if words else np.array(self.x, dtype=float)
        names = dict.fromkeys(system for series in self.panels.values() for system in series)
        colours = {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(names)}
        markers = {name: "oXP*"[n // len(PALETTE) % 4] for n, name in enumerate(names)}  # when colours repeat
        figure = Figure(figsize=(5.5 * len(self.panels), 4.2), layout="constrained")
        panels = figure.subplots(1, len(self.panels), squeeze=False)[0]
        labelled = {}
        for axes, (measure, series) in zip(panels, self.intervals.items(), strict=True):
            for system, intervals in series.items():
                there = ~np.isnan([point.mean for point in intervals])
                at, (means, low, high) = places[there], np.array(intervals)[there].T
                style: dict[str, Any] = {"marker": markers[system], "linestyle": "-" if self.joined else ""}
                (line,) = axes.plot(at, means, markersize=4, color=colours[system], **style)
                if self.joined:
                    axes.fill_between(at, low, high, color=colours[system], alpha=0.1, linewidth=0)
                else:
                    axes.vlines(at, low, high, color=colours[system], linewidth=1)
                labelled.setdefault(system, line)
            if not words:
                near_0 = {"linthresh": places[places > 0].min()} if self.scale == "symlog" else {}
                axes.set_xscale(self.scale, **near_0)
                axes.set_xticks([], minor=True)
            for n, (system, numbers) in enumerate((self.printed or {}).get(measure, {}).items()):
                means = np.array(numbers, dtype=float)  # None becomes NaN, which is not drawn
                hollow: dict[str, Any] = {"marker": "sD^v"[n % 4], "markersize": 5, "markerfacecolor": "none"}
                hollow |= {"color": colours.get(system, "0.35"), "linestyle": "--" if self.joined else ""}
                (line,) = axes.plot(places, means, **hollow)
                labelled.setdefault(f"{system}, printed", line)
            axes.set_yscale("log" if measure in self.log_y else "linear")
            labels = [x if isinstance(x, str) else f"{x:g}" for x in self.x]
            slanted = len("".join(labels)) > 24
            drawn = axes.xaxis.get_transform().transform(places)
            least, last = np.ptp(drawn) / (20 if slanted else 12), 0
            for n in range(
                1, 0 if words else len(drawn)
            ):  # a label too close to the last one would overlap it
                near = abs(drawn[n] - drawn[last]) < least
                labels[n], last = ("", last) if near else (labels[n], n)
            how: dict[str, Any] = (
                {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
            )
            axes.set_xticks(places, labels, **how)
            axes.set(xlabel=self.name, ylabel=measure)
            axes.grid(color="0.9", linewidth=0.6)
        for system, points in (self.dotted or {}).items():
            means = [interval_of(at).mean for at in points]
            (line,) = panels[-1].plot(places, means, ":", color=colours.get(system, "black"))
            labelled.setdefault(system, line)
        columns = 2 if len(self.panels) > 1 or max(map(len, labelled)) < 36 else 1
        lines = -(-len(labelled) // columns)
        figure.set_figheight(4.2 + 0.2 * max(0, lines - 8))
        where = {"loc": "outside upper center", "ncols": columns}
        figure.legend(labelled.values(), labelled.keys(), frameon=False, fontsize=9, **where)
        return figure
