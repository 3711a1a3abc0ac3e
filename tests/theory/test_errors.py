"""Bad arguments: a ValueError that names the argument, and where it helps what is allowed."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from theory import answerable, buckets, decoding, entropic, excess, kernels, low_rank
from theory import capacity as C
from theory import multivector as M
from theory import projections as P
from theory import recall as R
from theory import token_retrieval as xtr
from theory.collection import Problem
from theory.cosine import cosine_error

CASE = ((0.9, 0.5, 0.4, 0.1), 2, 0.1)
QUERY, BETTER, WORSE = (M.COUNTEREXAMPLE[x] for x in ("query", "better", "worse"))
SIMILAR, OWNERS = np.array([[0.9, 0.1, 0.7], [-0.5, -0.1, -0.8]]), np.array([0, 0, 1])
WRONG: list[tuple[Callable[[], object], str]] = [
    *((lambda R=R: answerable.one_vector(np.eye(3), R), "relevant") for R in ([], [0, 1, 2], [3])),
    (lambda: answerable.max_over_tokens(np.eye(3), [1, 0, 2], [0]), "rising from 0"),
    (lambda: buckets.expected_recall([1, 0.5], [1, 1], 1, [0], 0), "candidates = 0"),
    (lambda: C.moment_queries(5, [[2, 2]]), "repeats a document"),
    (lambda: C.packing_gap(5, 6, 4), "k = 6; allowed: at most 4"),
    (lambda: C.pattern_bits(4, 7, 2, distinct=True), "queries = 7; allowed with distinct sets: at most 6"),
    (lambda: Problem.of(np.full((2, 2), np.nan), np.eye(2)), "documents contains numbers"),
    (lambda: C.unanswerable_set(np.eye(3)), "allowed: [h + 2, h]"),
    (lambda: C.first_broken_size(np.float32, 10), "loses no pair of up to 10"),
    (lambda: cosine_error(8, 0.2, 0.5, 0.1), "better does not exceed worse"),
    (lambda: cosine_error(8, 0.9, -0.9, 0.9), "not the cosines of three vectors"),
    (lambda: decoding.prefix_states(np.ones((2, 3)) / 6), "equal axes of at least 2 tokens"),
    (lambda: decoding.foresight_gap([0.5], [0.6]), "kept must lie between 0 and masses"),
    (lambda: entropic.entropic_top_k([0.1, np.nan], 1, 0.1), "scores"),
    (lambda: entropic.entropic_top_k([0.1, 0.2], [1, 1], [0.1, 0.1, 0.1]), "broadcast"),
    (lambda: excess.mixture_floor(0.4, [0.2, 0.2], [0, 0], [1, 1]), "less than the sum"),
    (lambda: low_rank.alignment([1.0, 2.0]), "scores"),
    (lambda: low_rank.attention_scores(np.eye(2), np.eye(2), np.eye(3)), "weight"),
    (lambda: M.broken_conditions(QUERY, BETTER, WORSE, 2), "segment = 2"),
    (lambda: M.cross_margins(0 * QUERY, BETTER, WORSE), "query is a zero vector"),
    (lambda: P.pairwise_error(8, 0.0), "margin = 0; allowed: in (0, 1]"),
    (lambda: P.required_dimension(0.5, 0.0), "beta = 0; allowed: in (0, 1)"),
    (lambda: P.required_dimension(0.5, 0.05, "guess"), "allowed: exact, exact_real"),
    (lambda: P.normalized_margin([1, 0], [1, 0, 0], [0, 1]), "query (2,), better (3,) and worse (2,)"),
    (lambda: P.rademacher_required_dimension(0.5, definition="last"), "allowed: first, stable"),
    (lambda: P.rademacher_required_dimension(1e-8), "needs a scan"),
    (lambda: R.lemma2_bound(8, [0.1, 0.2], 3), "r = 3; allowed: a whole number of at least 1 and at most 2"),
    (lambda: R.required_dimension_recall([0.1], 1, method="exact"), "allowed: eq3"),
    (lambda: R.recall_thresholds([1.0, 0], [0, 1.0], [[1.0, 0]], [1]), "1 of others do not score below"),
    (lambda: xtr.colbert_scores(SIMILAR, OWNERS[:2]), "owners"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
