"""The tables and the figures of hybrid.py, from what it measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from studies.hybrid_claims import DE, JUDGED, ME, MEASURES, NDCG, PAYS, RR, TABLE_1, Found, claim_rows
from studies.pages import Section
from studies.token_claims import ALPHA, LEARNED
from studies.trained_pairs import Rows, shown

from paradigms.evaluate import holm, paired_test, seeds_interval
from paradigms.evaluate.report import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# --- tables -----------------------------------------------------------------------------------------


def describe(found: Found, vectors: int) -> dict[str, Section]:
    """Sections of the page and the console by the name of their files; vectors: m."""
    how = (
        "Reproduced: the interval over seeds and queries lies above 0 and the paired permutation test over "
        f"queries (each query's mean over the seeds) has p < {ALPHA} after Holm's correction within this "
        "table, where the paper has Wilcoxon's signed ranks. Not reproduced: the interval reaches 0 and "
        "lies below the paper's difference, the smaller one of its two collections. Out of reach at this "
        "scale: the interval does neither, or what it is about does not work: a dense model with less than "
        f"{LEARNED:.0%} of BM25's RR@10, cross-attention where it orders what BM25 has found worse than "
        f"BM25, an index whose fastest search takes more than {PAYS:g} of exact search's time. Figure 7 "
        f"asks whether {DE}'s slowest approximate search is beaten in no more time. That m vectors bring "
        "more on longer documents is a claim about two collections: run both."
    )
    tables = {
        "claims": Section("What §7 says, and what we measured", how, claim_rows(found)),
        "retrieve": Section(
            "First stages (Tables 1 and 2)",
            f"Whole corpus, m = {vectors}; dense models are of the round that is best on the dev queries. "
            "Holes@10: share of the first 10 that nobody judged. The paper's MRR@10 on MS MARCO: passages/"
            f"documents. {ME}'s first vector gives the maximum of "
            f"{found.values('first wins', ME).mean():.0%} of the documents that it finds; where that is all "
            "of them, the other vectors do nothing.",
            retrieve_rows(found),
        ),
        "rerank": Section(
            "Cross-attention over the first documents of each stage (Table 1, Figure 6)",
            f"{RR}; what is not reranked is left out.",
            [
                {"first stage": system}
                | {
                    f"{depth} reranked": shown(seeds_interval(found.reranked(system, depth)))
                    for depth in found.depths
                }
                for system in found.seeds[0]["rerank"]
            ],
            ["rerank_depth"],
        ),
        "mining": Section(
            "One round of hard-negative mining",
            "After the first round: as many steps with negatives that the model itself ranks high (mined), "
            "or with BM25's as before (again). The paper keeps mining “when beneficial” and gives no number. "
            "One family of tests.",
            mining_rows(found),
        ),
        "weights": Section(
            "λ of the hybrids, and the rounds, chosen on the dev queries",
            "",
            weight_rows(found),
        ),
        "search": Section(
            "Quality against time of search (Figure 7)",
            f"RR@10 and milliseconds of an encoded query, one at a time; {ME} has {vectors} entries per "
            "document. 0 probes: all vectors.",
            [
                {key: value for key, value in point.items() if key != RR}
                | {RR: shown(seeds_interval(point[RR]))}
                for point in found.curves
            ],
            ["search_time"],
        ),
        "training": Section(
            "Training",
            "Losses are per batch. Seconds on a machine that was shared.",
            [{"seed": seed["seed"]} | row for seed in found.seeds for row in seed["training"]],
        ),
    }
    return {name: section for name, section in tables.items() if section.rows}


def retrieve_rows(found: Found) -> Rows:
    papers = {ours: TABLE_1[paper] for paper, ours in found.ours.items()}
    rows: Rows = []
    for system in found.seeds[0]["retrieve"]:
        row: dict[str, Any] = {"system": system}
        row |= {m: shown(seeds_interval(found.values("retrieve", system, m))) for m in MEASURES[:-1]}
        row["Holes@10"] = f"{1 - found.values('retrieve', system, JUDGED).mean():.3f}"
        said = papers.get(system)
        row["paper"] = "–" if said is None else "/".join(f"{x:.3f}" for x in said)
        rows.append(row)
    return rows


def mining_rows(found: Found) -> Rows:
    rounds = list(found.seeds[0]["rounds"][DE])
    pairs = [
        pair
        for pair in (("mined", "first"), ("mined", "again"), ("again", "first"))
        if set(pair) <= set(rounds)
    ]
    cells = [(system, a, b, measure) for system in (DE, ME) for a, b in pairs for measure in (RR, NDCG)]
    differences = [
        found.values("rounds", system, a, measure) - found.values("rounds", system, b, measure)
        for system, a, b, measure in cells
    ]
    p = [paired_test(d.mean(0), np.zeros(d.shape[1])) for d in differences]
    return [
        {
            "system": system,
            "difference": f"{a} − {b}",
            "measure": measure,
            "before": found.values("rounds", system, b, measure).mean(),
            "after": found.values("rounds", system, a, measure).mean(),
            "mean": shown(seeds_interval(d), "+"),
            "p": f"{one:.4f}",
            "p (Holm)": f"{adjusted:.4f}",
        }
        for (system, a, b, measure), d, one, adjusted in zip(cells, differences, p, holm(p), strict=True)
    ]


def weight_rows(found: Found) -> Rows:
    return [
        {"seed": seed["seed"], "hybrid": hybrid} | of
        for seed in found.seeds
        for hybrid, of in seed["weights"].items()
    ]


# --- figures ----------------------------------------------------------------------------------------


def draw(found: Found) -> dict[str, Figure]:
    """Figures 6 and 7; bands and bars are 95 % intervals over seeds and queries."""
    from matplotlib.figure import Figure

    colours = dict(zip(found.ours.values(), PALETTE, strict=False))
    outside: dict[str, Any] = {"frameon": False, "loc": "center left", "bbox_to_anchor": (1, 0.5)}
    depth = Figure(figsize=(8, 4.2), layout="constrained")
    axes = depth.subplots()
    for system, colour in colours.items():
        means, low, high = np.array([seeds_interval(found.reranked(system, d)) for d in found.depths]).T
        axes.plot(found.depths, means, marker="o", markersize=4, color=colour, label=system)
        axes.fill_between(found.depths, low, high, color=colour, alpha=0.08, linewidth=0)
        axes.axhline(found.values("retrieve", system, RR).mean(), linestyle=":", color=colour)
    axes.set_xscale("log")
    axes.set_xticks(found.depths, map(str, found.depths))
    axes.set_xticks([], minor=True)
    axes.set(xlabel="first documents that cross-attention reranks", ylabel=RR)
    axes.grid(color="0.9", linewidth=0.6)
    axes.legend(title="first stage\n(dotted: not reranked)", **outside)

    points, kinds = found.curves, found.approximate
    time = Figure(figsize=(2.6 + 4.2 * max(1, len(kinds)), 4.2), layout="constrained")
    panels = time.subplots(1, max(1, len(kinds)), sharey=True, squeeze=False)[0]
    for panel, kind in zip(panels, kinds or ["exact"], strict=True):
        for system in (DE, ME):
            own = [point for point in points if point["system"] == system]
            exact = next(point for point in own if point["index"] == "exact")
            line = sorted((p for p in own if p["index"] == kind), key=lambda p: p["probes"])
            means, low, high = np.array([seeds_interval(point[RR]) for point in line]).T
            ms = [point["ms/query"] for point in line]
            panel.errorbar(
                ms,
                means,
                yerr=[means - low, high - means],
                marker="o",
                markersize=4,
                capsize=2,
                color=colours[system],
                label=system,
            )
            for point, x, y in zip(line, ms, means, strict=True):
                panel.annotate(str(point["probes"]), (x, y), (4, 4), textcoords="offset points", fontsize=8)
            panel.axhline(exact[RR].mean(), linestyle="--", color=colours[system])
            panel.axvline(exact["ms/query"], linestyle=":", color=colours[system])
        panel.set(xlabel="ms per query", title=kind)
        panel.grid(color="0.9", linewidth=0.6)
    panels[0].set_ylabel(RR)
    panels[-1].legend(title="dashed, dotted: exact\nat a point: lists probed", **outside)
    return {"rerank_depth": depth, "search_time": time}
