"""Is the logit as good a relevance as log p, as it is early in training? Appendix A, Eqs 26 to 29.

Wu et al. 2024 (arXiv:2404.00684) take rel = Σ_i e_{d_i}ᵀh_i, as log p = Σ_i (e_{d_i}ᵀh_i − log(exp
e_{d_i}ᵀh_i + C)), and C ≫ exp e_{d_i}ᵀh_i "at the early stage of the training" makes the logarithm a
constant. C is another number for every query and prefix, so this is measured: at several states of one
training, how small p is, how each query's candidates are ordered by the logit, by the logit less its mean
over the vocabulary, and by log p, and which order finds the relevant document.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from studies.shared_settings import PairSettings

from paradigms.io.settings import command_line


@dataclass
class Settings(PairSettings):
    """What is trained on what, and which queries are measured."""

    paradigm: Literal["dsi", "genre", "seal"] = "dsi"
    """whose training: dsi, genre or seal"""
    states: int = 6
    """states of the training that are measured, evenly spaced, and the one before it"""

    experiment = "logit-relevance"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states < 2:
            raise SystemExit(f"states must be at least 2, an early and a late one; got {self.states}")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

from pathlib import Path

import numpy as np
from scipy.stats import rankdata
from studies.pages import Measured, Rows, Section, publish, shown
from studies.trained_pairs import Bench, measure_all, recalls, sample, unlearned_models, watched

from paradigms import Generative
from paradigms.evaluate import per_query, seeds_interval
from paradigms.evaluate.claims import Claim, judge
from paradigms.evaluate.report import PALETTE
from paradigms.generative.outputs import Scorer
from paradigms.generative.retriever import GenerativeRetriever

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORERS: tuple[Scorer, ...] = get_args(Scorer)
LOGITS = ("logit", "centred_logit")
MEASURE = "RR@10"
# What the paper's words are taken to mean, as it gives no numbers for them.
SMALL = 0.1  # p where exp e_{d_i}ᵀh_i is much smaller than C
PROPORTIONAL = 0.9  # rank correlation with log p over a query's candidates
MARGIN = 0.02  # of RR@10
PAPER = "Wu et al. 2024, appendix A"

Values = dict[str, np.ndarray]  # quantity -> [seeds, states, queries]


def main(settings: Settings) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SystemExit("logit_relevance.py runs on one process: start it without accelerate launch")

    def measured(_: str, seed: int, bench: Bench, models: list[Any]) -> Measured:
        folder = Path(settings.output) / f"seed-{seed}" / "training"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted: its states are lost
        found = watched(
            settings.paradigm,
            seed,
            bench,
            settings,
            folder,
            lambda model: state(model, bench, settings.depth),
            settings.states,
        )
        steps, states = zip(*found, strict=True)
        queries = list(bench.pool(settings.depth))
        heard = recalls(bench, **{settings.paradigm: models[0]})
        return {"queries": queries, "steps": steps, "states": states} | heard

    bench, found, accelerator = measure_all(settings, {settings.paradigm: (settings.paradigm,)}, measured)
    if accelerator.is_main_process:
        seeds = found[settings.paradigm]
        values = {
            key: np.array([[of[key] for of in seed["states"]] for seed in seeds])
            for key in seeds[0]["states"][0]
        }
        summary = f"{settings.paradigm}. BM25's first {settings.depth} documents. {sample(bench, settings)}"
        sections = describe(values, seeds[0]["steps"], "".join(unlearned_models(seeds)))
        figures = {"states": draw(values, seeds[0]["steps"])}
        publish(settings, "The logit as relevance", summary, sections, figures, accelerator)
    accelerator.end_training()


def state(model: Generative, bench: Bench, depth: int) -> dict[str, list[float]]:
    """quantity -> its value of every query's candidates.

    p is the geometric mean over the tokens of a candidate's identifier, averaged over the candidates.
    """
    pool, judgements = bench.pool(depth), bench.test.judgements
    retriever = GenerativeRetriever(model)
    runs = dict(zip(SCORERS, retriever.rankings(bench.test.queries, pool, SCORERS, whole=True), strict=True))
    lengths = {
        id: max((len(model.target(n)) for n in model.identifiers.of(document)), default=0)
        for id, document in retriever.positions.items()
    }
    found: dict[str, list[float]] = {key: [] for key in ("p", *LOGITS)}
    for query in pool:
        named = [id for id in pool[query] if lengths[id]]
        log_p = np.array([runs["log_probability"][query][id] for id in named])
        found["p"].append(float(np.exp(log_p / [lengths[id] for id in named]).mean()))
        for scorer in LOGITS:
            found[scorer].append(correlation(log_p, np.array([runs[scorer][query][id] for id in named])))
    for scorer, run in runs.items():
        of = per_query(run, judgements, [MEASURE])
        place = {query: n for n, query in enumerate(of.queries)}
        found[f"{MEASURE}, {scorer}"] = [float(of.values[MEASURE][place[query]]) for query in pool]
    return found


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's; 0 where either is constant."""
    ranks = [rankdata(x) - (len(x) + 1) / 2 for x in (a, b)]
    lengths = np.prod([np.linalg.norm(r) for r in ranks])
    return float(ranks[0] @ ranks[1] / lengths) if lengths else 0.0


