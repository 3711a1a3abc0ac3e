"""Rank-one references and reports by definition; Lemma 5.1 is checked by experiments/theory_checks.py."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from theory import low_rank


@st.composite
def factors(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    heads, M, N, h = (draw(st.integers(1, top)) for top in (3, 9, 7, 5))
    scale = draw(st.sampled_from([0.05, 1.0, 8.0]))
    return (
        scale * rng.normal(size=(heads, M, h)),
        rng.normal(size=(heads, N, h)),
        rng.normal(size=(heads, h, h)),
    )


@given(factors())
def test_rank_one_by_its_definition(problem):
    documents, queries, weight = problem
    S = low_rank.attention_scores(documents, queries, weight)
    mean = documents.mean(1)
    for head in range(len(documents)):
        r = mean[head] @ weight[head] @ queries[head].T
        expected = np.exp(r - r.max()) / np.exp(r - r.max()).sum()
        np.testing.assert_allclose(low_rank.rank_one(S)[head], np.tile(expected, (S.shape[1], 1)))


@given(factors())
def test_report_is_the_same_from_log_probabilities(problem):
    S = low_rank.attention_scores(*problem)
    logs = S - np.log(np.exp(S - S.max(-1, keepdims=True)).sum(-1, keepdims=True)) - S.max(-1, keepdims=True)
    ours, theirs = low_rank.report(S), low_rank.report(logs)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-7, atol=1e-7)
        assert np.shape(value) == (len(S),)
    assert np.all(np.asarray(ours["best_error"]) <= np.asarray(ours["softmax_error"]) + 1e-9)
