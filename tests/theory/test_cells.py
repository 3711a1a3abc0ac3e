"""Counts of cells, against enumeration of all patterns of at most six documents and of all sign vectors."""

from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy.optimize import linprog

from theory.cells import (
    Aligned,
    judged_queries,
    least_numbers,
    log_cells,
    log_patterns,
    table,
    vc_bound,
    warren,
)


def feasible(rows: np.ndarray) -> bool:
    """Whether some x has rows · x ≥ 1."""
    bounds = [(None, None)] * rows.shape[1]
    return linprog(np.zeros(rows.shape[1]), -rows, -np.ones(len(rows)), bounds=bounds).status == 0


@pytest.mark.parametrize(("H", "P"), [(1, 1), (3, 2), (5, 3), (6, 2), (4, 6)])
def test_cells_in_general_position(H, P):
    normals = np.random.default_rng(0).standard_normal((H, P))
    signs = [s for s in product((-1, 1), repeat=H) if feasible(np.array(s)[:, None] * normals)]
    assert np.exp(log_cells(H, P)) == pytest.approx(len(signs))


def test_large_counts_are_those_of_exact_sums():
    from math import comb, log

    for H, P in ((1000, 20), (1000, 700), (5000, 2500)):
        exact = 2 * sum(comb(H - 1, i) for i in range(P))
        assert log_cells(H, P) == pytest.approx(log(exact), rel=1e-12)


@pytest.mark.parametrize("aligned", get_args(Aligned))
def test_drawn_patterns_are_within_the_bound(aligned):
    rng = np.random.default_rng(0)
    n, m, h, M, N, draws = 3, 8, 1, 2, 2, 20_000  # N: also the planes of buckets
    Q = rng.standard_normal((m, N, h))
    D = rng.standard_normal((draws, n, M, h)) * np.exp(rng.standard_normal((draws, n, 1, 1)))
    S = np.einsum("mjh,dnih->dmnij", Q, D)
    if aligned == "one":
        scores = S[..., 0, 0]
    elif aligned == "all":
        scores = S.sum((-1, -2))
    elif aligned == "q→d":
        scores = S.max(-2).sum(-1)
    elif aligned == "q←d":
        scores = S.max(-1).sum(-1)
    elif aligned == "equal ids":
        scores = S[..., 0, 0] + S[..., 1, 1]
    elif aligned == "positive ids":
        scores = np.maximum(S[..., 0, 0], 0) + np.maximum(S[..., 1, 1], 0)
    elif aligned == "buckets":
        planes = rng.standard_normal((N, h))
        sides = [(vectors @ planes.T > 0) for vectors in (D, Q)]
        same = (sides[0][:, None, :, :, None] == sides[1][:, None, None]).all(-1)
        scores = ((same * S).sum(-2) / np.maximum(same.sum(-2), 1)).sum(-1)
    elif aligned in ("salience", "top k"):
        weights = np.exp(rng.standard_normal((draws, 1, n, M, 1)))
        matched = (weights * (S.max(-2, keepdims=True) == S)).sum(-2)
        scores = (matched * S.max(-2)).sum(-1) / matched.sum(-1)
    else:
        least = np.sort(np.moveaxis(S, -1, 2).reshape(draws, m, N, -1))[..., -2]
        scores = np.maximum(S.max(-2), least[:, :, None]).sum(-1)
    below, best = np.moveaxis(np.partition(scores, -2)[..., -2:], -1, 0)
    seen = len(np.unique(scores.argmax(-1)[(best > below).all(1)], axis=0))
    assert seen > 1
    assert seen <= np.exp(log_patterns(aligned, n, m, h, M, N))


def test_numbers_that_limit_needs():
    assert [M * least_numbers("q→d", 46, 1035, 2, M) for M in (1, 2, 4)] == [17, 14, 12]
    assert least_numbers("one", 46, 1035, 2) == 17
    page = (Path(__file__).parents[2] / "theory/DIMENSION.md").read_text("utf-8")
    for row in table(46, 1035, vectors=4, tokens=4):
        assert f"| {row['A']} | {row['least h']} | {row['M·h']} " in page
        assert f" | {row['VC ≤']:,} | {row['judged queries']:,} |" in page


def test_the_vc_bound_and_what_follows():
    assert vc_bound("one", 2, 3) == 3  # halfspaces through the origin of R^3
    assert judged_queries("one", 2, 3, error=0.1) > judged_queries("one", 2, 3, error=0.2)
    growth = log_patterns("one", 2, 2 * judged_queries("one", 2, 3), 3)
    assert 8 * (growth + np.log(80)) <= 0.01 * judged_queries("one", 2, 3)
    assert warren(10, 1, 2) >= log_cells(10, 2)
    assert warren(3, 2, 50) == pytest.approx(3 * np.log(2))
    with pytest.raises(ValueError, match="aligned = 'max'"):
        log_patterns("max", 3, 2, 1)
