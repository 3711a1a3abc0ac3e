"""The tables and the figures of alignment_adaptation.py, from what it measured."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from studies.adaptation_claims import Adapted, Rows, Task, claims, rules, shown
from studies.pages import Section

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.report import PALETTE
from paradigms.io.files import atomic_text, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def describe(tasks: list[Task]) -> list[Section]:
    """The sections of the page and of the console; the first holds the claims."""
    strategies = tasks[0].strategies
    means = {task.label: task.values.mean(axis=(0, 2)) for task in tasks}
    table = [
        {"strategy": s} | {label: mark(values, n) for label, values in means.items()}
        for n, s in enumerate(strategies)
    ]
    sections = [
        Section(
            "What the paper says and what we measured",
            "Differences of nDCG@10 with 95% intervals; the paper's are of its base model. The verdict is "
            "about the sign: holds or contrary where the interval excludes 0, else undecided.",
            claims(tasks),
        ),
        Section(
            "nDCG@10 by alignment strategy (Tables 3 and 7 to 13)",
            "Columns: collection and training alignment; * marks the best strategy, the oracle.",
            table,
            ["figure4"],
        ),
        Section(
            "Difference from the training alignment",
            "",
            [{"strategy": s} | {task.label: shown(task.difference(s)) for task in tasks} for s in strategies],
        ),
        Section(
            "Share of documents of which a strategy aligns more than one token",
            "Where it is 0, top-p is k = 1 by its definition: ⌊p·m⌋ reaches 2 from 2/p tokens on.",
            [
                {"strategy": s} | {task.label: f"{task.several[s]:.1%}" for task in tasks}
                for s in strategies
                if s.startswith("p")
            ],
        ),
    ]
    for number, task in enumerate(tasks):
        sections.append(
            Section(
                f"Few-shot adaptation of {task.label}",
                f"{task.values.shape[2]} queries, {len(task.values)} training seed(s). Default {task.own}: "
                f"{means[task.label][task.default]:.3f}; oracle: {means[task.label].max():.3f}. nDCG@10 on "
                "the queries outside each fold, mean ± standard deviation over folds, and the gain over the "
                "default on the same queries. best: the paper's rule; p ≤ α: best if its advantage is "
                "significant at α (one-sided sign-flip test on the fold, corrected for all strategies), and "
                "what it keeps of best's gains and avoids of its losses on single folds. changed: share of "
                "folds that leave the default.",
                shot_rows(task.adapted, task.default),
                [] if number else ["figure5"],
            )
        )
        sections.append(
            Section(
                f"The same from {strategies[task.wrong]}, as if {task.label} had it as its default",
                f"Where there is much to gain: {strategies[task.wrong]} has "
                f"{means[task.label][task.wrong]:.3f}. What of the gains does the careful rule keep?",
                shot_rows(task.from_wrong, task.wrong),
            )
        )
    return sections


def mark(values: np.ndarray, n: int) -> str:
    return f"{values[n]:.3f}{'*' if values[n] == values.max() else ' '}"


def shot_rows(adapted: Adapted, default: int) -> Rows:
    """Figure 5 as a table: a row for every number of shots and rule."""
    rows = []
    for (rule, shots), found in sorted(adapted.items(), key=lambda item: item[0][1]):
        scores, gains = (np.concatenate([getattr(a, name) for a in found]) for name in ("adapted", "gain"))
        plain = np.concatenate([a.gain for a in adapted["best", shots]])
        row = {
            "shots": shots,
            "folds": len(found[0].chosen),
            "rule": rule,
            "nDCG@10": f"{scores.mean():.3f} ± {scores.std():.3f}",
            "gain": shown(seeds_interval(np.stack([a.gain for a in found])), 4),
            "changed": f"{np.mean([a.chosen != default for a in found]):.0%}",
            "gains kept": share(gains.clip(min=0).sum(), plain.clip(min=0).sum()),
            "losses avoided": share((plain - gains).clip(max=0).sum(), plain.clip(max=0).sum()),
        }
        rows.append(row)
    return rows


def share(part: float, whole: float) -> str:
    return f"{abs(part / whole):.0%}" if whole else "–"  # without the sign of −0


def write_tables(folder: Path, tasks: list[Task]) -> None:
    """strategies.csv: every model's means; adaptation.csv: every fold; results.json: the tables."""
    means: Rows = []
    every: Rows = []
    for task in tasks:
        key = {"collection": task.name, "trained_with": task.own}
        for seed, of_seed in enumerate(task.values):
            for strategy, of_strategy in zip(task.strategies, of_seed, strict=True):
                means.append(key | {"model": seed, "strategy": strategy, "nDCG@10": of_strategy.mean()})
        for (rule, shots), of_rule in task.adapted.items():
            for seed, found in enumerate(of_rule):
                for fold, chosen in enumerate(found.chosen):
                    row = key | {"model": seed, "rule": rule, "shots": shots, "fold": fold}
                    row |= {"chosen": task.strategies[chosen], "adapted": found.adapted[fold]}
                    every.append(row | {"default": found.default[fold], "oracle": found.oracle[fold]})
    for name, rows in (("strategies.csv", means), ("adaptation.csv", every)):
        with atomic_text(folder / name) as stream:
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    tables = {
        task.label: {
            "strategies": means_of(task),
            "adaptation": shot_rows(task.adapted, task.default),
            f"adaptation from {task.strategies[task.wrong]}": shot_rows(task.from_wrong, task.wrong),
        }
        for task in tasks
    }
    write_json(folder / "results.json", tables)


