"""The tables, the claims and the figures of salience_pruning.py, from what it measured."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from studies.pages import Section

from paradigms.evaluate import Interval, seeds_interval
from paradigms.io.files import atomic_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = list[dict[str, Any]]
Pair = tuple[float, float]  # β^q, β^d
STAGES = {
    "refined": "Candidates from the pruned index, scored again with all vectors",
    "pruned": "The pruned index alone",
}
MARGIN = 0.02  # nDCG@10 that still counts as "similar" to the unpruned model
COLOURS = {
    "entropic": "#1f77b4",
    "relu": "#ff7f0e",
    "hard": "#2ca02c",
    "l1": "#d62728",
    "first": "#7f7f7f",
    "eq5": "#9467bd",
}


def values(
    results: Results, method: str, pair: Pair, stage: str = "refined", measure: str = "nDCG@10"
) -> np.ndarray:
    """[seeds, queries] of one method at one pair of ratios."""
    rows = [
        point[stage][measure]
        for result in results
        for point in result["points"]
        if result["method"] == method and (point["query_keep"], point["document_keep"]) == pair
    ]
    return np.array(rows)


def methods(results: Results) -> list[str]:
    return list(dict.fromkeys(result["method"] for result in results))


def pairs(results: Results) -> list[Pair]:
    return [(point["query_keep"], point["document_keep"]) for point in results[0]["points"]]


def along(results: Results, fixed: float, side: int) -> list[Pair]:
    """The measured pairs in which the other side's ratio is `fixed`, largest first."""
    return sorted((pair for pair in pairs(results) if pair[1 - side] == fixed), reverse=True)


def write_rows(file: Path, results: Results) -> None:
    """One line for every model, pair and stage: costs, and means over the queries."""
    with atomic_text(file) as stream:
        writer: Any = None
        for result in results:
            for point in result["points"]:
                for stage in STAGES:
                    row = {"method": result["method"], "seed": result["seed"], "stage": stage}
                    row |= {name: value for name, value in point.items() if name not in STAGES}
                    row |= {name: float(np.mean(value)) for name, value in point[stage].items()}
                    if writer is None:
                        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
                        writer.writeheader()
                    writer.writerow(row)


def describe(results: Results, query_ratio: float, document_ratio: float) -> list[Section]:
    """The sections of the page and of the console; the first holds the claims."""
    sections = [
        Section(
            "What the paper says and what we measured",
            f"Differences of nDCG@10 with 95% intervals; similar: not lower by more than {MARGIN}. Verdicts "
            "are on refined candidates, as in the paper, which measures MRR@10 on MS MARCO (Fig. 6) and "
            "nDCG@10 on BEIR (Fig. 7). Not measured: Touché-2020, said to gain from pruning, and adapted "
            "alignments.",
            claims(results, query_ratio, document_ratio),
        )
    ]
    for side, name, fixed in (
        (1, "document", f"β^q = {query_ratio}"),
        (0, "query", f"β^d = {document_ratio}"),
    ):
        line = along(results, query_ratio if side else document_ratio, side)
        for stage, text in STAGES.items():
            heading = f"nDCG@10 against the share of {name} tokens kept, {fixed}"
            figures = [f"{name}_tokens"] if stage == "refined" else []
            sections.append(Section(heading, f"{text}.", table(results, line, stage, side, ndcg), figures))
        found = table(results, line, "pruned", side, recall)
        heading = f"R@100 against the share of {name} tokens kept, {fixed}"
        sections.append(Section(heading, "Of what the pruned index finds.", found))
    return [
        *sections,
        Section("Costs of each pair of ratios, means over models", costs_text(results), costs(results)),
        Section(
            "How sparse the saliences are",
            "Share of document tokens whose salience is above a hundredth of their document's largest.",
            [
                {"method": m, "salient": f"{np.mean(of(results, m, 'salient')):.1%}"}
                | {
                    "train s": np.mean(of(results, m, "train s")),
                    "encode s": np.mean(of(results, m, "encode s")),
                }
                for m in methods(results)
            ],
        ),
    ]


