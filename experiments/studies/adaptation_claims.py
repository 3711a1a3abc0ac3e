"""What Qian et al. 2022 (ALIGNER) claim about adapting alignments, beside what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paradigms.evaluate import Interval, bootstrap_interval, seeds_interval
from paradigms.evaluate.adaptation import Adaptation

Rows = list[dict[str, Any]]

# nDCG@10 in percent of the paper's base model, in the order of STRATEGIES: Tables 7 (trained with k = 1) and
# 11 (k = 4), and with 8 shots Table 2. SQuAD is no task of the paper; NQ, question answering too, is.
PAPER: dict[str, tuple[str, dict[str, Sequence[float]], float]] = {
    "scifact": (
        "SciFact",
        {
            "k=1": (70.4, 68.8, 65.0, 60.9, 55.6, 71.1, 69.4, 67.2, 62.7),
            "k=4": (70.1, 70.6, 70.4, 69.2, 68.0, 69.6, 66.7, 65.6, 64.9),
        },
        68.8,
    ),
    "nfcorpus": (
        "NFCorpus",
        {
            "k=1": (34.0, 33.2, 32.0, 29.9, 27.8, 33.6, 31.7, 30.5, 28.6),
            "k=4": (31.8, 33.5, 33.9, 33.6, 33.0, 29.9, 26.3, 25.7, 25.2),
        },
        32.9,
    ),
    "squad": (
        "NQ",
        {
            "k=1": (52.2, 48.3, 36.3, 26.6, 19.9, 52.2, 49.2, 43.5, 36.3),
            "k=4": (42.3, 49.4, 52.4, 51.2, 49.1, 42.3, 37.3, 30.9, 25.3),
        },
        49.0,
    ),
}
OUT_OF_REACH = (
    (
        "ArguAna gains 17.4 points and Touché-2020 15.1 from 8 examples",
        "no argument retrieval collection here",
    ),
    ("FEVER and Climate-FEVER are best at k = 2 to 6", "neither collection here"),
    ("the BEIR average rises from 47.1 to 49.2 (base) and from 51.1 to 52.6 (xxl)", "thirteen collections"),
    ("larger models gain as much from adaptation", "one encoder, 22.7 M parameters"),
)


Adapted = dict[tuple[str, int], list[Adaptation]]  # rule, shots -> one for each seed


@dataclass(frozen=True, eq=False)
class Task:
    """One collection and the ALIGNERs trained with one alignment on it (or for it)."""

    name: str
    own: str  # the training alignment, the default
    strategies: list[str]
    values: np.ndarray  # nDCG@10, [seeds, strategies, queries]
    default: int
    several: dict[str, float]  # strategy -> share of documents of which it aligns more than one token
    adapted: Adapted
    wrong: int  # a strategy that adaptation also starts from, as if it were the default
    from_wrong: Adapted

    @property
    def label(self) -> str:
        return f"{self.name}, {self.own}"

    def difference(self, strategy: str, other: str | None = None) -> Interval:
        """Mean nDCG@10 of a strategy less that of another, by default the task's own."""
        a, b = self.strategies.index(strategy), self.strategies.index(other or self.own)
        return seeds_interval(self.values[:, a] - self.values[:, b])

    def gain(self, rule: str, shots: int) -> Interval | None:
        """What adaptation changes on the queries outside the folds; over seeds and folds."""
        found = self.adapted.get((rule, shots))
        return None if found is None else seeds_interval(np.stack([a.gain for a in found]))


def shown(interval: Interval, digits: int = 3) -> str:
    return f"{interval.mean:+.{digits}f} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


def rules(task: Task) -> list[str]:
    return list(dict.fromkeys(rule for rule, _ in task.adapted))


def claims(tasks: list[Task]) -> Rows:
    """Every checkable statement about what is here, then those that are not checkable here."""
    rows: Rows = []
    for task in tasks:
        name, tables, few = said_of(task.name)
        if task.own not in tables:
            continue
        values = dict(zip(task.strategies, tables[task.own], strict=True))
        about = task.label if name.lower() in task.name.lower() else f"{task.label} (paper: {name})"
        for strategy in ("k=2", "k=8", "p=0.5%", "p=2%") if task.own == "k=1" else ("k=1", "k=8"):
            if task.several.get(strategy, 1.0) > 0:
                said = values[strategy] - values[task.own]
                rows.append(claim(f"{about}: {strategy} against {task.own}", said, task.difference(strategy)))
        gain = task.gain("best", 8)
        if task.own == "k=1" and gain is not None:
            rows.append(claim(f"{about}: 8 examples against the default", few - values["k=1"], gain))
    rows += across(tasks) + sixteen(tasks) + careful(tasks)
    return rows + [
        {"claim": text, "the paper": "yes", "measured": why, "verdict": "out of reach"}
        for text, why in OUT_OF_REACH
    ]


def said_of(collection: str) -> tuple[str, dict[str, Sequence[float]], float]:
    """What PAPER has on a collection, or on one of its kind; nothing where it has none."""
    return next((found for key, found in PAPER.items() if key in collection.lower()), ("", {}, 0.0))


