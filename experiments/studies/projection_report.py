"""The tables, the text and the figures of random_projections.py, from what it measured."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri
from studies.pages import Section

from paradigms.evaluate.report import format_number
from theory.projections import distortion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]

MARGIN_RANKS = (10, 100, 1000)
MARKS = {"rademacher": "o", "gaussian": "x"}


def slope_rows(vectors: str, rows: Rows) -> Rows:
    """Geometric mean of k · h(ε) over the bins, and the exponent of ε in k, for measured and exact k."""
    found: Rows = []
    names = [key for key in rows[0] if key in ("rademacher", "gaussian")] if rows else []
    for name in [*names, "exact k*", "Lemma 1"]:
        pairs = np.array([[row["margin"], row[name]] for row in rows if all(row[n] for n in names)]).T
        if pairs.size < 6:
            continue
        constant = float(np.exp(np.mean(np.log(pairs[1] * distortion(pairs[0])))))
        exponent = float(np.polyfit(np.log(pairs[0]), np.log(pairs[1]), 1)[0])
        found.append(
            {
                "vectors": vectors,
                "measured by": name,
                "k · h(ε)": constant,
                "exponent of ε": exponent,
                "bins": len(pairs[0]),
            }
        )
    return found


def describe(results: dict[str, Any], beta: float, rank: int) -> list[Section]:
    """The sections of the page and of the console."""
    percent, z2, timing = f"{1 - beta:.0%}", ndtri(beta) ** 2, results["timing"]
    first = next(iter(results["figure2"]))
    pairs = [
        Section(
            f"Figure 2, {weighting}: dimensions for {percent} pairwise accuracy",
            "Explicit matrices (the value of the grid from which on it holds, and the crossing before it) "
            "beside the exact law and Lemma 1.",
            rows,
            ["figure2"] if weighting == first else [],
        )
        for weighting, rows in results["figure2"].items()
    ]
    return [
        Section("Answer", answer(results, beta, rank)),
        *pairs,
        Section(
            "Slope of Figure 2",
            f"For ε → 0 the exact law gives k · h(ε) = z²/2 = {z2 / 2:.4f} and k ∝ ε⁻²; Lemma 1 has "
            f"{2 * np.log(4 / beta):.4f}, {4 * np.log(4 / beta) / z2:.4f} times as much.",
            results["slopes"],
        ),
        Section(
            f"Figure 3a, {first}: smallest margins by document length",
            "Medians over queries; none where half of the queries have fewer documents below the best.",
            results["figure3a"],
            ["figure3"],
        ),
        Section(
            f"Figure 3b, {first}: dimensions for recall@{rank} ≥ {percent}",
            "explicit: the k from which on measured failure stays low, too large where the curve is noisy. "
            "What the matrices measured at all k lies "
            f"{format_number(timing['mean squared deviation of explicit from exact, in variances'])} "
            "variances from the exact curve in the mean square (1: as chance has it).",
            results["figure3b"],
        ),
        Section(
            "Time of Figure 3b",
            "At equal precision (the same standard error of the mean failure at k*) the exact curve comes "
            f"{timing['ratio, nested grid']:,.0f} times faster than explicit matrices on a grid of "
            f"{timing['values of k']} dimensions that share their rows, and "
            f"{timing['ratio, fresh matrices']:,.0f} times faster than with a fresh matrix for every k. An "
            "explicit matrix is credited with the error of as many independent queries.",
            [{"quantity": key, "value": value} for key, value in timing.items()],
        ),
        Section(
            f"Bounds over the exact k, {first}, all documents", "Medians over queries.", results["bounds"]
        ),
        Section("Where the idf stands", "Same scores, other margins.", results["idf"], ["idf"]),
    ]


def answer(results: dict[str, Any], beta: float, rank: int) -> str:
    """The three questions that the run answers, in numbers."""
    first = next(iter(results["figure2"]))
    whole = results["figure3b"][-1]
    text = (
        f"From k = {format_number(whole['exact k'])} ± {format_number(whole['±'])} dimensions on, a random "
        f"projection keeps the best document by {first} among the first {rank} for {1 - beta:.0%} of the "
        f"queries (exact law; explicit matrices: {format_number(whole['explicit, grid'])} on their grid)."
    )
    for row in results["bounds"]:
        if row["r"] == rank:
            text += (
                f" For one query the paper's Eq. 3 asks for {row['Eq. 3 / exact']:.1f} times the exact k, "
                f"the Markov-union bound for {row['Markov-union / exact']:.1f} times it (medians)."
            )
    measured = [row for row in results["slopes"] if row["vectors"] == first]
    if measured:
        listed = ", ".join(f"{row['measured by']} {row['k · h(ε)']:.2f}" for row in measured)
        text += f" Slope k · h(ε) of Figure 2, which tends to {ndtri(beta) ** 2 / 2:.4f}: {listed}."
    return text


def draw(results: dict[str, Any], beta: float, rank: int) -> dict[str, "Figure"]:
    """Figures 2 and 3, and the bars of the idf, by the name of their file."""
    return {
        "figure2": _figure2(results["figure2"], beta),
        "figure3": _figure3(results["figure3a"], results["figure3b"], rank),
        "idf": _idf(results["idf"], rank),
    }


def _figure2(panels: dict[str, Rows], beta: float) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 4.5), layout="constrained")
    slope = ndtri(beta) ** 2 / 2
    for position, (name, rows) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), position)
        if not rows:
            axes.set_title(f"{name}: too few pairs a bin")
            continue
        x = _column(rows, "1/h(ε)")
        for ensemble, mark in MARKS.items():
            if ensemble in rows[0]:
                axes.plot(x, _column(rows, ensemble), mark, label=f"{ensemble} matrices")
        axes.plot(x, _column(rows, "exact k*"), "-", label="exact law (Gaussian)")
        axes.plot(x, slope * x, ":", label=f"{slope:.4f} / h(ε)")
        axes.plot(x, _column(rows, "Lemma 1"), "--", label="Lemma 1")
        axes.set(xscale="log", yscale="log", xlabel="1 / h(ε)", title=name)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.supylabel(f"k for {1 - beta:.0%} pairwise accuracy")
    return figure


def _figure3(margins: Rows, dimensions: Rows, rank: int) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place in MARGIN_RANKS:
        values = _column(margins, f"{place}th")
        if not np.isnan(values).all():
            left.plot(_column(margins, "mean length"), values, "o-", label=f"{place}th smallest")
            left.set(yscale="log")
    left.set(ylabel="normalized margin, median over queries")
    bins = [row for row in dimensions if row["documents"] != "all"]
    x = _column(bins, "mean length")
    right.errorbar(x, _column(bins, "exact k"), _column(bins, "±"), fmt="o-", capsize=3, label="exact law")
    right.plot(x, _column(bins, "explicit"), "x", label="explicit matrices")
    right.set(ylabel=f"k for recall@{rank}")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="mean document length (terms)")
        axes.set_xticks(x, [f"{length:.0f}" for length in x], minor=False)
        axes.set_xticks([], minor=True)
        axes.legend()
        axes.grid(alpha=0.3)
    return figure


def _idf(rows: Rows, rank: int) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    labels = [f"{row['vectors']}\n{row['idf in']}" for row in rows]
    axes.bar(labels, _column(rows, "exact k"), yerr=_column(rows, "±"), capsize=3)
    axes.set(ylabel=f"exact k for recall@{rank}")
    return figure


def _column(rows: Rows, key: str) -> np.ndarray:
    """The numbers under a key, nan where there is none."""
    return np.array([row[key] for row in rows], dtype=float)
