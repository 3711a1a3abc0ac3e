"""Learning curves of a comparison, and the choice by dev queries among several trainings of one encoder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from studies.curves import Curves
from studies.model_runs import training_cost
from studies.pages import interval_text
from studies.trainings import start_of, training_runs, training_settings

from paradigms.evaluate import Interval, seeds_interval
from paradigms.evaluate.table import ResultTable
from paradigms.train.checkpoints import dev_values
from paradigms.train.fit import DEV_DEPTH
from paradigms.view.report import Picture

EQUAL = 1.5  # trainings are compared within the seconds of the shortest one times this


class Learning(NamedTuple):
    """Dev values of the systems whose trainings measured them, and mean seconds of a training."""

    points: dict[str, dict[int, list[np.ndarray]]]  # system -> training pairs -> an array for each seed
    seconds: dict[str, float]

    def within(self, name: str, seconds: float) -> int:
        """Return the pairs seen at the last measurement of a system's training within `seconds`."""
        curve = self.points[name]
        return max(pairs for pairs in curve if pairs * self.seconds[name] <= max(curve) * seconds)

    def dev(self, name: str, pairs: int) -> Interval:
        return seeds_interval(np.stack(self.points[name][pairs]))


def learning(settings: Any, processes: int) -> Learning:
    """Read what a comparison's trainings measured. settings: settings of compare.py, here and below."""
    folder = Path(settings.output)
    points: dict[str, dict[int, list[np.ndarray]]] = {}
    took: dict[str, list[float]] = {}
    for run, trial in training_runs(settings).items():
        values = dev_values(folder / run / "training")
        training = training_settings(settings.chosen[trial.system], settings, trial.seed) if values else None
        if values:
            took.setdefault(trial.system, []).append(training_cost(folder / run)["seconds"])
        for step, dev in values.items():
            assert training is not None
            pairs = step * training.batch_size * processes
            points.setdefault(trial.system, {}).setdefault(pairs, []).append(dev)
    return Learning(points, {name: float(np.mean(seconds)) for name, seconds in took.items()})


def learning_picture(learned: Learning) -> Iterator[Picture]:
    """Plot dev quality by number of training pairs, for every system whose training measured dev queries."""
    if not learned.points:
        return
    x = sorted({pairs for curve in learned.points.values() for pairs in curve})
    series = {
        name: [np.stack(curve[pairs]) if pairs in curve else None for pairs in x]
        for name, curve in learned.points.items()
    }
    curves = Curves("training pairs seen", x, {"nDCG@10, dev queries reranked": series}, "symlog")
    text = (
        f"{dev_queries(learned)}, with 95% intervals; 0 pairs: untrained. A point before the last is "
        "an earlier state of the same training, whose learning rate was still high, not a shorter training."
    )
    budget = min(learned.seconds.values())
    rows = []
    for row in curves.rows:
        reached = learned.dev(row["system"], learned.within(row["system"], budget))
        rows.append({key: cell for key, cell in row.items() if key != "measure"})
        rows[-1][f"after {budget:.0f} s, the shortest training"] = interval_text(reached)
    yield Picture("learning", "Learning curves", text, curves.draw(), rows)


def dev_queries(learned: Learning) -> str:
    numbers = {len(dev[0]) for curve in learned.points.values() for dev in curve.values()}
    return (
        f"nDCG@10 of {' or '.join(map(str, sorted(numbers)))} dev queries, reranking BM25's first "
        f"{DEV_DEPTH} documents and the relevant ones"
    )


def choices(
    learned: Learning, table: ResultTable, labels: Mapping[str, str], settings: Any
) -> Iterator[Picture]:
    """Make a table of the encoders that are trained in several ways, among which dev queries choose.

    table: results of searching for the test queries, which do not choose. labels: system -> name in tables.
    """
    ways: dict[str, list[str]] = {}
    for name in learned.points:
        ways.setdefault(start_of(name, settings), []).append(name)
    measure = table.measures[0]
    rows = []
    for group in ways.values():
        limit = EQUAL * min(learned.seconds[name] for name in group)
        pairs = {name: learned.within(name, limit) for name in group}
        dev = {name: np.stack(learned.points[name][seen]) for name, seen in pairs.items() if seen}
        choice = max(dev, key=lambda name: dev[name].mean(), default="")
        for name in group if len(group) > 1 else ():
            label = labels[name]
            took = learned.seconds[name]
            row = {"system": label, "training s": took}
            row |= dict.fromkeys(("s until dev", "nDCG@10, dev", "dev − chosen"), "–")
            if name in dev:
                row["s until dev"] = round(took * pairs[name] / max(learned.points[name]), 1)
                row["nDCG@10, dev"] = interval_text(seeds_interval(dev[name]))
                less = dev[name] - dev[choice]
                row["dev − chosen"] = "chosen" if name == choice else interval_text(seeds_interval(less), "+")
            rows.append(row | {f"{measure}, test, whole corpus": str(table.rows[label][measure])})
    text = (
        f"Dev: {dev_queries(learned)}, at the last measurement within {EQUAL} times the seconds of the "
        "encoder's shortest training; before the end of a training, its learning rate was still high. Dev "
        "queries choose the highest mean; the difference from it has an interval over the same queries. "
        "Seconds are those of training steps, without mining and a teacher's scores. Test: of the state "
        "that the whole training kept."
    )
    if rows:
        yield Picture("choices", "Trainings, chosen by dev queries", text, None, rows)
