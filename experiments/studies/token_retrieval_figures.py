"""The figures of token_retrieval.py: Figures 2, 4, 5, 6 and 7 of Lee et al. 2023 (arXiv:2304.01982)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from studies.token_claims import Found, Model, Values
from studies.token_measures import EDGES, TOP

from paradigms.evaluate.report import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(found: Found) -> dict[str, Figure]:
    """Each by name: means over seeds and queries, whose intervals stand in the tables."""
    return {
        "scores": _scores(found),
        "retrieval": _retrieval(found),
        "recall": _recall(found),
        "k_train": _k_train(found),
        "batch_size": _batch_size(found),
    }


def _scores(found: Found) -> Figure:
    figure, (axes,) = _figure(1)
    for place, model in enumerate(found.pair):
        for kind, style in (("others", "-"), ("gold", "--")):
            counts = np.sum([r["retrieval"]["histogram"][kind] for r in found.models[model]], 0)
            density = counts / max(1, counts.sum()) / np.diff(EDGES)
            label = f"{_short(model)}, {'relevant' if kind == 'gold' else 'other'} documents"
            axes.stairs(density, EDGES, color=PALETTE[place], linestyle=style, label=label)
    axes.set(xlabel=f"cosine of the first {TOP} tokens of each query token", ylabel="density")
    used = np.flatnonzero(np.sum([_counts(found, model) for model in found.pair], 0))
    if len(used):
        axes.set_xlim(EDGES[used[0]], EDGES[used[-1] + 1])
    _legend(figure, axes)
    return figure


def _counts(found: Found, model: Model) -> np.ndarray:
    return np.sum([counts for r in found.models[model] for counts in r["retrieval"]["histogram"].values()], 0)


def _retrieval(found: Found) -> Figure:
    figure, panels = _figure(2)
    for axes, kind, name in zip(panels, ("gold", "lexical"), ("gold", "lexically equal"), strict=True):
        for place, model in enumerate((found.colbert, *found.xtrs)):
            ranks = [int(r) for r in found.models[model][0]["retrieval"]["by rank"][kind]]
            rows = [found.values(model, "retrieval", "by rank", kind, r) for r in ranks]
            _line(axes, ranks, rows, place, _short(model))
        axes.set(
            xscale="log",
            xlabel="rank r of the retrieved token",
            ylabel=f"P({name}) at rank r",
            ylim=(0, None),
        )
    _legend(figure, panels[0])
    return figure


def _recall(found: Found) -> Figure:
    figure, (axes,) = _figure(1)
    for place, (model, way, name) in enumerate(
        (model, way, name)
        for way, name in (("impute", "imputed"), ("gather", "gathered"))
        for model in found.pair
    ):
        rows = [found.values(model, way, k, "R@100") for k in found.search_tokens]
        _line(axes, found.search_tokens, rows, place, f"{_short(model)}, {name}")
    axes.set(xscale="log", xlabel="k'", ylabel="R@100")
    _legend(figure, axes)
    return figure


def _k_train(found: Found) -> Figure:
    figure, (axes,) = _figure(1)
    for place, model in enumerate((found.colbert, *found.xtrs)):
        rows = [found.values(model, "impute", k, "RR@10") for k in found.search_tokens]
        label = "ColBERT" if model.k_train is None else f"$k_{{train}}$ = {model.k_train}"
        _line(axes, found.search_tokens, rows, place, label)
    axes.set(xscale="log", xlabel="k'", ylabel="RR@10, imputing")
    _legend(figure, axes)
    return figure


def _batch_size(found: Found) -> Figure:
    figure, (axes,) = _figure(1)
    sizes = sorted({model.batch_size for model in found.models if model.k_train})
    path = ("impute", found.search_tokens[-1], "nDCG@10")
    for place, model in enumerate(found.xtrs):
        rows = [found.values(Model(model.k_train, size), *path) for size in sizes]
        _line(axes, sizes, rows, place, f"$k_{{train}}$ = {model.k_train}")
    axes.set(xlabel="queries of a batch", ylabel=f"nDCG@10, imputing, k' = {found.search_tokens[-1]}")
    axes.set_xticks(sizes)
    _legend(figure, axes)
    return figure


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * panels, 3.8), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _line(axes: Axes, x: Sequence[int], rows: list[Values], place: int, label: str) -> None:
    colour = PALETTE[place % len(PALETTE)]
    axes.plot(x, [row.mean() for row in rows], marker="o", markersize=4, color=colour, label=label)
    axes.grid(color="0.9", linewidth=0.6)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=9)


def _short(model: Model) -> str:
    return "ColBERT" if model.k_train is None else f"XTR ($k_{{train}}$ = {model.k_train})"
