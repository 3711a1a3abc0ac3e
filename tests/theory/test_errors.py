"""Bad arguments: a ValueError that names the argument, and where it helps what is allowed."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from theory import answerable, decoding, entropic, low_rank
from theory import capacity as C
from theory import multivector as M
from theory import projections as P
from theory import recall as R
from theory.cosine import cosine_error

QUERY, BETTER, WORSE = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
WRONG: list[tuple[Callable[[], object], str]] = [
    *((lambda R=R: answerable.one_vector(np.eye(3), R), "relevant") for R in ([], [0, 1, 2], [3])),
    (lambda: answerable.max_over_tokens(np.eye(3), [1, 0, 2], [0]), "rising from 0"),
    (lambda: C.moment_queries(5, [[2, 2]]), "repeats a document"),
    (lambda: C.first_broken_size(np.float32, 10), "loses no pair of up to 10"),
    (lambda: cosine_error(8, 0.9, -0.9, 0.9), "not the cosines of three vectors"),
    (lambda: decoding.prefix_states(np.ones((2, 3)) / 6), "equal axes of at least 2 tokens"),
    (lambda: entropic.entropic_top_k([0.1, np.nan], 1, 0.1), "scores"),
    (lambda: low_rank.alignment([1.0, 2.0]), "scores"),
    (lambda: M.cross_margins(0 * QUERY, BETTER, WORSE), "query is a zero vector"),
    (lambda: P.pairwise_error(8, 0.0), "margin = 0; allowed: in (0, 1]"),
    (lambda: P.required_dimension(0.5, 0.05, "guess"), "allowed: exact, exact_real"),
    (lambda: P.normalized_margin([1, 0], [1, 0, 0], [0, 1]), "query (2,), better (3,) and worse (2,)"),
    (lambda: P.rademacher_required_dimension(1e-8), "needs a scan"),
    (lambda: R.recall_thresholds([1.0, 0], [0, 1.0], [[1.0, 0]], [1]), "1 of others do not score below"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
