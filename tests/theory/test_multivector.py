"""theory.multivector beyond what experiments/theory_checks.py holds: numbers by hand, and errors."""

import numpy as np

from theory import multivector as M


def test_conditions_are_named():
    q, better, worse = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
    slanted = better + np.array([[0, 0, 1], [0, 0, 0]])
    assert M.broken_conditions(q, slanted, worse, 0) == ["segments 0 and 1 are not orthogonal"]
    assert any("below" in line for line in M.broken_conditions(q, worse, better, 0))
    assert any("is not ⟨q, d1⟩" in line for line in M.broken_conditions(q, better, worse, 1))
    negative = np.array([[1.0, 0, 0], [0, -0.9, 0]]), np.array([[0.5, 0, 0], [0, -0.9, 0]])
    assert any("exceeds" in line for line in M.broken_conditions([1.0, 1, 0], *negative, 0))


def test_equal_segments_have_no_margin():
    q, better, _ = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
    assert np.all(M.cross_margins(q, better, better).diagonal() == 0)