def of(results: Results, method: str, name: str) -> list[float]:
    return [result[name] for result in results if result["method"] == method]


def table(
    results: Results, line: list[Pair], stage: str, side: int, cell: Callable[[Results, str, Pair, str], str]
) -> list[dict[str, Any]]:
    """A row for no pruning and for every pair, a column for every method."""
    rows = []
    for pair in [(1.0, 1.0), *(pair for pair in line if pair != (1.0, 1.0))]:
        label = "none pruned" if pair == (1.0, 1.0) else f"{'β^d' if side else 'β^q'} = {pair[side]:g}"
        cells = {method: cell(results, method, pair, stage) for method in methods(results)}
        rows.append({"kept": label} | cells)
    return rows


def ndcg(results: Results, method: str, pair: Pair, stage: str) -> str:
    return shown(seeds_interval(values(results, method, pair, stage)))


def recall(results: Results, method: str, pair: Pair, stage: str) -> str:
    return f"{values(results, method, pair, stage, 'R@100').mean():.3f}"


def shown(interval: Interval, sign: str = "") -> str:
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def costs(results: Results) -> list[dict[str, Any]]:
    rows = []
    for n, (q, d) in enumerate(pairs(results)):
        points = [result["points"][n] for result in results]
        bytes_, ms, work = (
            np.mean([point[name] for point in points])
            for name in ("bytes/document", "search ms/query", "search multiply-adds/query")
        )
        whole = np.mean([result["points"][0]["search multiply-adds/query"] for result in results])
        full = np.mean([result["bytes/document"] for result in results])
        rows.append(
            {
                "β^q": f"{q:g}",
                "β^d": f"{d:g}",
                "index bytes/document": bytes_,
                "of all": f"{bytes_ / full:.1%}",
                "search ms/query": ms,
                "multiply-adds/query": work,
                "saved": f"{1 - work / whole:.1%}",
            }
        )
    return rows


def costs_text(results: Results) -> str:
    full, ms, work = (
        np.mean([result[name] for result in results])
        for name in ("bytes/document", "refine ms/query", "refine multiply-adds/query")
    )
    return (
        f"The search looks at every stored token; its milliseconds include the query's encoding. Refinement "
        f"adds {ms:.3g} ms and {work:.3g} multiply-adds to every query, and reads all vectors, "
        f"{full:,.0f} bytes/document, from a second store."
    )


def claims(results: Results, query_ratio: float, document_ratio: float) -> list[dict[str, str]]:
    """Each claim of §4.3 for which its models and pairs were measured."""
    trained, whole, measured = (query_ratio, document_ratio), (1.0, 1.0), set(pairs(results))
    rows: list[dict[str, str]] = []

    def claim(
        says: str,
        better: tuple[str, list[Pair]],
        worse: tuple[str, list[Pair]],
        judge: Callable[[Interval], str],
    ) -> None:
        """A claim about the difference between two methods' means over some pairs."""
        if {better[0], worse[0]} <= set(methods(results)) and set() < {*better[1], *worse[1]} <= measured:
            refined, pruned = (gap(results, better, worse, stage) for stage in STAGES)
            row = {"the paper says": says, "we measured": shown(refined, "+"), "verdict": judge(refined)}
            rows.append(row | {"index alone": shown(pruned, "+")})

    def at(d: float, q: float = query_ratio) -> list[Pair]:
        return [(q, d)]

    every = [pair for pair in along(results, query_ratio, 1) if pair[1] < 1]
    claim(
        "Fig. 6: pruned as trained, similar to all tokens",
        ("entropic", [trained]),
        ("entropic", [whole]),
        similar,
    )
    claim("Fig. 6: similar with β^d = 10%", ("entropic", at(0.1)), ("entropic", [whole]), similar)
    claim(
        "Fig. 6: β^q = 30% costs little",
        ("entropic", at(document_ratio, 0.3)),
        ("entropic", [trained]),
        similar,
    )
    claim("Fig. 6: β^q = 10% is worse", ("entropic", at(document_ratio, 0.1)), ("entropic", [trained]), below)
    claim("Fig. 6: ReLU is good at β^d = 40%", ("relu", at(0.4)), ("relu", [whole]), similar)
    claim("Fig. 6: ReLU is worse than entropic at β^d = 10%", ("relu", at(0.1)), ("entropic", at(0.1)), below)
    claim("Fig. 6: hard is worse than entropic at all β^d", ("hard", every), ("entropic", every), below)
    claim("Fig. 6: L1 is as good as entropic", ("l1", every), ("entropic", every), equal)
    claim("Fig. 6: L1 is slightly better at β^d = 5%", ("l1", at(0.05)), ("entropic", at(0.05)), above)
    claim(
        "Fig. 7: β^q = 30%, β^d = 20% lose little", ("entropic", at(0.2, 0.3)), ("entropic", [whole]), similar
    )
    few = [pair for pair in every if pair[1] <= 0.2]
    claim(
        "Ours: entropic is better than the first tokens at β^d ≤ 20%",
        ("entropic", few),
        ("first", few),
        above,
    )
    if (0.3, 0.2) in measured:
        cost = costs(results)[pairs(results).index((0.3, 0.2))]
        row = {"the paper says": "Fig. 7: they save 80% of the index and up to 94% of the computation"}
        row |= {"we measured": f"{cost['of all']} of the bytes are left, {cost['saved']} of the work saved"}
        rows.append(row | {"verdict": "counted", "index alone": "the same"})
    return rows