def claim(text: str, said: float, measured: Interval) -> dict[str, Any]:
    """said: the paper's difference in points of nDCG@10."""
    positive, negative = measured.low > 0, measured.high < 0
    if said == 0:
        verdict = "contrary" if positive or negative else "holds"
    elif positive or negative:
        verdict = "holds" if (said > 0) == positive else "contrary"
    else:
        verdict = "undecided"
    return {"claim": text, "the paper": f"{said / 100:+.3f}", "measured": shown(measured), "verdict": verdict}


def across(tasks: list[Task]) -> Rows:
    """Statements about two tasks: of two kinds, or of one collection under two training alignments."""
    found = {(task.name, task.own): task for task in tasks}
    rows: Rows = []
    answering = [task for task in tasks if "squad" in task.name.lower() and task.own == "k=1"]
    others = [t for t in tasks if t not in answering and t.own == "k=1" and said_of(t.name)[1]]
    for a in answering:
        for b in others:
            losses = [relative(task, "k=4") for task in (a, b)]
            apart = losses[0].high < losses[1].low, losses[0].low > losses[1].high
            verdict = "holds" if apart[0] else "contrary" if apart[1] else "undecided"
            rows.append(
                {
                    "claim": f"k = 4 costs question answering ({a.name}) a larger share than {b.name}",
                    "the paper": "NQ −30%, SciFact −8%, NFCorpus −6%",
                    "measured": " against ".join(
                        f"{x.mean:+.1%} [{x.low:+.1%}, {x.high:+.1%}]" for x in losses
                    ),
                    "verdict": verdict,
                }
            )
    for (name, own), task in found.items():
        base = found.get((name, "k=1"))
        if own != "k=4" or base is None:
            continue
        tables = said_of(name)[1]
        if not tables:
            continue
        one, eight = (task.strategies.index(s) for s in ("k=1", "k=8"))
        tilt = [(x.values[:, eight] - x.values[:, one]).mean(axis=0) for x in (task, base)]
        said = (tables["k=4"][eight] - tables["k=4"][one]) - (tables["k=1"][eight] - tables["k=1"][one])
        text = f"{name}: training with k = 4 in place of k = 1 moves k = 8 − k = 1 by"
        rows.append(claim(text, said, bootstrap_interval(tilt[0] - tilt[1])))
        own_values = [x.values[:, x.default].mean(axis=0) for x in (task, base)]
        said = tables["k=4"][task.default] - tables["k=1"][base.default]
        text = f"{name}: trained and tested with k = 4 against trained and tested with k = 1"
        rows.append(claim(text, said, bootstrap_interval(own_values[0] - own_values[1])))
    return rows


def relative(task: Task, strategy: str) -> Interval:
    """The difference from the default as a share of the default's mean."""
    mean = task.values[:, task.default].mean()
    return Interval(*(x / mean for x in task.difference(strategy)))


def sixteen(tasks: list[Task]) -> Rows:
    """Figure 5: 16 examples give a higher and steadier average than 8."""
    gains, deviations = [], []
    for task in tasks:
        found = [task.adapted.get(("best", shots), []) for shots in (8, 16)]
        if all(found):
            folds = [np.concatenate([a.gain for a in of_shots]) for of_shots in found]
            deviations.append([x.std() for x in folds])
            gains.append([seeds_interval(np.stack([a.gain for a in of_shots])) for of_shots in found])
    if not gains:
        return []
    change = float(np.mean([after.mean - before.mean for before, after in gains]))
    halves = [(interval.high - interval.low) / 2 for pair in gains for interval in pair]
    half = float(np.linalg.norm(halves)) / len(gains)  # folds of 8 and of 16 are drawn apart
    eight, more = np.mean(deviations, axis=0)
    verdict = "contrary" if change + half < 0 else "holds" if change > half and more < eight else "undecided"
    return [
        {
            "claim": "16 examples against 8: a higher average, and a smaller standard deviation",
            "the paper": "both",
            "measured": f"{change:+.4f} ± {half:.4f}; deviation {eight:.4f}, then {more:.4f}",
            "verdict": verdict,
        }
    ]


def careful(tasks: list[Task]) -> Rows:
    """Ours: the rule that adapts on significant evidence only does not lose on average."""
    rows: Rows = []
    for rule in rules(tasks[0])[1:]:
        gains = {
            (task, shots): interval
            for task in tasks
            for (of_rule, shots) in task.adapted
            if of_rule == rule and (interval := task.gain(rule, shots)) is not None
        }
        if not gains:
            continue
        (task, shots), worst = min(gains.items(), key=lambda item: item[1].mean)
        level, means = float(rule.removeprefix("p ≤ ")), task.values.mean(axis=(0, 2))
        rows.append(
            {
                "claim": f"adapting only when {rule} never loses on average",
                "the paper": "not in the paper",
                "measured": f"no loss in {sum(x.mean >= 0 for x in gains.values())} of {len(gains)} (task, "
                f"shots); worst {shown(worst, 4)} ({task.label}, {shots} shots), where level · (default − "
                f"worst) is {level * (means[task.default] - means.min()):.4f}",
                "verdict": "holds" if worst.mean >= 0 else "contrary" if worst.high < 0 else "within chance",
            }
        )
    return rows
