"""Weights that dev queries choose: λ where it can be computed by hand, on the scales of the systems."""

import numpy as np
import pytest

from paradigms.data import Run, Split
from paradigms.evaluate.tuning import curve, scale, tune_raw, tune_weights

# The relevant document g beats r (dense ahead by 1, sparse behind by 2) from λ = 1/2 on, and s (dense behind
# by 3, sparse ahead by 1) up to λ = 3: it is first between.
DENSE: Run = {"q": {"g": 4.0, "r": 5.0, "s": 1.0}}
SPARSE: Run = {"q": {"g": 2.0, "r": 0.0, "s": 3.0}}
DEV = Split({"q": "a query"}, {"q": {"g": 1}})


def test_the_best_weight_lies_between_the_two_at_which_documents_change_places():
    means = curve(DENSE, SPARSE, DEV, "RR@10")
    best = [weight for weight, value in means.items() if value == 1]
    assert best == [weight for weight in means if 0.5 < weight < 3]
    assert tune_raw(DENSE, SPARSE, DEV, measure="RR@10") == best[len(best) // 2]


def test_weights_are_tried_around_the_ratio_of_the_spreads():
    ratio = np.std([4.0, 5.0, 1.0]) / np.std([2.0, 0.0, 3.0])
    assert scale(DENSE, SPARSE) == pytest.approx(ratio)
    weights = list(curve(DENSE, SPARSE, DEV))
    assert weights[0] == 0
    assert weights[1:] == pytest.approx([ratio * 2 ** (n / 2) for n in range(-12, 13)])
    # A candidate without tokens, whose dense score is −inf, has no part in the spread.
    empty = {"q": DENSE["q"] | {"e": -np.inf}}, {"q": SPARSE["q"] | {"e": 0.0}}
    assert scale(*empty) == pytest.approx(np.std([4.0, 5.0, 1.0]) / np.std([2.0, 0.0, 3.0, 0.0]))
    # Of several queries the mean spread counts; a query without candidates has none.
    dense: Run = {"q": DENSE["q"], "p": {"x": 1.0, "y": 3.0}, "o": {}}
    sparse: Run = {"q": SPARSE["q"], "p": {"x": 0.0, "y": 0.0}, "o": {}}
    spreads = (np.std([4.0, 5.0, 1.0]) + 1) / (np.std([2.0, 0.0, 3.0]) + 0)
    assert scale(dense, sparse) == pytest.approx(spreads)
    flat: Run = {"q": dict.fromkeys("grs", 1.0)}
    with pytest.raises(ValueError, match="the sparse scores are equal within every query"):
        tune_raw(DENSE, flat, DEV)
    with pytest.raises(ValueError, match="the dense scores"):
        tune_raw(flat, SPARSE, DEV)


def test_dev_chooses_the_weights_of_a_sum():
    one = {"q": {"x": 3.0, "y": 2.0, "z": 1.0}, "r": {"x": 5.0}}
    other = {"q": {"z": 0.9, "x": 0.4, "w": -0.1}}
    dev = Split({"q": ""}, {"q": {"w": 1}})
    assert tune_weights([one, other], dev) == (0.0, 1.0)  # w is the last of the other, after x and z
    assert tune_weights([one, one], Split({"q": ""}, {"q": {"x": 1}})) == (0.5, 0.5)
    with pytest.raises(ValueError, match="weights are chosen on dev queries"):
        tune_weights([one, other], Split({}, {}))
