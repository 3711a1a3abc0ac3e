"""experiments/logit_relevance.py: its numbers against a loop, planted claims."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from logit_relevance import LOGITS, MEASURE, SCORERS, state, study_of
from scipy.stats import spearmanr

from paradigms.data import Split
from paradigms.evaluate.claims import CONTRADICTED, NO, REPRODUCED, UNDECIDED, YES
from tests.experiments.scripts import unmeasured, verdicts
from tests.tiny_generative import generative, log_p, named


def test_a_state_against_a_loop(seq2seq: dict[str, Path]) -> None:
    rows = [[5, 6], [7], [8, 9, 10]]
    model = generative(seq2seq["t5-v1.1"], named(rows))
    pool = {"q": {"d0": 0.0, "d1": 0.0, "d2": 0.0}}
    split = Split({"q": "the lazy dog"}, {"q": {"d1": 1}})
    data: Any = SimpleNamespace(pool=lambda depth: pool, test=split)
    found = state(model, data, 3)
    of = {s: np.array([log_p(model, "the lazy dog", [*row, 1], s) for row in rows]) for s in SCORERS}
    p = np.exp(of["log_probability"] / [3, 2, 4]).mean()
    assert found["p"] == pytest.approx([p])
    for scorer in LOGITS:
        assert found[scorer] == pytest.approx([spearmanr(of["log_probability"], of[scorer]).statistic])
    for scorer in SCORERS:
        assert found[f"{MEASURE}, {scorer}"] == pytest.approx([1 / (1 + (of[scorer] > of[scorer][1]).sum())])


def test_verdicts_follow_the_numbers() -> None:
    def words(p: float, early: float, late: float, lost: float, unlearned: str = "") -> list[str]:
        noise = np.random.default_rng(0).uniform(-0.005, 0.005, (3, 3, 400))
        values = {"p": noise + p, "logit": noise + np.array([0.5, early, late])[None, :, None]}
        values[f"{MEASURE}, log_probability"] = np.full((3, 3, 400), 0.5)
        values[f"{MEASURE}, logit"] = 0.5 - lost + noise
        assert unmeasured(study_of(values), "wu2024", "logit") == []
        found = verdicts(study_of(values, unlearned), "wu2024", "logit")
        return [verdict.word for verdict in found]

    assert words(0.01, 0.97, 0.94, 0.0) == [*[REPRODUCED] * 3, YES, REPRODUCED]
    assert words(0.4, 0.3, 0.5, 0.2) == [*[CONTRADICTED] * 3, NO, CONTRADICTED]
    assert words(0.4, 0.3, 0.5, 0.2, "dsi") == [UNDECIDED] * 5
