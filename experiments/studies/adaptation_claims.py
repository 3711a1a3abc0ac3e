"""What Qian et al. 2022 (ALIGNER) say about adapting alignments: claims, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from studies.curves import Curves, Values
from studies.model_runs import unlearned
from studies.pages import Rows, Section, shown

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.adaptation import LEVEL, Adaptation, Rule, adapt, best, best_if_significant
from paradigms.evaluate.claims import Claim, judge
from paradigms.index.strategies import STRATEGIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Qian et al. 2022"
# (Collection, training alignment) -> nDCG@10 in percent in the order of STRATEGIES (Tables 7 and 11, the base
# model), then with 8 shots (Table 2). SQuAD is not in the paper; these are of NQ, also question answering.
PRINTED: dict[tuple[str, str], Sequence[float]] = {
    ("scifact", "k=1"): (70.4, 68.8, 65.0, 60.9, 55.6, 71.1, 69.4, 67.2, 62.7, 68.8),
    ("scifact", "k=4"): (70.1, 70.6, 70.4, 69.2, 68.0, 69.6, 66.7, 65.6, 64.9),
    ("nfcorpus", "k=1"): (34.0, 33.2, 32.0, 29.9, 27.8, 33.6, 31.7, 30.5, 28.6, 32.9),
    ("nfcorpus", "k=4"): (31.8, 33.5, 33.9, 33.6, 33.0, 29.9, 26.3, 25.7, 25.2),
    ("squad", "k=1"): (52.2, 48.3, 36.3, 26.6, 19.9, 52.2, 49.2, 43.5, 36.3, 49.0),
    ("squad", "k=4"): (42.3, 49.4, 52.4, 51.2, 49.1, 42.3, 37.3, 30.9, 25.3),
}
HURTS = (
    "when the default alignment is already optimal (top-k=1 is optimal for QA tasks), few-shot alignment "
    "adaptation hurts performance"
)
GAINS = (
    "When the default alignment (top-k=1) is not optimal, we can identify a good alignment strategy using "
    "only 8 examples"
)
UNTESTED = (
    "Not tested: argument retrieval (ArguAna, Touché-2020), FEVER and Climate-FEVER, the averages over BEIR, "
    "larger models (Figure 3, Tables 8 to 10), k = 16, p above 2% and entropic alignments (Tables 3 and 13); "
    "that 16 examples reduce the variance stands in the deviations over folds below."
)
RULES: dict[str, Rule] = {"best": best, f"p ≤ {LEVEL:g}": best_if_significant}


@dataclass(frozen=True, eq=False)
class Task:
    """One collection, and the ALIGNERs trained with one alignment, its default."""

    name: str
    own: str
    strategies: list[str]
    values: Float[np.ndarray, "seeds strategies queries"]  # nDCG@10
    several: dict[str, float]  # strategy -> share of documents of which it aligns more than one token
    bm25: float  # nDCG@10
    shots: list[int]

    @property
    def label(self) -> str:
        return f"{self.name}, trained with {self.own}"

    def of(self, strategy: str) -> Values:
        return self.values[:, self.strategies.index(strategy)]

    @cached_property
    def adapted(self) -> dict[tuple[str, int], list[Adaptation]]:
        """Rule, shots -> one for each seed."""
        default = self.strategies.index(self.own)
        return {
            (name, shots): [adapt(of_seed, shots, rule, default) for of_seed in self.values]
            for name, rule in RULES.items()
            for shots in self.shots
            if shots < self.values.shape[-1]
        }

    def gain(self, shots: int, rule: str = "best") -> Values | None:
        found = self.adapted.get((rule, shots))
        return None if found is None else np.stack([adaptation.gain for adaptation in found])


def printed(collection: str, better: tuple[str, str], worse: tuple[str, str]) -> str:
    """The paper's difference of nDCG@10 between two (training alignment, strategy or "8 shots"), or ""."""
    key = next((key for key, _ in PRINTED if key in collection.lower()), "")
    values = {
        (own, strategy): value / 100
        for (name, own), row in PRINTED.items()
        if name == key
        for strategy, value in zip([*STRATEGIES, "8 shots"], row, strict=False)
    }
    if not {better, worse} <= values.keys():
        return ""
    return f"{values[better] - values[worse]:+.3f}" + " (NQ)" * (key == "squad")


def claims(tasks: Sequence[Task]) -> list[Claim]:
    """Every claim that these collections and training alignments test."""
    made: list[Claim] = []
    by_key = {(task.name, task.own): task for task in tasks}
    for task in tasks:
        top_1 = by_key.get((task.name, "k=1"))
        if top_1 is not task and top_1 is not None and task.own != "p=0.5%":
            n = min(len(task.values), len(top_1.values))
            made.append(
                Claim(
                    f"{PAPER}, §4.2, Figure 4",
                    "top-1 and top-0.5% work the best, and increasing k or p hurts performance",
                    f"nDCG@10 on {task.name}, trained and tested with k=1 − with {task.own}",
                    top_1.of("k=1")[:n] - task.of(task.own)[:n],
                    printed=printed(task.name, ("k=1", "k=1"), (task.own, task.own)),
                    unlearned=_unlearned(top_1, task),
                )
            )
        elif top_1 is task:
            made += _of_top_1(task)
    return made


