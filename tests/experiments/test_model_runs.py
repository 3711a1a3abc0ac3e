"""Which models training moved, judged by their dev queries."""

import numpy as np
from studies.model_runs import DEV, training_rows, unmoved

QUERIES = 60


def seeds(gain: float, kept: int | None = 30, count: int = 2) -> list[dict]:
    """Simulate seeds of a model whose dev queries gain `gain` on average, with noise of .02."""
    random = np.random.default_rng(0)
    before = random.random((count, QUERIES))
    after = before + gain + 0.02 * random.normal(size=before.shape)
    sides = [{"untrained": b.tolist(), "trained": a.tolist()} for b, a in zip(before, after, strict=True)]
    return [{"kept step": kept, DEV: dev} for dev in sides]


def test_a_model_is_moved_where_its_dev_queries_gain_significantly() -> None:
    models = {"up": seeds(0.05), "still": seeds(0.0), "down": seeds(-0.05)}
    rows = {row["model"]: row for row in training_rows(models)}
    assert {name: row["moved"] for name, row in rows.items()} == {"up": "yes", "still": "no", "down": "no"}
    assert float(rows["down"]["p (Holm)"]) < 0.05
    assert rows["up"]["gain"].startswith("+0.049 [+0.04")
    before, after = map(float, rows["up"]["untrained → trained"].split(" → "))
    assert abs(after - before - 0.05) < 0.01


def test_a_claim_names_the_first_model_that_training_did_not_move() -> None:
    assert unmoved({"up": seeds(0.05)}) == ""
    assert unmoved({"up": seeds(0.05), "still": seeds(0.0)}) == "still"
    assert unmoved({"mine": [{"kept step": None, DEV: {}}]}) == ""  # a checkpoint
    assert unmoved({"blind": [{"kept step": 30, DEV: {}}]}) == "blind, which no training measured"
