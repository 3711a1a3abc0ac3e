"""Test the claims about adapting alignments in Qian et al. 2022 (ALIGNER); make its tables and figures."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from studies.curves import Curves, Values
from studies.model_runs import training_section, unlearned, unmoved
from studies.pages import Measured, Rows, Section, printed, shown, verdicts

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.adaptation import LEVEL, Adaptation, Rule, adapt, best, best_if_significant
from paradigms.evaluate.claims import READOUT, TRAINING, Claim
from paradigms.retrieve.strategies import MEASURED, STRATEGIES
from paradigms.scoring.threads import shared

PRINTED = printed("qian2022")
PAPER, TABLES, BM25 = "Qian et al. 2022", PRINTED["alignments"], PRINTED["bm25"]
BY_KIND = sorted(MEASURED, key=lambda name: "kpe".index(name[0]))  # k, p, eps, each ascending
SOFT = [name for name in MEASURED if name.startswith("eps=")]
SAID = PRINTED["adaptation"]  # name -> place, claim
CHOOSING = "is the alignment that is best on a few judged queries better than the default on the others?"
OTHER = "scifact"  # whose printed values are drawn beside a collection that is not in the paper
POINT = 0.01  # printed differences of nDCG@10 below this are not claims
CAREFUL = f"careful (test ≤ {LEVEL:g})"
RULES: dict[str, Rule] = {"best": best, CAREFUL: best_if_significant}
ASKED = (8, 16, 32)  # numbers of judged queries for `answer`
ZERO_SHOT, IN_DOMAIN = "zero-shot", "in-domain, other queries"  # origins of a given checkpoint
SHARE = 8  # queries per judged query; with 3, 95% intervals of gains cover only 82% (tests/evaluate)


class Task:
    """ALIGNER models trained with one alignment (the default strategy), measured on one collection.

    models: nDCG@10 of each model, all for the same queries and strategies.
    """

    def __init__(self, models: Sequence[Measured], shots: Sequence[int]) -> None:
        first = models[0]
        # origin: ZERO_SHOT or IN_DOMAIN of a given checkpoint; "" if the study trained the models
        self.name, self.own, self.origin = (first[k] for k in ("collection", "trained_with", "origin"))
        self.models, self.shots, self.strategies = models, sorted(shots), list(first["values"])
        self.values: Float[np.ndarray, "seeds strategies queries"] = np.array(
            [[model["values"][name] for name in self.strategies] for model in models]
        )
        # strategy -> share of documents in which it aligns more than one token
        self.several = {s: float(np.mean([m["several"][s] for m in models])) for s in first["several"]}
        self.bm25: Float[np.ndarray, " queries"] = np.array(first["bm25"])
        self.label = ", ".join(filter(None, (self.name, self.origin, f"trained with {self.own}")))
        # the collection's name in the paper's tables, or ""
        self.paper = next((name for name in BM25 if name in self.name.lower()), "")

    def of(self, strategy: str) -> Values:
        return self.values[:, self.strategies.index(strategy)]

    def printed(self, strategy: str) -> float | None:
        """Return the paper's nDCG@10 of the strategy, or None if the paper does not print it."""
        table = TABLES.get(self.own, {"strategies": []})
        row = dict(zip(table["strategies"], table.get(self.paper, ()), strict=False))
        return row[strategy] / 100 if strategy in row else None

    @cached_property
    def candidates(self) -> Float[np.ndarray, "seeds strategies queries"]:
        """Return nDCG@10 of the default strategy and of the paper's candidate strategies."""
        names = [self.own, *(name for name in STRATEGIES if name != self.own)]
        return self.values[:, [self.strategies.index(name) for name in names]]

    @cached_property
    def adapted(self) -> dict[tuple[str, int], list[Adaptation]]:
        """Return {(rule, shots): one `Adaptation` per seed}, for shots up to 1/`SHARE` of the queries."""
        few = [shots for shots in self.shots if SHARE * shots <= self.values.shape[-1]]
        wanted = [(rule, shots) for rule in RULES for shots in few]
        work = [(of_seed, shots, RULES[rule]) for rule, shots in wanted for of_seed in self.candidates]
        adaptations = iter(shared(lambda work: adapt(*work), work, torch.get_num_threads()))
        return {key: [next(adaptations) for _ in self.candidates] for key in wanted}

    def gain(self, shots: int, rule: str = "best") -> Values | None:
        adaptations = self.adapted.get((rule, shots))
        return None if adaptations is None else np.stack([adaptation.gain for adaptation in adaptations])


