"""Counts of cells, against enumeration of all patterns of at most six documents and of all sign vectors."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from theory.cells import least_numbers, log_cells, table


def feasible(rows: np.ndarray) -> bool:
    """Whether some x has rows · x ≥ 1."""
    bounds = [(None, None)] * rows.shape[1]
    return linprog(np.zeros(rows.shape[1]), -rows, -np.ones(len(rows)), bounds=bounds).status == 0


@pytest.mark.parametrize(("H", "P"), [(1, 1), (3, 2), (5, 3), (6, 2), (4, 6)])
def test_cells_in_general_position(H, P):
    normals = np.random.default_rng(0).standard_normal((H, P))
    signs = [s for s in product((-1, 1), repeat=H) if feasible(np.array(s)[:, None] * normals)]
    assert np.exp(log_cells(H, P)) == pytest.approx(len(signs))


def test_numbers_that_limit_needs():
    assert least_numbers("one", 46, 1035, 2) == 17
    page = (Path(__file__).parents[2] / "theory/DIMENSION.md").read_text("utf-8")
    for row in table(46, 1035, vectors=4, tokens=4):
        assert f"| {row['A']} | {row['least h']} | {row['M·h']} " in page
        assert f" | {row['VC ≤']:,} | {row['judged queries']:,} |" in page
