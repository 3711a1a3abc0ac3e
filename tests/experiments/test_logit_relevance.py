"""experiments/logit_relevance.py end to end on a tiny T5, its numbers against a loop, planted claims."""

import numpy as np
from logit_relevance import MEASURE, study_of

from paradigms.evaluate.claims import CONTRADICTED, NO, REPRODUCED, UNDECIDED, YES
from tests.experiments.scripts import unmeasured, verdicts


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