def claims(values: Values, unlearned: str = "") -> list[Claim]:
    """The statements of appendix A, of the first trained state and of the last."""
    small = "C ≫ exp(e_{d_i}ᵀh_i) at the early stage of the training"
    proportional = "log p(d | q) ∝ Σ_i e_{d_i}ᵀh_i"
    indicates = "the dot-product can effectively indicate the relevance between document d and query q"
    found = [Claim(PAPER, small, f"{SMALL} − p, early", SMALL - values["p"][:, 1])]
    for name, place in (("early", 1), ("late", -1)):
        of = values["logit"][:, place] - PROPORTIONAL
        found.append(Claim(PAPER, proportional, f"rank correlation − {PROPORTIONAL}, {name}", of))
    fall = values["logit"][:, 1] - values["logit"][:, -1]
    found.append(Claim(PAPER, "as it is at the early stage", "rank correlation, early − late", fall))
    lost = (values[f"{MEASURE}, logit"] - values[f"{MEASURE}, log_probability"])[:, -1]
    found.append(Claim(PAPER, indicates, f"{MEASURE}, logit − log p, late", lost, MARGIN))
    return [replace(claim, unlearned=unlearned) for claim in found]


def describe(values: Values, steps: list[int], unlearned: str) -> dict[str, Section]:
    """Sections of the page and the console by the name of their files."""
    rows: Rows = [
        {"step": step}
        | {key.replace("_", " "): shown(seeds_interval(of[:, n])) for key, of in values.items()}
        for n, step in enumerate(steps)
    ]
    return {
        "claims": Section(
            "What the paper says and what we measured",
            f"One family of tests. The paper gives no numbers for its words: small is p < {SMALL}, "
            f"proportional a rank correlation above {PROPORTIONAL}; chosen before measuring. Early is the "
            "first state after the training began.",
            [verdict.row for verdict in judge(claims(values, unlearned))],
        ),
        "states": Section(
            "States of the training",
            "p of a candidate's tokens; Spearman's correlation with log p over a query's candidates, of the "
            f"logit and of the logit less its mean over the vocabulary; {MEASURE} of each order.",
            rows,
            ["states"],
        ),
    }


def draw(values: Values, steps: list[int]) -> Figure:
    """p, the correlations and the measure, over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    measures = [f"{MEASURE}, {scorer}" for scorer in SCORERS]
    for axes, keys in zip(figure.subplots(1, 2), (("p", *LOGITS), measures), strict=True):
        for number, key in enumerate(keys):
            means, low, high = np.array([seeds_interval(of) for of in values[key].swapaxes(0, 1)]).T
            bars = [means - low, high - means]
            label = key.replace("_", " ")
            axes.errorbar(steps, means, bars, fmt="o-", capsize=3, color=PALETTE[number], label=label)
        axes.set(xlabel="steps")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main(Settings(**given))
