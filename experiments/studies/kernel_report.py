"""The tables, the verdicts and the figure of kernel.py, from what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from studies.attention_heads import Array, Rows

from paradigms.evaluate import Interval, seeds_interval
from paradigms.evaluate.report import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSITIVE, BALANCED = "positive", "positive, balanced"
# What "can be kernelised" is taken to mean, as the paper measures nothing here.
SMALL = 0.1  # median relative error of rel
ALIKE = 0.9  # Kendall's τ with rel
COUNTED = "models × queries × candidates"
REPRODUCED, NOT = "reproduced", "not reproduced"


@dataclass(frozen=True)
class Measured:
    """One model: map -> measure -> [draws, queries]."""

    name: str
    queries: list[str]
    candidates: float  # of a query, on average
    maps: dict[str, dict[str, Array]]


def interval(models: list[Measured], name: str, measure: str, less: str = "") -> Interval:
    """Over models, draws and queries; of the difference from the map `less` where one is named."""
    rows = [model.maps[name][measure] for model in models]
    if less:
        rows = [row - model.maps[less][measure] for row, model in zip(rows, models, strict=True)]
    return seeds_interval(np.concatenate(rows))


def shown(found: Interval, form: str = ".3g") -> str:
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def claims(models: list[Measured], features: list[int]) -> Rows:
    """Statements of Lemma 5.2 and of its corrected form."""
    few, most = features[0], features[-1]

    def both(name: str) -> tuple[Interval, Interval, str]:
        error, tau = (interval(models, name, measure) for measure in ("error", "tau"))
        return error, tau, f"{name}: error {shown(error)}, τ {shown(tau)}"

    printed = [both(name) for name in ("elu", "elu, softmax's p")]
    positive = [both(f"{name}, {most}") for name in (POSITIVE, BALANCED)]
    lost = interval(models, "elu", "no weight")
    better = interval(models, "elu", "error", less="uniform")
    falls = interval(models, f"{BALANCED}, {most}", "error", less=f"{BALANCED}, {few}")
    bound = interval(models, "separable bound", "tau")

    def works(rows: list[tuple[Interval, Interval, str]]) -> bool:
        return any(error.high <= SMALL and tau.low >= ALIKE for error, tau, _ in rows)

    criterion = f"error at most {SMALL:g} and τ at least {ALIKE:g}"
    rows = [
        (
            f"rel can be kernelised with φ = elu (Lemma 5.2; here: {criterion})",
            "; ".join(text for _, _, text in printed),
            works(printed),
        ),
        (
            "… as A_ij ∝ φ(d_i)ᵀφ(q_j)/p_ij: each is positive, as a normalised exp is",
            f"share of entries with φ(d)ᵀφ(q) ≤ 0: {shown(lost)}",
            lost.high == 0,
        ),
        (
            "… and comes nearer to rel than A = 1/n, without any kernel",
            f"difference of errors {shown(better, '+.3g')}; {both('uniform')[2]}",
            better.high < 0,
        ),
        (
            f"Ours: with {most} positive random features (here: {criterion})",
            "; ".join(text for _, _, text in positive),
            works(positive),
        ),
        (
            f"… of which more are better: error with {most} less that with {few}, balanced",
            shown(falls, "+.3g"),
            falls.high < 0,
        ),
        (
            f"The separable upper bound serves to rank (after Lemma 5.2; here: τ at least {ALIKE:g})",
            f"τ of Σ‖d_i‖‖φ(d_i)‖ with rel: {shown(bound)}",
            bound.low >= ALIKE,
        ),
    ]
    size = f"{len(models)} × {len(models[0].queries)} × {models[0].candidates:.1f}"
    return [
        {
            "the paper says": text,
            "we measured": number,
            COUNTED: size,
            "verdict": REPRODUCED if holds else NOT,
        }
        for text, number, holds in rows
    ]


def map_rows(models: list[Measured]) -> Rows:
    """A row for every map."""
    rows = []
    for name, measures in models[0].maps.items():

        def of(measure: str, form: str = ".3g", name: str = name, has: dict[str, Array] = measures) -> str:
            return shown(interval(models, name, measure), form) if measure in has else "–"

        predicted = "–"
        if "predicted" in measures:
            predicted = f"10^{interval(models, name, 'predicted').mean:.2f}"
        row = {"φ": name, "error": of("error"), "τ": of("tau", ".3f")}
        rows.append(row | {"kernel error": of("kernel"), "predicted": predicted})
    return rows


def draw(models: list[Measured], features: list[int]) -> Figure:
    """Error and τ by the number of features, with what needs none as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, measure, label in zip(
        figure.subplots(1, 2),
        ("error", "tau"),
        ("median relative error of rel", "Kendall's τ over candidates"),
        strict=True,
    ):
        for number, name in enumerate((POSITIVE, BALANCED)):
            found = [interval(models, f"{name}, {m}", measure) for m in features]
            axes.plot(
                features, [x.mean for x in found], "o-", color=PALETTE[number], ms=4, label=f"{name} features"
            )
            axes.fill_between(
                features, [x.low for x in found], [x.high for x in found], color=PALETTE[number], alpha=0.2
            )
        for number, name in enumerate(
            ("elu", "elu, softmax's p", "elu + 1", "uniform", "separable bound"), 2
        ):
            if measure in models[0].maps[name]:
                mean = interval(models, name, measure).mean
                axes.axhline(mean, color=PALETTE[number], ls="--", lw=1.3, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(features, [str(m) for m in features])
        axes.set(xlabel="number of features", ylabel=label)
        axes.grid(alpha=0.3)
        if measure == "error":
            axes.set_yscale("log")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure
