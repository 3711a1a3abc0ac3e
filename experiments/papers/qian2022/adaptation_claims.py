"""Describe alignment_adaptation.py: the claims about adapting alignments in Qian et al. 2022 (ALIGNER)."""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from studies.claims import Study, Values, printed
from studies.curves import Curves
from studies.gains import training_section, unlearned
from studies.pages import Measured, Rows, Section, interval_text

from paradigms.align import Alignment, Entropic, TopK, TopP
from paradigms.evaluate import seeds_interval
from paradigms.evaluate.adaptation import LEVEL, Adaptation, Rule, adapt, best, best_if_significant
from paradigms.scoring.threads import shared

PRINTED = printed("qian2022")
TABLES = PRINTED["alignments"]
BM25 = PRINTED["bm25"]
# §3.1 and §4.1: a trained model is adapted to a task by choosing how many document tokens each query token
# aligns with, k tokens or a share p of the document's length. The paper's choices, in the order of Table 7:
STRATEGIES: dict[str, Alignment] = {f"k={k}": TopK(k) for k in (1, 2, 4, 6, 8)} | {
    f"p={p:g}%": TopP(p / 100) for p in (0.5, 1.0, 1.5, 2.0)
}
# The same, with all other alignments that the paper measures or trains with: Table 3, Figure 4, Table 13.
MEASURED = STRATEGIES | {"k=16": TopK(16), "p=4%": TopP(0.04), "p=5%": TopP(0.05)}
MEASURED |= {f"eps={eps:g}": Entropic(k=1, eps=eps) for eps in (0.01, 0.02, 0.04, 0.06, 0.1)}
BY_KIND = sorted(MEASURED, key=lambda name: "kpe".index(name[0]))  # k, p, eps, each ascending
SOFT = [name for name in MEASURED if name.startswith("eps=")]
DENSE = ("k=8", "k=16", "p=2%", "p=5%")
PRINTED_BEST = ("k=1", "p=0.5%")  # in training, according to the paper
OTHER = "scifact"  # whose printed values are drawn beside a collection that is not in the paper
POINT = 0.01  # printed differences of nDCG@10 below this are not claims
CAREFUL = f"careful (test ≤ {LEVEL:g})"
RULES: dict[str, Rule] = {"best": best, CAREFUL: best_if_significant}
# origins of a given checkpoint
ZERO_SHOT = "zero-shot"
IN_DOMAIN = "in-domain, other queries"
SHARE = 8  # queries per judged query; with 3, 95% intervals of gains cover only 82% (tests/evaluate)
MEASURE = "nDCG@10"


class Task:
    """ALIGNER models trained with one alignment (the default strategy), measured on one collection.

    models: nDCG@10 of each model, all for the same queries and strategies.
    """

    def __init__(self, models: Sequence[Measured], shots: Sequence[int]) -> None:
        first = models[0]
        # origin: ZERO_SHOT or IN_DOMAIN of a given checkpoint; "" if the study trained the models
        self.name = first["collection"]
        self.trained_with = first["trained_with"]
        self.origin = first["origin"]
        self.places = [self.name, self.origin]
        self.models = models
        self.shots = sorted(shots)
        self.strategies = list(first["values"])
        self.values: Float[np.ndarray, "seeds strategies queries"] = np.array(
            [[model["values"][name] for name in self.strategies] for model in models]
        )
        # strategy -> share of documents in which it aligns more than one token
        self.several = {s: float(np.mean([m["several"][s] for m in models])) for s in first["several"]}
        self.bm25: Float[np.ndarray, " queries"] = np.array(first["bm25"])
        self.label = ", ".join(filter(None, (self.name, self.origin, f"trained with {self.trained_with}")))
        # the collection's name in the paper's tables, or ""
        self.paper = next((name for name in BM25 if name in self.name.lower()), "")

    def of(self, strategy: str) -> Values:
        return self.values[:, self.strategies.index(strategy)]

    def printed(self, paper: str = "") -> dict[str, float]:
        """Return the paper's nDCG@10 of each strategy. paper: another collection in the paper's tables."""
        table = TABLES.get(self.trained_with, {"strategies": []})
        percents = zip(table["strategies"], table.get(paper or self.paper, ()), strict=False)
        return {strategy: percent / 100 for strategy, percent in percents}

    @cached_property
    def candidates(self) -> Float[np.ndarray, "seeds strategies queries"]:
        """Return nDCG@10 of the default strategy and of the paper's candidate strategies."""
        names = [self.trained_with, *(name for name in STRATEGIES if name != self.trained_with)]
        return self.values[:, [self.strategies.index(name) for name in names]]

    @cached_property
    def adapted(self) -> dict[tuple[str, int], list[Adaptation]]:
        """Return {(rule, shots): one `Adaptation` per seed}, for shots up to 1/`SHARE` of the queries."""
        few = [shots for shots in self.shots if SHARE * shots <= self.values.shape[-1]]
        pairs = [(rule, shots) for rule in RULES for shots in few]
        work = [(of_seed, shots, RULES[rule]) for rule, shots in pairs for of_seed in self.candidates]
        adaptations = iter(shared(lambda work: adapt(*work), work, torch.get_num_threads()))
        return {key: [next(adaptations) for _ in self.candidates] for key in pairs}

    def gain(self, shots: int, rule: str = "best") -> Values | None:
        adaptations = self.adapted.get((rule, shots))
        return None if adaptations is None else np.stack([adaptation.gain for adaptation in adaptations])

    def sides(self) -> dict[str, Values]:
        """Return the values of each strategy and of BM25, and the gains by adapting with few examples."""
        sides = {strategy: self.of(strategy) for strategy in self.strategies}
        sides |= {"default": self.of(self.trained_with), "BM25": np.tile(self.bm25, (len(self.models), 1))}
        gains = {shots: self.gain(shots) for shots in self.shots}
        named = {f"gain by adapting with {n} examples": gain for n, gain in gains.items()}
        return sides | {name: gain for name, gain in named.items() if gain is not None}


class Mean:
    """Tasks of one training alignment on several collections: means over collections."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.trained_with = tasks[0].trained_with
        self.origin = ""
        self.places = [task.name for task in tasks]
        names = ", ".join(dict.fromkeys(self.places))
        self.label = f"the average of {names}, trained with {self.trained_with}"

    def sides(self) -> dict[str, Values]:
        each = [task.sides() for task in self.tasks]
        return {
            side: average([of[side] for of in each]) for side in each[0] if all(side in of for of in each)
        }


def average(contrasts: Sequence[Values]) -> Values:
    """Combine contrasts into values whose mean over queries is the mean of the contrasts' means."""
    seeds = min(map(len, contrasts))
    queries = sum(c.shape[1] for c in contrasts)
    weights = [queries / (len(contrasts) * c.shape[1]) for c in contrasts]
    return np.concatenate([w * c[:seeds] for w, c in zip(weights, contrasts, strict=True)], axis=1)


def means_of(tasks: Sequence[Task]) -> list[Mean]:
    """Return the mean over collections for each training alignment that has several."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.trained_with, []).append(task)
    return [Mean(group) for group in groups.values() if len(group) > 1]


def study(tasks: Sequence[Task]) -> Study:
    """Return the values of each task, and of means over collections, with the groups of the claims."""
    trained = [task for task in tasks if not task.origin]
    everything: list[Task | Mean] = [*tasks, *means_of(trained)]
    values = {f"{of.label}, {side}": rows for of in everything for side, rows in of.sides().items()}
    paper = {
        f"{task.label}, {side}": [value]
        for task in tasks
        for side, value in (task.printed() | {"BM25": BM25.get(task.paper, np.nan) / 100}).items()
        if not np.isnan(value)
    }

    first = [task for task in tasks if task.trained_with == "k=1"]
    hard = [of for of in everything if of.trained_with not in SOFT and not of.origin]
    groups = {
        "k=1": [of.label for of in first],
        "squad": [of.label for of in first if of.paper == "squad"],
        "zero-shot": [of.label for of in first if of.paper and of.origin == ZERO_SHOT],
        "soft": [of.label for of in everything if of.trained_with in SOFT],
        "hard": [of.label for of in hard],
        "dense": [name for name in DENSE if any(task.several.get(name, 1.0) > 0 for task in tasks)],
        "most": [str(max(tasks[0].shots))],
        "best − other training": [
            f"{better.label}, default − {worse.label}, default"
            for better, worse in product(everything, everything)
            if better.trained_with in PRINTED_BEST and worse.trained_with not in PRINTED_BEST
            if better.places == worse.places
        ],
        "table order": [one for task in trained if task.trained_with != "k=1" for one in table_order(task)],
    }

    def undecided(sides: Sequence[str]) -> dict[str, str]:
        for task in (task for task in tasks if any(task.label in side for side in sides)):
            means = {f"ALIGNER ({task.label})": float(task.of(task.trained_with).mean())}
            if poor := unlearned(means, float(task.bm25.mean()), task.models):
                return {"unlearned": poor}
        return {}

    return Study(
        {MEASURE: values},
        groups,
        {task.label: task.models for task in tasks},
        undecided,
        printed={MEASURE: paper},
        parts={mean.label: [task.label for task in mean.tasks] for mean in means_of(trained)},
    )


def table_order(task: Task) -> list[str]:
    """Return contrasts with strategies whose printed nDCG@10 is `POINT` from the default's or more."""
    paper = task.printed()
    orders = list[str]()
    for name, value in paper.items():
        apart = abs(paper[task.trained_with] - value) >= POINT
        if apart and (task.of(task.trained_with) - task.of(name)).any():
            better, worse = sorted((task.trained_with, name), key=lambda one: -paper[one])
            orders.append(f"{task.label}, {better} − {task.label}, {worse}")
    return orders


