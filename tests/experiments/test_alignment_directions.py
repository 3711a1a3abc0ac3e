"""experiments/alignment_directions.py: a run on a tiny T5, the chance level, claims on planted numbers."""

from itertools import permutations

import alignment_directions as study
import numpy as np
import pytest
from alignment_directions import BACKWARD, CANDIDATES, CHANCE, FORWARD, GENERATIVE, TRAINED, WHOLE
from studies.model_runs import DEV

from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from tests.experiments import scripts
from tests.experiments.scripts import dev_values


def test_chance_is_the_mean_over_all_orders() -> None:
    """Also of a query whose candidates have some, or none, of its relevant documents."""
    pool = {"q": dict.fromkeys("abcd", 0.0), "none": dict.fromkeys("ab", 0.0)}
    judgements = {"q": {"b": 1, "c": 2, "d": 0, "missed": 1}, "none": {"missed": 1}}
    runs = [
        {query: {id: float(-n) for n, id in enumerate(order)}}
        for query, documents in pool.items()
        for order in permutations(documents)
    ]
    chance = study.by_chance(pool, judgements, list(pool))
    for place, query in enumerate(pool):
        values = [per_query(run, {query: judgements[query]}, study.MEASURES) for run in runs if query in run]
        for measure in study.MEASURES:
            expected = np.mean([value.values[measure] for value in values])
            assert chance[measure][place] == pytest.approx(expected, abs=1e-12)


def verdicts(
    forward: float, backward: float, generative: float, recall: float = 0.5, gain: float = 0.2
) -> list[str]:
    """Two seeds of 60 queries with this share of RR@10 = 1, each query right wherever a worse system is.

    recall: R@10 of GR, where BM25 and ColBERT have 0.9. gain: of both models' dev queries in training.
    """
    order = np.linspace(0, 1, 60, endpoint=False)
    shares = {FORWARD: forward} | dict.fromkeys(BACKWARD, backward)
    shares |= dict.fromkeys([*GENERATIVE, WHOLE], generative)
    values = {name: {"RR@10": np.tile((order < s).astype(float), (2, 1))} for name, s in shares.items()}
    values[CHANCE] = {"RR@10": np.full((2, 60), 0.05)}
    values[CANDIDATES] = {"RR@10": np.full((2, 60), 0.5)}
    for name in (CANDIDATES, FORWARD, TRAINED):
        values[name]["R@10"] = np.full((2, 60), recall if name == TRAINED else 0.9)
    trainings = {name: [{"kept step": 30, DEV: dev_values(gain)}] * 2 for name in ("colbert", "seal")}
    assert scripts.unmeasured(study.study_of(values, trainings), "wu2024", "directions") == []
    found = scripts.verdicts(study.study_of(values, trainings), "wu2024", "directions")
    return [verdict.word for verdict in found]


def test_verdicts_follow_the_numbers() -> None:
    yes, no, open_ = REPRODUCED, CONTRADICTED, UNDECIDED
    # q→d over two q←d, over six GR, and the twelve pairs of q←d and GR.
    assert verdicts(0.9, 0.6, 0.2) == [yes] * 20
    assert verdicts(0.9, 0.2, 0.6) == [yes] * 8 + [no] * 12
    assert verdicts(0.2, 0.6, 0.9) == [no] * 20
    assert verdicts(0.5, 0.5, 0.5) == [open_] * 20
    # Directions are readouts of one model; GR and MVDR are two models, which training did not move.
    assert verdicts(0.9, 0.6, 0.2, gain=0.0) == [yes] * 2 + [open_] * 18
    assert verdicts(0.9, 0.6, 0.06) == [yes] * 2 + [open_] * 18, "GR is not above a random order"
    assert verdicts(0.9, 0.6, 0.2, recall=0.4) == [yes] * 2 + [open_] * 18, "less than half of BM25's R@10"
