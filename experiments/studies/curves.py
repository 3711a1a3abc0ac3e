"""Plot measures against k', length or training step, with intervals, and make a table for each figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from studies.pages import Section, interval_text

from paradigms.evaluate import Interval, seeds_interval
from paradigms.view.report import PALETTE

MARKERS = "os^Dv*PX<>hd"
DASHES = ("-", "-.", ":")  # of the first colours, of their second use, and so on; "--": printed values
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
            | {
                c: "–" if np.isnan(at.mean) else interval_text(at)
                for c, at in zip(columns, intervals, strict=True)
            }
            for measure, series in self.intervals.items()
            for system, intervals in series.items()
        ]

    def section(self, heading: str, text: str = "") -> Section:
        return Section(heading, text, self.rows, self.draw())

    def draw(self) -> Figure:
        """Plot means with intervals, one look for each system; a paper's values are hollow and dashed."""
        figure = Figure(figsize=(5.5 * len(self.panels), 4.2), layout="constrained")
        panels = figure.subplots(1, len(self.panels), squeeze=False)[0]
        labelled: dict[str, Line2D] = {}
        for axes, (measure, series) in zip(panels, self.intervals.items(), strict=True):
            for system, intervals in series.items():
                labelled.setdefault(system, self._line(axes, system, intervals))
            printed = (self.printed or {}).get(measure, {})
            for marker, (system, numbers) in zip(cycle("sD^v"), printed.items(), strict=False):
                line = self._line(axes, system, [interval_of(number) for number in numbers], marker)
                labelled.setdefault(f"{system}, printed", line)
            axes.set(xlabel=self.name, ylabel=measure)
            axes.set_yscale("log" if measure in self.log_y else "linear")
            axes.grid(color="0.9", linewidth=0.6)
            self._ticks(axes)
        for system, points in (self.dotted or {}).items():
            means = [interval_of(point).mean for point in points]
            (line,) = panels[-1].plot(self._places, means, ":", color=self._looks.get(system, ("black",))[0])
            labelled.setdefault(system, line)
        columns = 2 if len(self.panels) > 1 or max(map(len, labelled)) < 36 else 1
        lines = -(-len(labelled) // columns)
        figure.set_figheight(4.2 + 0.2 * max(0, lines - 8))
        style: Any = {"frameon": False, "fontsize": 9, "ncols": columns}
        figure.legend(labelled.values(), labelled.keys(), loc="outside upper center", **style)
        return figure

    @property
    def _places(self) -> np.ndarray:
        words = isinstance(self.x[0], str)
        return np.arange(len(self.x)) if words else np.array(self.x, dtype=float)

    @cached_property
    def _looks(self) -> dict[str, tuple[str, str, str]]:
        """The colour, marker and dashes of each system; markers tell systems apart in black and white."""
        names = dict.fromkeys(system for series in self.panels.values() for system in series)
        colours = len(PALETTE)
        return {
            name: (PALETTE[n % colours], MARKERS[n % len(MARKERS)], DASHES[n // colours % len(DASHES)])
            for n, name in enumerate(names)
        }

    def _line(self, axes: Axes, system: str, intervals: Sequence[Interval], hollow: str = "") -> Line2D:
        """Plot a series. hollow: marker of printed values, which have no interval."""
        colour, marker, dash = self._looks.get(system, ("0.35", "", "-"))
        exists = ~np.isnan([point.mean for point in intervals])
        means, low, high = np.array(intervals).T
        (line,) = axes.plot(
            # A printed line is broken where a value is missing; a measured one is not.
            *((self._places, means) if hollow else (self._places[exists], means[exists])),
            marker=hollow or marker,
            markersize=5 if hollow else 4,
            markerfacecolor="none" if hollow else colour,
            linestyle=("--" if hollow else dash) if self.joined else "",
            color=colour,
        )
        if not hollow and self.joined:
            places = self._places[exists]
            ends = (low[exists], high[exists])
            axes.fill_between(places, *ends, color=colour, alpha=0.1, linewidth=0)
        elif not hollow:
            axes.vlines(self._places[exists], low[exists], high[exists], color=colour, linewidth=1)
        return line

    def _ticks(self, axes: Axes) -> None:
        """Scale and label x; a label of a number too close to the last one would overlap it."""
        places = self._places
        labels = [x if isinstance(x, str) else f"{x:g}" for x in self.x]
        slanted = len("".join(labels)) > 24
        if not isinstance(self.x[0], str):
            near_0 = {"linthresh": places[places > 0].min()} if self.scale == "symlog" else {}
            axes.set_xscale(self.scale, **near_0)
            axes.set_xticks([], minor=True)
            positions = axes.xaxis.get_transform().transform(places)
            least = np.ptp(positions) / (20 if slanted else 12)
            last = positions[0]
            for n in range(1, len(positions)):
                if abs(positions[n] - last) < least:
                    labels[n] = ""
                else:
                    last = positions[n]
        axes.set_xticks(places, labels)
        if slanted:
            axes.tick_params(axis="x", rotation=30)
            for label in axes.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
