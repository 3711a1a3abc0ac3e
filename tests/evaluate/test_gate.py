"""How alive a gate of salience is: by hand, by numpy, and where there is nothing to measure."""

import numpy as np
import pytest

from paradigms.evaluate.gate import FLAT, measure_gate
from tests.near import assert_same


def test_documents_of_any_length_by_numpy():
    rng = np.random.default_rng(0)
    lengths = [3, 0, 1, 40, 7, 2]
    documents = [rng.random(length) for length in lengths]
    documents[4][:5] = 0.0
    documents[5][:] = 0.0  # a document that its gate silences
    gate = measure_gate(np.concatenate(documents), np.cumsum([0, *lengths]))
    real = [d for d in documents if len(d)]
    assert_same(gate.mean, np.concatenate(documents).mean())
    assert_same(gate.deviation, np.mean([d.std() for d in real]))
    assert_same(gate.relative, np.mean([d.std() / d.mean() for d in real if d.any()]))
    silent = sum(int((d <= 0.01 * d.max()).sum()) for d in real)
    assert silent >= 7
    assert_same(gate.sparsity, silent / sum(lengths))


@pytest.mark.parametrize(("spread", "flat"), [(0.0, True), (0.9 * FLAT, True), (1.1 * FLAT, False)])
def test_a_gate_is_flat_below_a_tenth_of_its_mean(spread, flat):
    salience = np.array([1 - spread, 1 + spread, 2 - 2 * spread, 2 + 2 * spread])
    gate = measure_gate(salience, np.array([0, 2, 4]))
    assert_same(gate.relative, spread, scale=1.0)
    assert gate.flat == flat
    assert ("the gate is flat" in str(gate)) == flat
