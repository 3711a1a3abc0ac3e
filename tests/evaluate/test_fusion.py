"""Fused runs: by hand, against ranx, and weights that dev chooses."""

import pytest

from paradigms.data import Split
from paradigms.evaluate.fusion import fuse, tune_weights

A = {"q": {"x": 3.0, "y": 2.0, "z": 1.0}, "r": {"x": 5.0}}
B = {"q": {"z": 0.9, "x": 0.4, "w": -0.1}}


def test_by_hand():
    expected = {"x": 1 / 61 + 1 / 62, "z": 1 / 63 + 1 / 61, "y": 1 / 62, "w": 1 / 63}
    assert fuse([A, B])["q"] == pytest.approx(expected)
    assert list(fuse([A, B], k=2)["q"]) == ["x", "z"]
    found = fuse([A, B], [0.5, 2.0], "sum")
    assert found["q"] == pytest.approx({"z": 2.0, "x": 1.5, "y": 0.25, "w": 0.0})
    assert found["r"] == {"x": 0.5}
    assert fuse([{"q": {"a": float("-inf"), "b": 1.0}}], method="sum")["q"] == {"b": 1.0, "a": 0.0}


def test_dev_chooses_the_weights():
    dev = Split({"q": ""}, {"q": {"w": 1}})
    assert tune_weights([A, B], dev) == (0.0, 1.0)  # w is the last of B, after x and z
    assert tune_weights([A, A], Split({"q": ""}, {"q": {"x": 1}})) == (0.5, 0.5)
    with pytest.raises(ValueError, match="weights are chosen on dev queries"):
        tune_weights([A, B], Split({}, {}))


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_wrong_weights_are_refused(weights: list[float]):
    with pytest.raises(ValueError, match="2 runs need as many weights of at least 0"):
        fuse([A, B], weights)