def describe(tasks: Sequence[Task]) -> dict[str, Section]:
    strategies = [name for name in BY_KIND if all(name in task.strategies for task in tasks)]
    curves = _by_strategy(tasks, strategies)
    several = [
        {"measure": "documents with several aligned tokens", "system": task.label}
        | {s: f"{task.several[s]:.1%}" if s in task.several else "–" for s in strategies}
        for task in tasks
    ]
    paper = [
        {"measure": "nDCG@10 in the paper", "system": task.label}
        | {s: f"{values[s]:.3f}" if s in values else "–" for s in strategies}
        for task in tasks
        if task.trained_with in (values := task.printed())
    ]
    shots = [n for n in tasks[0].shots if all(task.gain(n) is not None for task in tasks)]
    gains: Any = {
        f"gain of nDCG@10\n{task.label}": {rule: [task.gain(n, rule) for n in shots] for rule in RULES}
        for task in tasks
    }
    return {
        "training": training_section({task.label: task.models for task in tasks}),
        "claims": study(tasks).section(
            "qian2022",
            "adaptation",
            "The paper's differences are of its base model, trained on MS MARCO; ours are trained on the "
            "collection itself, but for zero-shot ones.",
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
            rows=_by_strategy([task for task in tasks if task.trained_with in SOFT], SOFT).rows,
        ),
    }


def _by_strategy(tasks: Sequence[Task], strategies: Sequence[str]) -> Curves:
    series = {task.label: [task.of(strategy) for strategy in strategies] for task in tasks}
    printed = {}
    for task in tasks:
        numbers = task.printed(task.paper or OTHER)
        if any(name in numbers for name in strategies):
            name = f"{task.paper or OTHER}, trained with {task.trained_with}"
            printed[name] = [numbers.get(strategy) for strategy in strategies]
    return Curves("strategy", strategies, {"nDCG@10": series}, printed={"nDCG@10": printed}, joined=False)


def _shots(task: Task) -> Rows:
    rows = []
    for (rule, shots), adaptations in sorted(task.adapted.items(), key=lambda item: item[0][1]):
        scores = np.concatenate([adaptation.adapted for adaptation in adaptations])
        row: dict[str, Any] = {"collection": task.label, "shots": shots, "rule": rule}
        row |= {"default": f"{task.of(task.trained_with).mean():.3f}"}
        row |= {"best, chosen on all these queries": f"{task.candidates.mean(axis=(0, 2)).max():.3f}"}
        row |= {"nDCG@10": f"{scores.mean():.3f} ± {scores.std():.3f}"}
        row |= {"gain": interval_text(seeds_interval(np.stack([a.gain for a in adaptations])), "+")}
        rows.append(row | {"changed": f"{np.mean([a.chosen != 0 for a in adaptations]):.0%}"})
    return rows