def gap(
    results: Results, better: tuple[str, list[Pair]], worse: tuple[str, list[Pair]], stage: str
) -> Interval:
    """The mean difference of nDCG@10 between two methods, each averaged over its pairs."""
    a, b = (
        np.mean([values(results, method, pair, stage) for pair in chosen], 0)
        for method, chosen in (better, worse)
    )
    return seeds_interval(a - b)


def similar(interval: Interval) -> str:
    if interval.low > -MARGIN:
        return "holds"
    return "does not hold" if interval.high < -MARGIN else "undecided"


def equal(interval: Interval) -> str:
    """Similar on both sides."""
    verdicts = {similar(interval), similar(Interval(-interval.mean, -interval.high, -interval.low))}
    if verdicts == {"holds"}:
        return "holds"
    return "does not hold" if "does not hold" in verdicts else "undecided"


def above(interval: Interval) -> str:
    if interval.low > 0:
        return "holds"
    return "does not hold" if interval.high < 0 else "undecided"


def below(interval: Interval) -> str:
    return above(Interval(-interval.mean, -interval.high, -interval.low))


def draw(results: Results, query_ratio: float, document_ratio: float) -> dict[str, Figure]:
    """Figure 6: nDCG@10 against β^d and β^q, before and after refinement; bands are 95% intervals."""
    from matplotlib.figure import Figure

    figures = {}
    for side, name, fixed in ((1, "document", query_ratio), (0, "query", document_ratio)):
        line = along(results, fixed, side)
        figure = Figure(figsize=(9.5, 3.8), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, stage in zip(panels, STAGES, strict=True):
            for method in methods(results):
                found = [seeds_interval(values(results, method, pair, stage)) for pair in line]
                x, colour = [pair[side] for pair in line], COLOURS[method]
                axes.plot(x, [i.mean for i in found], marker="o", markersize=4, color=colour, label=method)
                low, high = [i.low for i in found], [i.high for i in found]
                axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
            axes.set_xscale("log")
            axes.set_xticks([pair[side] for pair in line], [f"{pair[side]:.0%}" for pair in line])
            axes.set_xticks([], minor=True)
            axes.set_xlabel(f"{name} tokens kept, $\\beta^{name[0]}$")
            axes.set_title(
                "refined with all vectors" if stage == "refined" else "pruned index alone", fontsize=10
            )
            axes.grid(color="0.9", linewidth=0.6)
        panels[0].set_ylabel("nDCG@10")
        panels[0].legend(frameon=False)
        letter, other = ("q", query_ratio) if side else ("d", document_ratio)
        figure.suptitle(f"Pruning {name} tokens by salience, $\\beta^{letter}$ = {other:.0%}", fontsize=11)
        figures[f"{name}_tokens"] = figure
    return figures