def difference(task: Task, better: float | None, worse: float | None) -> str:
    """Format the difference between two printed values, for `Claim.printed`; "" if either is missing."""
    if better is None or worse is None:
        return ""
    return f"{better - worse:+.3f}" + " (NQ)" * (task.paper == "squad")


def claims(tasks: Sequence[Task]) -> list[Claim]:
    """Return every claim that these collections and training alignments can test."""
    trained = [task for task in tasks if not task.origin]
    made = [claim for task in tasks if task.own == "k=1" for claim in _of_top_1(task)]
    owns, best_ones = dict.fromkeys(task.own for task in trained), ("k=1", "p=0.5%")
    for best_of, trained_with in product(best_ones, [own for own in owns if own not in best_ones]):
        pairs = [
            (better, worse)
            for better, worse in product(trained, trained)
            if (better.name, better.own, worse.own) == (worse.name, best_of, trained_with)
        ]
        for some in [*([pair] for pair in pairs), *([pairs] if len(pairs) > 1 else [])]:
            made.append(_between(best_of, trained_with, some))
    for trained_with in owns:
        gains = {task: task.gain(max(task.shots)) for task in trained if task.own == trained_with}
        if measured := {task: gain for task, gain in gains.items() if gain is not None}:
            most = max(next(iter(measured)).shots)
            what = f"trained with {trained_with}, adapted with {most} examples − default"
            said = SAID["softly"] if trained_with in SOFT else ("", CHOOSING)
            made.append(_claim([*measured], *said, what, [*measured.values()]))
    return [*made, *(claim for task in trained if task.own != "k=1" for claim in _of_table(task))]


def _of_table(task: Task) -> list[Claim]:
    """Return claims about strategies whose printed nDCG@10 differs from the default's by `POINT` or more."""
    table, default, made = TABLES.get(task.own, {"strategies": []}), task.printed(task.own), list[Claim]()
    for name in table["strategies"]:
        other, contrast = task.printed(name), task.of(task.own) - task.of(name)
        if default is None or other is None or abs(default - other) < POINT or not contrast.any():
            continue  # the paper has no number, or the strategies agree on short documents
        statement, sign = (
            f"{task.own} {100 * default:.1f}, {name} {100 * other:.1f}",
            np.sign(default - other),
        )
        what = f"trained with {task.own}, " + " − ".join([task.own, name][:: int(sign)])
        said = difference(task, *sorted((default, other), reverse=True))
        made.append(_claim([task], table["place"], statement, what, [sign * contrast], said))
    return made


def _claim(
    tasks: Sequence[Task],
    place: str,
    statement: str,
    what: str,
    contrasts: Sequence[Values],
    said: str = "",
    about: str = READOUT,
) -> Claim:
    """Return a claim about the mean of the contrasts, of which there is one per task or pair of tasks."""
    quantity = ", ".join(filter(None, (f"nDCG@10 on {_places(tasks)}", tasks[0].origin, what)))
    names = (unlearned({f"ALIGNER ({t.label})": t.of(t.own).mean()}, t.bm25.mean(), t.models) for t in tasks)
    poor, where = next(filter(None, names), ""), place and f"{PAPER}, {place}"
    still = unmoved({t.label: t.models for t in tasks})
    more = {"unlearned": poor, "unmoved": still, "about": about}
    return Claim(where, statement, quantity, _average(contrasts), printed=said, **more)