def means_of(task: Task) -> dict[str, dict[str, float]]:
    return {
        s: seeds_interval(task.values[:, n])._asdict() | {"several": task.several[s]}
        for n, s in enumerate(task.strategies)
    }


def draw(tasks: list[Task]) -> dict[str, Figure]:
    """Figures 4 (nDCG@10 by strategy) and 5 (by the number of shots), by the name of their file."""
    return {"figure4": _figure4(tasks), "figure5": _figure5(tasks)}


def _figure4(tasks: list[Task]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for number, task in enumerate(tasks):
        means = means_of(task)
        for axes, letter in zip(panels, "kp", strict=True):
            names = [s for s in task.strategies if s.startswith(letter)]
            rows = [means[s] for s in names]
            middle = np.array([row["mean"] for row in rows])
            ends = np.array([[row["mean"] - row["low"], row["high"] - row["mean"]] for row in rows]).T
            places = np.arange(len(names)) + 0.06 * (number - (len(tasks) - 1) / 2)
            axes.errorbar(
                places,
                middle,
                ends,
                fmt="o-",
                capsize=2,
                color=PALETTE[number % len(PALETTE)],
                label=f"{task.name}, trained with {task.own}",
            )
            axes.set_xticks(range(len(names)), [s.split("=")[1] for s in names])
            axes.grid(alpha=0.3)
    panels[0].set(xlabel="k", ylabel="nDCG@10", title="the k best document tokens")
    panels[1].set(xlabel="p", title="a share p of the document's tokens")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _figure5(tasks: list[Task]) -> Figure:
    from matplotlib.figure import Figure

    columns = min(3, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.6 * lines + 0.3), layout="constrained")
    for number, task in enumerate(tasks, start=1):
        axes = figure.add_subplot(lines, columns, number)
        shots = list(dict.fromkeys(shots for _, shots in task.adapted))
        for place, rule in enumerate(rules(task)):
            found = [np.concatenate([a.adapted for a in task.adapted[rule, n]]) for n in shots]
            axes.errorbar(
                np.arange(len(shots)) + 0.08 * place,
                [x.mean() for x in found],
                [x.std() for x in found],
                fmt="o-",
                capsize=3,
                color=PALETTE[place],
                label="best (the paper's rule)" if rule == "best" else rule,
            )
        means = task.values.mean(axis=(0, 2))
        axes.axhline(means[task.default], color="0.4", ls="--", lw=1, label="default")
        axes.axhline(means.max(), color="0.4", ls=":", lw=1, label="oracle")
        axes.set_xticks(range(len(shots)), [str(n) for n in shots])
        axes.set_title(f"{task.label}; oracle: {task.strategies[means.argmax()]}", fontsize=10)
        axes.set(xlabel="judged queries", ylabel="nDCG@10 ± deviation over folds")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure
