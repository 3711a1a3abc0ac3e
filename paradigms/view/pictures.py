"""Draw the alignment A and recall as Matplotlib figures, without a display, for trackers and PNG files."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paradigms.explanation import Explanation
from paradigms.io.files import atomic_folder, contents
from paradigms.view.report import AlignmentExample, Report, recall_picture, shortened

if TYPE_CHECKING:
    import matplotlib.figure

MOST_DOCUMENT_TOKENS = 60
MOST_QUERY_TOKENS = 32
PICTURED = 1  # number of a report's relevant pairs whose alignments are drawn


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """Write the report's figures as PNG files, replacing `folder`.

    The files are recall.png, NAME.png for each figure of `report.pictures`, and alignment_NUMBER_SYSTEM.png
    for the first relevant pairs. For a soft alignment, alignment_NUMBER_SYSTEM_weights.png also shows A
    alone.
    """
    figures = {"recall": recall_picture(report.curves, report.curve)}
    figures |= {picture.name: picture.figure for picture in report.pictures if picture.figure}
    for number, example in enumerate([e for e in report.alignments if e.relevant][:PICTURED]):
        for system in example.systems:
            name = f"alignment_{number}_{system.system}"
            figures[name] = alignment_picture(example, system)
            if any(a not in (0, 1) for *_, a in system.links):
                figures[f"{name}_weights"] = alignment_picture(example, system, weights=True)
    with atomic_folder(folder, contents("*.png", marks=["recall.png"])) as fresh:
        for name, figure in figures.items():
            figure.savefig(fresh / f"{name}.png", dpi=120)
    return [folder / f"{name}.png" for name in figures]


def alignment_picture(
    example: AlignmentExample, alignment: Explanation, *, weights: bool = False
) -> "matplotlib.figure.Figure":
    """Draw a heat map of A ⊙ S (query tokens down, document tokens across) for one system of an example.

    weights: draw the alignment A alone, as in Figure 5 of Wu et al. 2024 (arXiv:2404.00684). If a document
    has more than 60 tokens, or a query more than 32, only the most used tokens are shown, as the title
    reports.
    """
    entries = np.zeros((len(alignment.query_tokens), len(alignment.document_tokens)))
    for i, j, s, a in alignment.links:
        entries[j, i] = a if weights else s * a
    rows = _most_used(np.abs(entries).sum(axis=1), MOST_QUERY_TOKENS)
    columns = _most_used(np.abs(entries).sum(axis=0), MOST_DOCUMENT_TOKENS)
    shown = entries[np.ix_(rows, columns)]

    from matplotlib.figure import Figure

    width, height = max(5.5, 1.8 + 0.2 * len(columns)), max(2.0, 1.7 + 0.2 * len(rows))
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.add_subplot(anchor="W")
    relevant = "relevant" if example.relevant else "not relevant"
    heading = f"{alignment.system}: {example.query_id} → {example.document_id} ({relevant})"
    links = len(alignment.links)
    facts = [f"rel = {alignment.rel:.4g}", f"Z = {alignment.Z:.4g}"]
    facts += [f"rest = {alignment.rest:.4g}"] if alignment.rest else []
    facts.append(f"{links} link{'' if links == 1 else 's'}")
    lines = [shortened(heading, int(12 * width)), ", ".join(facts)]
    cropped = [
        f"{len(kept)} of {total} {side} tokens, those used most"
        for kept, total, side in ((columns, entries.shape[1], "document"), (rows, entries.shape[0], "query"))
        if len(kept) < total
    ]
    lines += ["shown: " + "; ".join(cropped)] if cropped else []
    axes.set_title("\n".join(lines), fontsize=8.5, loc="left", linespacing=1.5, parse_math=False)
    if not shown.size:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no tokens", ha="center", va="center", color="0.35")
        return figure
    limit = np.abs(shown).max() or 1.0
    signed = shown.min() < 0
    colours, low = ("PuOr", -limit) if signed else ("Blues", 0.0)
    image = axes.imshow(shown, cmap=colours, vmin=low, vmax=limit, interpolation="nearest")
    document = [shortened(alignment.document_tokens[i], 16) for i in columns]
    query = [shortened(alignment.query_tokens[j], 16) for j in rows]
    axes.set_xticks(range(len(columns)), document, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks(range(len(rows)), query, fontsize=7, parse_math=False)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.92", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    drawn = 0.2 * len(columns)  # width of the cells in inches, so that the colour bar has a fixed width
    place = axes.inset_axes((1 + 0.12 / drawn, 0.1, 0.14 / drawn, 0.8))
    bar = figure.colorbar(image, cax=place)
    bar.set_label("A" if weights else "A ⊙ S", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return figure


def _most_used(use: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the `most` largest values, ascending, without zeros unless all values fit."""
    if len(use) <= most:
        return np.arange(len(use))
    order = np.argsort(-use, kind="stable")[:most]
    return np.sort(order[use[order] > 0]) if use.any() else np.sort(order)
