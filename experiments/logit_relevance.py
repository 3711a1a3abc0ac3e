"""Does the logit rank like log p, early in training or at all? Wu et al. 2024, appendix A, Eqs 26 to 29.

Wu et al. 2024 (arXiv:2404.00684) take rel = Σ_i e_{d_i}ᵀh_i, because log p = Σ_i (e_{d_i}ᵀh_i − log(exp
e_{d_i}ᵀh_i + C)), and C ≫ exp e_{d_i}ᵀh_i "at the early stage of the training" makes the logarithm a
constant. But C differs by query and prefix. At several steps of a training run, this script measures how
small p is, how each query's candidates are ordered by the logit, by the logit minus its mean over the
vocabulary, and by log p, and how good these orders are.
"""

from typing import Any, Literal, get_args

from papers.wu2024.pair_settings import PairSettings
from studies.settings import launch

from paradigms.io.command_line import flags
from paradigms.train.checkpoints import TRAINED


@flags()
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""

    paradigm: Literal["dsi", "genre", "seal"] = "genre"
    """paradigm to train: dsi, genre or seal"""


launch(__name__, Settings, __doc__)  # before the slow imports

from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from papers.wu2024 import trained_pairs
from papers.wu2024.trained_pairs import TaskResults, run_study, sample
from scipy.stats import spearmanr
from studies.claims import Study
from studies.curves import Curves
from studies.model_runs import StudyData
from studies.pages import Measured, Section

from paradigms import Generative
from paradigms.data import Problems
from paradigms.evaluate import per_query
from paradigms.generative.outputs import ScoreName
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.files import remove_folder
from paradigms.train.generative import fit_pairs

SCORERS: tuple[ScoreName, ...] = get_args(ScoreName)
STATES = 6  # evenly spaced training states to measure, besides the untrained one
LOGITS = ("logit", "centred_logit")
MEASURE = "RR@10"

Values = dict[str, np.ndarray]  # quantity -> [seeds, states, queries]


def main(settings: Settings) -> None:
    tasks = {settings.paradigm: (settings.paradigm,)}
    run_study(settings, "The logit as relevance", tasks, measure, report, keep_recall=True)


def measure(data: StudyData, _: str, seed: int, __: list[Any]) -> Measured:
    """Measure the seed's model with `state`, before training and at evenly spaced training steps."""
    settings: Settings = data.settings
    folder = Path(settings.output) / f"seed-{seed}" / "training"
    remove_folder(folder, TRAINED)  # an interrupted run has lost its states
    torch.manual_seed(seed)
    accelerator = Accelerator()
    model = trained_pairs.build(settings.paradigm, seed, data).to(accelerator.device)
    pairs = trained_pairs.pairs_of(model, data, Problems())
    seen = list[Any]()
    every = max(1, settings.generative_steps // STATES)

    def dev(model: Generative) -> np.ndarray:
        seen.append(state(model, data, settings.depth))
        return np.zeros(1)  # a constant chooses the last state

    times = {"evaluate_every": every, "save_every": settings.generative_steps}
    training = trained_pairs.training_settings(every * STATES, seed, settings, **times)
    states_folder = Path(settings.models) / "states"
    fit_pairs(
        model, data.collection.corpus, pairs, training, folder, accelerator, dev=dev, states=states_folder
    )
    steps = [n * every for n in range(len(seen))]
    return {"queries": list(data.pool(settings.depth)), "steps": steps, "states": seen}


def state(model: Generative, data: StudyData, depth: int) -> dict[str, list[float]]:
    """Return {quantity: one value per query}; each value is computed over the query's candidates.

    p is the geometric mean over the tokens of a candidate's identifier, averaged over the candidates.
    """
    pool = data.pool(depth)
    judgements = data.test.judgements
    retriever = GenerativeRetriever(model)
    runs = dict(
        zip(SCORERS, retriever.rankings(data.test.queries, pool, SCORERS, windows=False), strict=True)
    )
    lengths = {id: len(model.target(n)) for id, n in model.identifiers.positions.items()}
    values: dict[str, list[float]] = {key: [] for key in ("p", *LOGITS)}
    for query in pool:
        named = [id for id in pool[query] if lengths[id]]
        log_p = np.array([runs["log_probability"][query][id] for id in named])
        values["p"].append(float(np.exp(log_p / [lengths[id] for id in named]).mean()))
        for scorer in LOGITS:
            scores = [runs[scorer][query][id] for id in named]
            values[scorer].append(float(np.nan_to_num(spearmanr(log_p, scores).statistic)))  # 0: all equal
    for scorer, run in runs.items():
        table = per_query(run, judgements, [MEASURE])
        place = {query: n for n, query in enumerate(table.queries)}
        values[f"{MEASURE}, {scorer}"] = [float(table.values[MEASURE][place[query]]) for query in pool]
    return values


def study_of(values: Values, unlearned: str = "") -> Study:
    """Return the first state after the training began, early, and the last, late."""
    states = {"early": 1, "late": -1}
    return Study(
        {
            "p": {name: values["p"][:, n] for name, n in states.items()},
            "rank correlation of the logit with log p": {
                name: values["logit"][:, n] for name, n in states.items()
            },
            f"{MEASURE}, late": {
                scorer: values[f"{MEASURE}, {scorer}"][:, -1] for scorer in ("log_probability", "logit")
            },
        },
        undecided=lambda _: {"unlearned": unlearned},
    )


def report(data: StudyData, results: TaskResults) -> tuple[str, dict[str, Section]]:
    settings: Settings = data.settings
    seeds = results[settings.paradigm]
    values = {
        key: np.array([[row[key] for row in seed["states"]] for seed in seeds])
        for key in seeds[0]["states"][0]
    }
    p = f"p; correlation of {' and '.join(LOGITS)} with log p"
    measure = f"{MEASURE} of the order by"
    names = {p: {key: key for key in ("p", *LOGITS)}, measure: {s: f"{MEASURE}, {s}" for s in SCORERS}}
    panels = {
        panel: {name.replace("_", " "): list(values[key].swapaxes(0, 1)) for name, key in series.items()}
        for panel, series in names.items()
    }
    summary = f"{settings.paradigm}. BM25's first {settings.depth} documents. {sample(data)}"
    return summary, {
        "claims": study_of(values, "".join(trained_pairs.unlearned_models(seeds)))
        .with_queries(seeds[0]["queries"], data)
        .section(
            "wu2024",
            "logit",
            "One family of tests. The paper gives no numbers for its words; the bars are ours. "
            "Early is the first state after the training began.",
            # The paper's C sums over an alphabet of thousands of tokens, DSI's over about twelve digits.
            controls=settings.paradigm == "dsi",
        ),
        "states": Curves("steps", seeds[0]["steps"], panels, "linear").section(
            "States of the training",
            "p of a candidate's tokens; Spearman's correlation with log p over a query's candidates, of "
            f"the logit and of the logit less its mean over the vocabulary; {MEASURE} of each order.",
        ),
    }
