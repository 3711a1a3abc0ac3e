"""A measure against k', a strategy or a share of tokens: one table of intervals and one figure of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from studies.pages import shown

from paradigms.evaluate import Interval, seeds_interval
from paradigms.evaluate.report import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Float[np.ndarray, "seeds queries"]


@dataclass(frozen=True)
class Curves:
    """Panels of series: measure -> system -> its values at every x. Words as x have equal distances."""

    name: str  # of x: "k'"
    x: Sequence[float] | Sequence[str]
    panels: Mapping[str, Mapping[str, Sequence[Values]]]
    logarithmic: bool = True

    @cached_property
    def intervals(self) -> dict[str, dict[str, list[Interval]]]:
        """Of every mean, over seeds and queries."""
        return {
            measure: {system: [seeds_interval(at) for at in values] for system, values in series.items()}
            for measure, series in self.panels.items()
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each measure and system, a column for each x."""
        columns = [x if isinstance(x, str) else f"{self.name} = {x:g}" for x in self.x]
        return [
            {"measure": measure, "system": system} | dict(zip(columns, map(shown, found), strict=True))
            for measure, series in self.intervals.items()
            for system, found in series.items()
        ]

    def draw(self) -> Figure:
        """Means, with bands for the intervals."""
        from matplotlib.figure import Figure

        words = isinstance(self.x[0], str)
        places = range(len(self.x)) if words else self.x
        figure = Figure(figsize=(5.5 * len(self.panels), 3.8), layout="constrained")
        axes_of = figure.subplots(1, len(self.panels), squeeze=False)[0]
        for axes, (measure, series) in zip(axes_of, self.intervals.items(), strict=True):
            for number, (system, found) in enumerate(series.items()):
                means, low, high = np.array(found).T
                colour = PALETTE[number % len(PALETTE)]
                axes.plot(places, means, marker="o", markersize=4, color=colour, label=system)
                axes.fill_between(places, low, high, color=colour, alpha=0.1, linewidth=0)
            if self.logarithmic and not words:
                axes.set_xscale("log")
                axes.set_xticks([], minor=True)
            axes.set_xticks(places, [x if isinstance(x, str) else f"{x:g}" for x in self.x])
            axes.set(xlabel=self.name, ylabel=measure)
            axes.grid(color="0.9", linewidth=0.6)
        handles = axes_of[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
        return figure