def _between(best_of: str, other: str, pairs: Sequence[tuple[Task, Task]]) -> Claim:
    """Return a claim that compares two alignments, each used in training and test, averaged over pairs."""
    seeds = [min(len(better.values), len(worse.values)) for better, worse in pairs]
    contrasts = [b.of(best_of)[:n] - w.of(other)[:n] for n, (b, w) in zip(seeds, pairs, strict=True)]
    better, worse = pairs[0]
    said = difference(better, better.printed(best_of), worse.printed(other)) if len(pairs) == 1 else ""
    what = f"trained and tested with {best_of} − with {other}"
    return _claim([task for pair in pairs for task in pair], *SAID["best"], what, contrasts, said, TRAINING)


def _of_top_1(task: Task) -> list[Claim]:
    """Return the claims about a model trained with k = 1."""
    made = list[Claim]()

    def claim(place: str, statement: str, what: str, contrast: Values, *values: float | None) -> None:
        """Add a claim. values: the two printed values whose difference is the contrast."""
        said = difference(task, *values) if values else ""
        made.append(_claim([task], place, statement, what, [contrast], said))

    def strategies(place: str, statement: str, more: str, less: str) -> None:
        contrast = task.of(more) - task.of(less)
        claim(place, statement, f"{more} − {less}", contrast, task.printed(more), task.printed(less))

    for dense in ("k=8", "k=16", "p=2%", "p=5%"):
        if task.several.get(dense, 1.0) > 0:
            strategies(*SAID["sparse"], "k=1", dense)
    if task.paper == "squad":
        strategies(*SAID["questions"], "k=1", "k=2")
    if task.paper == "scifact":
        strategies(*SAID["more"], "k=2", "k=1")
    if task.origin == ZERO_SHOT and task.paper:
        ours, theirs = TABLES["k=1"][task.paper][0], BM25[task.paper]
        statement, contrast = f"BM25 {theirs}, ALIGNER base {ours}", task.of("k=1") - task.bm25
        claim("Table 2, zero-shot", statement, "k=1 − BM25", contrast, ours / 100, theirs / 100)
    eight, sixteen = task.gain(8), task.gain(16)
    if task.paper == "squad" and eight is not None:  # for any best strategy on these queries
        printed = task.printed("k=1"), PRINTED["adapted"] / 100
        claim(*SAID["hurts"], "k=1 − adapted with 8 examples", -eight, *printed)
    if eight is not None and sixteen is not None:
        claim(*SAID["sixteen"], "16 examples − 8", sixteen - eight)
    return made


def _places(tasks: Iterable[Task]) -> str:
    names = list(dict.fromkeys(task.name for task in tasks))
    return names[0] if len(names) == 1 else f"the average of {', '.join(names)}"


def _average(contrasts: Sequence[Values]) -> Values:
    """Combine contrasts into values whose mean over queries is the mean of the contrasts' means."""
    seeds, queries = min(map(len, contrasts)), sum(c.shape[1] for c in contrasts)
    weights = [queries / (len(contrasts) * c.shape[1]) for c in contrasts]
    return np.concatenate([w * c[:seeds] for w, c in zip(weights, contrasts, strict=True)], axis=1)


def answer(tasks: Sequence[Task]) -> Rows:
    """Make rows that state whether choosing a strategy with few judged queries gains or costs nDCG@10.

    The first rows are means over collections, for each training alignment; rows for single collections
    follow.
    """
    groups = [
        [task for task in tasks if task.own == trained_with]
        for trained_with in dict.fromkeys(task.own for task in tasks)
    ]
    means = [(f"{_places(group)}, trained with {group[0].own}", group) for group in groups if len(group) > 1]
    rows: Rows = []
    for (name, group), shots in product([*means, *((task.label, [task]) for task in tasks)], ASKED):
        row: dict[str, Any] = {"collection": name, "judged queries": shots}
        for rule in RULES:
            gains = [gain for task in group if (gain := task.gain(shots, rule)) is not None]
            if len(gains) == len(group):
                gain = seeds_interval(_average(gains))
                word = "pays" if gain.low > 0 else "costs" if gain.high < 0 else "not decided"
                row[rule] = f"{word}: {shown(gain, '+')}"
        rows += [row] if len(row) > 2 else []
    return rows


