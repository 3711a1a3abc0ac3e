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
    (lambda: buckets.expected_recall([1, 0.5], [1], 1, [0], 1), "variances (1,)"),
    (lambda: C.moment_queries(5, [[0, 5]]), "relevant"),
    (lambda: C.moment_queries(5, [[2, 2]]), "repeats a document"),
    (lambda: C.packing_gap(5, 6, 4), "k = 6; allowed: at most 4"),
    (lambda: C.pattern_bits(4, 7, 2, distinct=True), "queries = 7; allowed with distinct sets: at most 6"),
    (lambda: Problem.of(np.eye(3), np.eye(2)), "do not fit"),
    (lambda: Problem.of(np.full((2, 2), np.nan), np.eye(2)), "documents contains numbers"),
    (lambda: C.unanswerable_set(np.eye(3)), "allowed: [h + 2, h]"),
    (lambda: C.forster_bound([[0, 2]]), "other than 0 and 1"),
    (lambda: C.random_dimension(3), "documents = 3"),
    (lambda: C.first_broken_size(np.float32, 10), "loses no pair of up to 10"),
    (lambda: cosine_error(1, 0.5, 0.2, 0.1), "k = 1"),
    (lambda: cosine_error(8, 0.2, 0.5, 0.1), "better does not exceed worse"),
    (lambda: cosine_error(8, 0.9, -0.9, 0.9), "not the cosines of three vectors"),
    (lambda: cosine_error(8, 1.1, 0.5, 0.1), "better"),
    (lambda: decoding.prefix_states(np.ones((2, 3)) / 6), "equal axes of at least 2 tokens"),
    (lambda: decoding.foresight_gap([0.5], [0.6]), "kept must lie between 0 and masses"),
    (lambda: entropic.entropic_top_k([0.1, np.nan], 1, 0.1), "scores"),
    (lambda: entropic.entropic_top_k([0.1, 0.2], -1, 0.1), "k ="),
    (lambda: entropic.entropic_top_k([0.1, 0.2], [1, 1], [0.1, 0.1, 0.1]), "broadcast"),
    (lambda: entropic.convergence_rate(CASE[0], 0, 0.1), "k = "),
    (lambda: entropic.sufficient_iterations(*CASE, 1.0), "tolerance"),
    (lambda: excess.excess([[0.1]], [0.1, 0.2]), "floors has shape"),
    (lambda: excess.floor_moments(3, 2), "k = 3"),
    (lambda: excess.mixture_floor(0.5, [0.2, 0.2], [0, 0], [1, 1]), "share = 0.5"),
    (lambda: excess.mixture_floor(0.4, [0.2, 0.2], [0, 0], [1, 1]), "less than the sum"),
    (lambda: excess.mixture_floor(0.1, [0.2, 0.2], [0, 0], [1]), "shapes (2,), (2,), (1,)"),
    (lambda: excess.best_floor(0, 0.2, 0.2, 0.5), "match_scale"),
    (lambda: excess.best_share(0.1, 0.2, 1.0), "match"),
    (lambda: kernels.relevance([[1.0, 2.0]], [[1.0]]), "documents"),
    (lambda: kernels.orthogonal_projections(0, 4, 0), "dimension"),
    (lambda: kernels.positive_features([[1.0]], [[1.0, 2.0]]), "projections"),
    (lambda: low_rank.alignment([1.0, 2.0]), "scores"),
    (lambda: low_rank.attention_scores(np.eye(2), np.eye(3)), "documents"),
    (lambda: low_rank.attention_scores(np.eye(2), np.eye(2), np.eye(3)), "weight"),
    (lambda: low_rank.row_bound(np.nan), "spread"),
    (lambda: low_rank.stable_rank(np.zeros((2, 2))), "matrix"),
    (lambda: M.broken_conditions(QUERY, BETTER, WORSE[:1], 0), "equally many"),
    (lambda: M.broken_conditions(QUERY, BETTER, WORSE, 2), "segment = 2"),
    (lambda: M.cross_margins(0 * QUERY, BETTER, WORSE), "query is a zero vector"),
    (lambda: M.cross_margins(QUERY[:2], BETTER, WORSE), "query (2,)"),
    (lambda: P.pairwise_error(8, 0.0), "margin = 0; allowed: in (0, 1]"),
    (lambda: P.pairwise_error(0, 0.5), "k = 0; allowed: finite and at least 1"),
    (lambda: P.required_dimension(0.5, 0.0), "beta = 0; allowed: in (0, 1)"),
    (lambda: P.required_dimension(0.5, 0.6, "approximation"), "(0, 0.5)"),
    (lambda: P.required_dimension(0.5, 0.05, "guess"), "allowed: exact, exact_real"),
    (lambda: P.normalized_margin([1, 0], [1, 0, 0], [0, 1]), "query (2,), better (3,) and worse (2,)"),
    (lambda: P.rademacher_error_two_sparse(2.5, 0.5), "k = 2.5; allowed: a whole number"),
    (lambda: P.rademacher_required_dimension(0.5, definition="last"), "allowed: first, stable"),
    (lambda: P.rademacher_required_dimension(1e-8), "needs a scan"),
    (lambda: P.simulated_error(2, [1, 0], [1, 0], [0, 1], ensemble="sparse"), "gaussian, rademacher"),
    (lambda: R.lemma2_bound(8, [0.1, 0.2], 3), "r = 3; allowed: a whole number of at least 1 and at most 2"),
    (lambda: R.eq3_required_dimension(0.1, 5, 6), "r = 6"),
    (lambda: R.required_dimension_recall([0.1], 1, method="exact"), "allowed: eq3"),
    (lambda: R.recall_thresholds([1.0, 0], [0, 1.0], [[1.0, 0]], [1]), "1 of others do not score below"),
    (lambda: R.recall_thresholds([1.0, 0], [1.0, 0], [[0.0, 1, 0]], [1]), "others (1, 3)"),
    (lambda: R.recall_failure(8, [1.0]), "at least two samples"),
    (lambda: xtr.colbert_scores(SIMILAR, OWNERS[:2]), "owners"),
    (lambda: xtr.xtr_gradient(SIMILAR, OWNERS, 2, 3), "positive"),
    (lambda: xtr.positive_probability_limit(1), "batch"),
    (lambda: xtr.level_loss(10, positive=np.nan), "positive"),
    (lambda: xtr.scoring_cost(tokens_per_candidate=0.5), "tokens_per_candidate"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
