"""Claims of experiments/alignment_adaptation.py about planted numbers."""

from collections.abc import Sequence

import numpy as np
import pytest
from papers.qian2022.adaptation_claims import Task, study
from studies.gains import DEV

from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED, YES
from paradigms.retrieve.strategies import MEASURED
from tests.experiments import scripts

NAMES = list(MEASURED)


def planted(name: str, own: str, means: list[float], bm25: float = 0.1, kept: Sequence[int] = (30,)) -> Task:
    """One model whose strategies have the given `means`; all other strategies are poor."""
    random = np.random.default_rng(len(name))
    base = random.random(200) * 0.2
    means = means + [0.1] * (len(NAMES) - len(means))
    values = {s: base + mean + random.normal(0, 0.05, 200) for s, mean in zip(NAMES, means, strict=True)}
    model = {"collection": name, "trained_with": own, "origin": "", "values": values}
    model |= {"several": dict.fromkeys(NAMES, 0.5), "bm25": np.full(200, bm25)}
    model |= {DEV: {"untrained": [0.1, 0.2] * 8, "trained": [0.3, 0.35] * 8}}
    return Task([model | {"kept step": step} for step in kept], [8, 16])


def words(*tasks: Task) -> dict[str, str]:
    found = scripts.verdicts(study(tasks), "qian2022", "adaptation")
    return {verdict.claim.quantity.removeprefix("nDCG@10: "): verdict.word for verdict in found}


LIKE_THE_PAPER = [0.70, 0.69, 0.65, 0.61, 0.56, 0.71, 0.69, 0.67, 0.63]
FLAT = [0.5] + [0.4] * 8
GAIN = [0.3, 0.4, 0.5, 0.6, 0.7, 0.3, 0.3, 0.3, 0.3]


def test_planted_effects_get_their_verdicts() -> None:
    tasks = [
        planted("scifact", "k=1", LIKE_THE_PAPER),
        planted("nfcorpus", "k=1", GAIN),
        planted("squad_v1_dev", "k=1", FLAT),
        planted("scifact", "k=4", [0.5] * 9),
        planted("nfcorpus", "k=4", [0.1] * 9),
    ]
    assert len(scripts.unmeasured(study(tasks), "qian2022", "adaptation")) == 2  # zero-shot, entropic
    found = words(*tasks)

    def contrast(name: str, a: str, b: str) -> str:
        return found[f"{name}, trained with k=1, {a} − {name}, trained with k=1, {b}"]

    assert contrast("scifact", "k=1", "k=8") == REPRODUCED
    assert contrast("nfcorpus", "k=1", "k=8") == CONTRADICTED
    assert contrast("squad_v1_dev", "k=1", "k=2") == REPRODUCED
    gain = "nfcorpus, trained with k=1, gain by adapting with 16 examples"
    assert found[gain] == YES  # a control: the paper's sentence cannot fail
    pair = "{0}, trained with k=1, default − {0}, trained with k=4, default"
    assert found[pair.format("scifact")] == REPRODUCED


@pytest.mark.parametrize(("bm25", "kept"), [(1.7, [30]), (0.1, [30, 0])])
def test_a_model_that_has_not_learned_is_not_heard(bm25: float, kept: list[int]) -> None:
    poor = planted("scifact", "k=1", LIKE_THE_PAPER, bm25=bm25, kept=kept)
    assert set(words(poor).values()) == {UNDECIDED}