def describe(tasks: Sequence[Task]) -> dict[str, Section]:
    """Return the page's sections, keyed by file name."""
    strategies = [name for name in BY_KIND if all(name in task.strategies for task in tasks)]
    curves = _by_strategy(tasks, strategies)
    several = [
        {"measure": "documents with several aligned tokens", "system": task.label}
        | {s: f"{task.several[s]:.1%}" if s in task.several else "–" for s in strategies}
        for task in tasks
    ]
    paper = [
        {"measure": "nDCG@10 in the paper", "system": task.label}
        | {s: "–" if (value := task.printed(s)) is None else f"{value:.3f}" for s in strategies}
        for task in tasks
        if task.printed(task.own) is not None
    ]
    shots = [n for n in tasks[0].shots if all(task.gain(n) is not None for task in tasks)]
    gains: Any = {
        f"gain of nDCG@10\n{task.label}": {rule: [task.gain(n, rule) for n in shots] for rule in RULES}
        for task in tasks
    }
    return {
        "training": training_section({task.label: task.models for task in tasks}),
        "answer": Section(
            "With few judged queries, when does choosing an alignment pay?",
            "Gains of nDCG@10 on other queries, by the paper's rule, best, and the careful one. "
            "pays: the interval is above 0; costs: below 0; not decided: it holds 0.",
            answer(tasks),
        ),
        "claims": verdicts(
            claims(tasks),
            "The paper's differences are of its base model, trained on MS MARCO; ours are trained on the "
            "collection itself, but for zero-shot ones.",
            PRINTED["undecided alignments"],
        ),
        "figure4": Section(
            "nDCG@10 by alignment strategy (Figure 4, Tables 3, 7, 11 and 12)",
            "Top-p aligns a second token only in documents of at least 2/p tokens; in shorter ones it is "
            "k = 1.",
            [*curves.rows, *paper, *several],
            curves.draw(),
        ),
        "figure5": Section(
            "Few-shot adaptation (Figure 5, Table 2)",
            "Each fold of judged queries chooses an alignment, and the other queries measure the gain over "
            "the alignment of training. best: the highest mean on the fold. "
            f"{CAREFUL}: best if its advantage is significant (one-sided sign-flip test on the fold, "
            "Westfall & Young). Rows: nDCG@10 is the mean ± standard deviation over folds; changed is the "
            "share of folds that leave the default.",
            [row for task in tasks for row in _shots(task)],
            Curves("judged queries", shots, gains).draw(),
        ),
        "table13": Section(
            "Trained with an entropic alignment, by ε (Table 13)",
            rows=_by_strategy([task for task in tasks if task.own in SOFT], SOFT).rows,
        ),
    }


def _by_strategy(tasks: Sequence[Task], strategies: Sequence[str]) -> Curves:
    series = {task.label: [task.of(strategy) for strategy in strategies] for task in tasks}
    printed = {}
    for task in tasks:
        table, paper = TABLES.get(task.own, {}), task.paper or OTHER
        numbers = dict(zip(table.get("strategies", ()), table.get(paper, ()), strict=False))
        if any(name in numbers for name in strategies):
            shares = [numbers[name] / 100 if name in numbers else None for name in strategies]
            printed[f"{paper}, trained with {task.own}"] = shares
    return Curves("strategy", strategies, {"nDCG@10": series}, printed={"nDCG@10": printed}, joined=False)


def _shots(task: Task) -> Rows:
    """Make a row for each number of shots and each rule."""
    rows = []
    for (rule, shots), adaptations in sorted(task.adapted.items(), key=lambda item: item[0][1]):
        scores = np.concatenate([adaptation.adapted for adaptation in adaptations])
        row: dict[str, Any] = {"collection": task.label, "shots": shots, "rule": rule}
        row |= {"default": f"{task.of(task.own).mean():.3f}"}
        row |= {"best, chosen on all these queries": f"{task.candidates.mean(axis=(0, 2)).max():.3f}"}
        row |= {"nDCG@10": f"{scores.mean():.3f} ± {scores.std():.3f}"}
        row |= {"gain": shown(seeds_interval(np.stack([a.gain for a in adaptations])), "+")}
        rows.append(row | {"changed": f"{np.mean([a.chosen != 0 for a in adaptations]):.0%}"})
    return rows
