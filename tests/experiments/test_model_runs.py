"""Queries drawn from a split, and which models training moved, judged by their dev queries."""

import numpy as np
from studies.gains import DEV, training_rows, unmoved
from studies.model_runs import some_queries

from paradigms.data import Split

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
    assert float(rows["down"]["p"]) < 0.05
    assert rows["up"]["gain"].startswith("+0.049 [+0.04")
    before, after = map(float, rows["up"]["untrained → trained"].split(" → "))
    assert abs(after - before - 0.05) < 0.01


def test_a_claim_names_the_first_model_that_training_did_not_move() -> None:
    assert unmoved({"up": seeds(0.05)}) == ""
    assert unmoved({"up": seeds(0.05), "still": seeds(0.0)}) == "still"
    assert unmoved({"mine": [{"kept step": None, DEV: {}}]}) == ""  # a checkpoint
    assert unmoved({"blind": [{"kept step": 30, DEV: {}}]}) == "blind, which no training measured"


def test_the_first_queries_of_a_draw_come_from_the_whole_split() -> None:
    names = [f"q{n}" for n in range(400)]  # in the order of their articles
    split = Split(dict.fromkeys(names, "text"), {name: {"d": 1} for name in names})
    whole = list(some_queries(split, 0).queries)
    assert sorted(whole) == sorted(names)
    assert list(some_queries(split, 40).queries) == whole[:40]
    assert len({names.index(name) // 40 for name in whole[:40]}) > 7
    assert not some_queries(Split({}, {}), 3).queries
