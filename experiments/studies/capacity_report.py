"""The tables and figures of capacity.py, from what it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from studies.capacity_claims import (
    ALPHA,
    LEARNED,
    MARGIN,
    PAPER_LENGTHS,
    STAGES,
    TABLE_A1,
    Predictions,
    Values,
    claim_rows,
)
from studies.capacity_tasks import BETA, BI, UNI, Bench
from studies.pages import Section
from studies.trained_pairs import Rows, shown

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.report import PALETTE

if TYPE_CHECKING:
    from capacity import Settings
    from matplotlib.figure import Figure

TITLES = {
    "containing": "Passage length and capacity: the passage that contains the query",
    "answers": "Passage length and capacity: question answering",
}
MEASURES = {"containing": "RR@10", "answers": "recall at a fixed number of tokens"}


def summarise(settings: Settings, benches: Sequence[Bench]) -> str:
    """What was trained and measured, in a paragraph."""
    counts = {name: len(split.queries) for name, split in benches[0].collection.splits.items()}
    return (
        f"{counts['test']} test queries; every neural system comes from {settings.backbone} and learned from "
        f"{counts['train']:,} queries in {settings.steps} steps of {settings.batch_size}, with "
        f"{settings.negatives} negative(s) each, once for every length and each of {len(settings.seeds)} "
        "seed(s). "
        "Queries are the same at all lengths. Intervals (95 %) resample seeds and queries."
    )


def describe(
    measured: Values,
    results: Sequence[Mapping[str, Any]],
    predictions: Predictions,
    sizes: Mapping[str, int],
    settings: Settings,
    benches: Sequence[Bench],
) -> dict[str, Section]:
    """Sections of the page and the console by the name of their files."""
    lengths, measure = settings.lengths, MEASURES[settings.task]
    sections = {
        "claims": Section(
            "What the paper says, what we measured, and what theory predicts",
            f"Differences of {measure}. Reproduced: the interval lies above 0 and the paired permutation "
            f"test over queries (each query's mean over the seeds) has p < {ALPHA} after Holm's correction "
            "within this table. Not reproduced: the interval lies below 0, or reaches 0 and lies below the "
            "paper's difference. Out of reach at this scale: neither, or a system has not learned the task: "
            f"at a length it retrieves with less than {LEARNED:.0%} of {UNI}'s measure, and with less than a "
            f"random projection of its size. Not to fall is to lose less than {MARGIN}. Random projection: "
            f"the same difference where each system is a random projection of {UNI}'s vectors to as many "
            "numbers as it has for a passage, as the exact law expects it; what a system loses beyond that, "
            "its training has lost, and not its size.",
            claim_rows(settings.task, measured, predictions, sizes, lengths),
        )
    }
    for stage, name in STAGES.items():
        sections[f"table_{stage}"] = Section(
            f"{name.capitalize()} by passage length (Table A.1)",
            f"{measure}; in parentheses the paper's, with m = 8 vectors of 768 numbers where no k is named."
            + (f" {settings.depth} candidates." if stage == "rerank" else ""),
            table(measured, stage, settings.task, lengths),
            [stage],
        )
    sections |= {
        "theory": Section(
            "One random projection of BM25's vectors to k numbers, and the encoders that have as many",
            f"Expected {measure} of the same passages, on {settings.theory_queries} test queries at most, of "
            "BM25 over words. "
            f"Margin: of the passage that {UNI} has first to its nearest competitor, median. k*: numbers "
            f"that keep it first for {1 - BETA:.0%} of the queries, whether it is relevant or not; not "
            "determined where the samples leave an error as large as it.",
            theory_rows(measured, predictions, sizes, lengths),
            ["theory"],
        ),
        "collections": Section(
            "Passages",
            "All of a length are searched. Relevant among candidates: share of the test queries.",
            collection_rows(benches),
        ),
        "weights": Section(
            "Weights of the hybrids",
            "dense + λ · BM25, raw scores of both; λ is the best on the dev queries.",
            [
                {"hybrid": name, "length": result["length"], "seed": result["seed"], "λ": weight}
                for result in results
                for name, weight in result["weights"].items()
            ],
        ),
        "training": Section(
            "Training",
            "τ: temperature of the softmax, from the spread of the untrained system's scores. Seconds on a "
            "machine that may have been shared.",
            [
                {name: result[name] for name in ("system", "length", "seed", "numbers", "τ", "train s")}
                for result in results
                if "train s" in result
            ],
        ),
    }
    return {name: section for name, section in sections.items() if section.rows}


def table(measured: Values, stage: str, task: str, lengths: Sequence[int]) -> Rows:
    """A row for each system, a column for each length."""
    rows: Rows = []
    for system, of in measured[stage].items():
        row: dict[str, Any] = {"system": system}
        paper = TABLE_A1[task][stage].get(system)
        for length in lengths:
            said = ""
            if paper is not None and length in PAPER_LENGTHS:
                said = f" ({paper[PAPER_LENGTHS.index(length)] / 100:.3f})"
            row[str(length)] = shown(seeds_interval(of[length])) + said
        rows.append(row)
    return rows


def theory_rows(
    measured: Values, predictions: Predictions, sizes: Mapping[str, int], lengths: Sequence[int]
) -> Rows:
    """Per length: margin, k*, and for each size the prediction beside what its systems have."""
    rows: Rows = []
    for length in lengths:
        found = predictions[length]
        row = {"length": length, "median smallest margin": found["margin"]}
        k_star, error = found["k*"], found["error of k*"]
        row["k*"] = f"{k_star:.0f} ± {error:.0f}" if error < k_star else "not determined"
        for system, k in sizes.items():
            expected = float(np.mean(found["values"][str(k)]))
            row[f"{system}: k = {k}"] = (
                f"{expected:.3f}, {measured['retrieve'][system][length].mean():.3f} measured"
            )
        row[UNI] = f"{measured['retrieve'][UNI][length].mean():.3f}"
        rows.append(row)
    return rows


def collection_rows(benches: Sequence[Bench]) -> Rows:
    rows: Rows = []
    for bench in benches:
        row: dict[str, Any] = {"length": bench.length, "passages": len(bench.collection.corpus)}
        row |= {f"{name} queries": len(split.queries) for name, split in bench.collection.splits.items()}
        reached = [
            any(d in bench.pool[q] for d, g in judged.items() if g > 0)
            for q, judged in bench.judged(bench.pool).judgements.items()
        ]
        rows.append(row | {"measure": bench.measure, "relevant among candidates": float(np.mean(reached))})
    return rows


def draw(
    measured: Values, predictions: Predictions, sizes: Mapping[str, int], settings: Settings
) -> dict[str, Figure]:
    """Figures 4 and 5, one for each stage, and the encoders beside random projections of their sizes."""
    figures = {}
    others = [name for of_stage in measured.values() for name in of_stage if name not in (UNI, BI)]
    colours = [*dict.fromkeys([*sizes, *others]), UNI, BI]  # a system has the same one in all figures
    for stage, of_stage in measured.items():
        systems = [(name, style(name, colours.index(name))) for name in of_stage]
        figures[stage] = _figure(STAGES[stage].capitalize(), settings)
        axes = figures[stage].axes[0]
        for name, look in systems:
            means, low, high = np.array([seeds_interval(of_stage[name][x]) for x in settings.lengths]).T
            axes.plot(settings.lengths, means, markersize=4, label=name, **look)
            axes.fill_between(settings.lengths, low, high, color=look["color"], alpha=0.08, linewidth=0)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figures["theory"] = _figure("Retrieval: trained (solid), random projection of BM25 (dotted)", settings)
    axes = figures["theory"].axes[0]
    for n, (name, k) in enumerate(sizes.items()):
        colour = PALETTE[n % len(PALETTE)]
        trained = [measured["retrieve"][name][x].mean() for x in settings.lengths]
        expected = [np.mean(predictions[x]["values"][str(k)]) for x in settings.lengths]
        axes.plot(settings.lengths, trained, "o-", markersize=4, color=colour, label=f"{name}, {k} numbers")
        axes.plot(settings.lengths, expected, "o:", markersize=3, color=colour)
    bm25 = [measured["retrieve"][UNI][x].mean() for x in settings.lengths]
    axes.plot(settings.lengths, bm25, "s-", markersize=4, color="black", label=UNI)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figures


def style(name: str, n: int) -> dict[str, Any]:
    """BM25 is black; systems of one vector are solid, of many dashed, hybrids dotted."""
    if name in (UNI, BI):
        return {"color": "black", "marker": "s", "linestyle": "-" if name == UNI else "--"}
    kinds = {"DE": ("o", "-"), "ME": ("^", "--"), "HYBRID": ("D", ":")}
    marker, line = kinds.get(name.partition("-")[0], ("*", "-."))
    return {"color": PALETTE[n % len(PALETTE)], "marker": marker, "linestyle": line}


def _figure(title: str, settings: Settings) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_xticks(settings.lengths, [str(length) for length in settings.lengths])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="tokens of a passage at most", ylabel=MEASURES[settings.task], title=title)
    axes.grid(color="0.9", linewidth=0.6)
    return figure