def _of_top_1(task: Task) -> list[Claim]:
    """The claims about one model trained with k = 1."""
    made, k_1 = list[Claim](), task.of("k=1")

    def claim(place: str, sentence: str, quantity: str, contrast: Values, better: str, worse: str) -> None:
        made.append(
            Claim(
                f"{PAPER}, {place}",
                sentence,
                f"nDCG@10 on {task.name}, {quantity}",
                contrast,
                printed=printed(task.name, ("k=1", better), ("k=1", worse)),
                unlearned=_unlearned(task),
            )
        )

    for dense in ("k=8", "p=2%"):
        if task.several.get(dense, 1.0) > 0:
            sentence = "In general, keeping the sparsity low enough is preferable"
            claim("§4.2, Table 3", sentence, f"k=1 − {dense}", k_1 - task.of(dense), "k=1", dense)
    if "squad" in task.name.lower():
        claim("§4.2", "top-k=1 is optimal for QA tasks", "k=1 − k=2", k_1 - task.of("k=2"), "k=1", "k=2")
    eight, sixteen = task.gain(8), task.gain(16)
    if eight is not None and task.values.mean(axis=(0, 2)).argmax() == task.strategies.index("k=1"):
        claim("§4.2, Figure 5", HURTS, "k=1 − adapted with 8 examples", -eight, "k=1", "8 shots")
    elif eight is not None:
        claim("§4.2, Figure 5", GAINS, "adapted with 8 examples − k=1", eight, "8 shots", "k=1")
    if eight is not None and sixteen is not None:
        sentence, quantity = "Using 16 examples further improves the average score", "16 examples − 8"
        claim("§4.2, Figure 5", sentence, quantity, sixteen - eight, "", "")
    return made


def _unlearned(*tasks: Task) -> str:
    return unlearned({f"ALIGNER ({t.label})": t.of(t.own).mean() for t in tasks}, tasks[0].bm25)


def describe(tasks: Sequence[Task]) -> tuple[dict[str, Section], dict[str, Figure]]:
    """Sections of the page and figures, by the name of their files."""
    strategies = tasks[0].strategies
    by_strategy = Curves(
        "strategy",
        strategies,
        {"nDCG@10": {task.label: [task.of(strategy) for strategy in strategies] for task in tasks}},
    )
    several = [
        {"measure": "documents with several aligned tokens", "system": task.label}
        | {strategy: f"{task.several[strategy]:.1%}" for strategy in strategies}
        for task in tasks
    ]
    shots = sorted(set.intersection(*({shots for _, shots in task.adapted} for task in tasks)))
    gains = Curves(
        "judged queries",
        shots,
        {
            task.label: {rule: [task.gain(n, rule) for n in shots] for rule in RULES}  # type: ignore[misc]
            for task in tasks
        },
    )
    sections = {
        "claims": Section(
            "What the paper says, and what we measured",
            f"The paper's differences are of its base model. {UNTESTED}",
            [verdict.row for verdict in judge(claims(tasks))],
        ),
        "figure4": Section(
            "nDCG@10 by alignment strategy (Figure 4, Tables 3 and 7 to 13)",
            "Where no document has several aligned tokens, top-p is k = 1: ⌊p·m⌋ is 2 from 2/p tokens on.",
            [*by_strategy.rows, *several],
            ["figure4"],
        ),
        "figure5": Section(
            "Few-shot adaptation (Figure 5, Table 2)",
            "The figure shows the gain over the default. best: the paper's rule; p ≤ α: best if its "
            "advantage is significant at α (one-sided sign-flip test on the fold, Westfall & Young). "
            "nDCG@10: on the queries outside each fold, mean ± standard deviation over folds. changed: share "
            "of folds that leave the default.",
            [row for task in tasks for row in _shots(task)],
            ["figure5"],
        ),
    }
    sections = {name: section for name, section in sections.items() if section.rows}
    return sections, {"figure4": by_strategy.draw(), "figure5": gains.draw()}


def _shots(task: Task) -> Rows:
    """A row for every number of shots and rule."""
    default, rows = task.strategies.index(task.own), []
    for (rule, shots), found in sorted(task.adapted.items(), key=lambda item: item[0][1]):
        scores = np.concatenate([adaptation.adapted for adaptation in found])
        row: dict[str, Any] = {"collection": task.label, "shots": shots, "rule": rule}
        row |= {"default": f"{task.of(task.own).mean():.3f}"}
        row |= {"oracle": f"{task.values.mean(axis=(0, 2)).max():.3f}"}
        row |= {"nDCG@10": f"{scores.mean():.3f} ± {scores.std():.3f}"}
        row |= {"gain": shown(seeds_interval(np.stack([a.gain for a in found])), "+")}
        rows.append(row | {"changed": f"{np.mean([a.chosen != default for a in found]):.0%}"})
    return rows
