"""Answerable queries, against known answers, brute force in the plane, and rational arithmetic."""

from itertools import combinations

import numpy as np
import pytest

from theory import capacity
from theory.answerable import max_over_tokens, maxima, one_vector, sum_of_maxima, verified


def by_angles(tokens, owners, relevant) -> bool:
    """Whether one of many query tokens in the plane answers, which misses only thin cones."""
    t = np.linspace(0, 2 * np.pi, 7200, endpoint=False)
    S = tokens @ np.stack([np.cos(t), np.sin(t)])
    best = np.stack([S[owners == d].max(0) for d in range(owners.max() + 1)])
    others = np.setdiff1d(np.arange(len(best)), relevant)
    return bool((best[relevant].min(0) > best[others].max(0) + 1e-9).any())


def test_limit_is_the_known_answer():
    documents = capacity.moment_vectors(14, 2)  # h = 4 answers every pair
    for pair in capacity.all_sets(14):
        answer = one_vector(documents, pair)
        assert answer.answerable
        assert verified(documents, answer, pair)
    flat = capacity.moment_vectors(14, 1)  # on a circle: neighbours alone
    for pair in capacity.all_sets(14):
        answer = one_vector(flat, pair)
        assert answer.answerable == ((pair[1] - pair[0]) in (1, 13))
        assert verified(flat, answer, pair)


def test_one_vector_in_the_plane():
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(40):
        points, relevant = rng.standard_normal((7, 2)), np.sort(rng.choice(7, 2, replace=False))
        answer = one_vector(points, relevant)
        assert verified(points, answer, relevant)
        assert answer.answerable or not by_angles(points, np.arange(7), relevant)
        seen.add(answer.answerable)
    assert seen == {True, False}


def test_documents_far_from_the_relevant_ones_are_checked_too(monkeypatch):
    monkeypatch.setattr("theory.answerable._ADDED", 1)
    rng = np.random.default_rng(2)
    points = rng.standard_normal((300, 12))
    for relevant in rng.integers(300, size=(5, 1)):
        answer = one_vector(points, relevant)
        full = (points @ answer.query[0]).argmax() == relevant[0] if answer.answerable else True
        assert full
        assert verified(points, answer, relevant)


def test_one_query_token_chooses_a_token_of_each_document():
    rng = np.random.default_rng(3)
    seen = []
    for _ in range(40):
        tokens, owners = rng.standard_normal((12, 2)), np.repeat(np.arange(6), 2)
        relevant = np.sort(rng.choice(6, 2, replace=False))
        answer = max_over_tokens(tokens, owners, relevant)
        assert answer.answerable or not by_angles(tokens, owners, relevant)
        if answer.answerable:
            scores, _, _ = maxima(tokens, owners, answer.query)
            assert set(np.argsort(-scores)[:2]) == set(relevant)
        seen.append(answer.answerable)
    assert {True, False} <= set(seen)
    assert max_over_tokens(tokens, owners, relevant, programmes=0).answerable is None


def test_a_dominated_document_is_first_for_no_number_of_query_tokens():
    square = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    tokens = np.concatenate([0.4 * square, square, 0.2 * square + [5, 0]])
    owners = np.repeat([0, 1, 2], 4)
    answer = sum_of_maxima(tokens, owners, [0])
    assert answer.answerable is False
    assert 0 <= answer.residual < 1e-9
    assert sum_of_maxima(tokens, owners, [1]).answerable is True
    rng = np.random.default_rng(0)
    for size in (1, 3, 9):  # and no drawn query contradicts it
        for _ in range(200):
            scores, _, _ = maxima(tokens, owners, rng.standard_normal((size, 2)))
            assert scores.argmax() != 0


def test_domination_when_maxima_are_weighted_by_salience():
    rng, square = np.random.default_rng(8), np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    tokens, owners = np.concatenate([0.4 * square, square, 0.2 * square + [5, 0]]), np.repeat([0, 1, 2], 4)
    of_documents = np.repeat([0.1, 7, 2], 4)
    uneven = of_documents * rng.uniform(0.5, 1, 12)
    salience = np.where(owners == 2, uneven, of_documents)  # documents 0 and 1 keep equal saliences
    for given in (of_documents, salience):
        assert sum_of_maxima(tokens, owners, [0], salience=given).answerable is False
    for size in (2, 3, 9):
        for _ in range(500):  # lengths from 1e-3 to 1, and any salience of the query's tokens
            query = rng.standard_normal((size, 2)) * 10 ** rng.uniform(-3, 0, (size, 1))
            weights = 10 ** rng.uniform(-3, 3, size)
            scores, _, _ = maxima(tokens, owners, query, salience=salience, query_salience=weights)
            assert scores.argmax() != 0
    for part in (0, 1):  # with uneven saliences, some query favours document 0, or nothing is shown
        answer = sum_of_maxima(tokens, owners, [0], salience=np.where(owners == part, uneven, of_documents))
        assert answer.answerable is not False
        if answer.answerable:
            scores, _, _ = maxima(
                tokens, owners, answer.query, salience=np.where(owners == part, uneven, of_documents)
            )
            assert scores.argmax() == 0
    with pytest.raises(ValueError, match="salience"):
        sum_of_maxima(tokens, owners, [0], salience=-salience)


def test_two_query_tokens_answer_what_one_does_not():
    # Between two long documents the short cross is first in no direction, but in the sum of two it is.
    tokens = np.array([[2.0, 0], [-2, 0], [0, 2], [0, -2], [3, 0], [-3, 0], [0, 3], [0, -3]])
    owners = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    assert max_over_tokens(tokens, owners, [0]).answerable is False
    answer = sum_of_maxima(tokens, owners, [0], query_tokens=2)
    assert answer.answerable is True
    scores, _, _ = maxima(tokens, owners, answer.query)
    assert scores.argmax() == 0


def test_the_two_bounds_of_several_tokens_nearly_meet():
    rng, decided = np.random.default_rng(4), []
    for _ in range(25):
        tokens, owners = rng.standard_normal((15, 2)) * 0.5, np.repeat(np.arange(5), 3)
        tokens[:3] *= 0.6
        decided.append(sum_of_maxima(tokens, owners, [0], query_tokens=5).answerable)
    assert {True, False} <= set(decided)
    assert decided.count(None) <= 3


def test_query_tokens_that_see_one_kind_are_one_vector_over_all_choices():
    """Σ_kinds max_i ⟨q, d_i⟩ is the maximum of one long vector over all choices of a token of each kind."""
    rng, seen = np.random.default_rng(6), []
    kinds, owners = np.tile([-1, -1, 7], 6), np.repeat(np.arange(6), 3)
    for _ in range(30):
        tokens = rng.standard_normal((18, 2))
        long = np.array([np.append(tokens[3 * d + i], tokens[3 * d + 2]) for d in range(6) for i in (0, 1)])
        answer = sum_of_maxima(tokens, owners, [0], kinds=kinds, asked=[-1, 7])
        expected = max_over_tokens(long, np.repeat(np.arange(6), 2), [0]).answerable
        # One vector: the hull of a document's long vectors within that of the rivals' is the reverse.
        assert answer.answerable in (expected, None)
        if answer.answerable:
            scores, _, _ = maxima(tokens, owners, answer.query, kinds, np.array([-1, 7]))
            assert scores.argmax() == 0
        seen.append(answer.answerable)
    assert {True, False} <= set(seen)
    assert seen.count(None) <= 6
    with pytest.raises(ValueError, match="a token of each asked kind"):
        sum_of_maxima(tokens, owners, [0], kinds=kinds, asked=[-1, 8])


def test_a_false_claim_is_not_verified():
    points = np.random.default_rng(5).standard_normal((8, 3))
    right = next(a for s in combinations(range(8), 1) if (a := one_vector(points, s)).answerable)
    assert not verified(points, right._replace(query=-right.query), [0])
    wrong = next(a for s in combinations(range(8), 3) if (a := one_vector(points, s)).answerable is False)
    assert verified(points, wrong)
    assert not verified(points + 0.1 * np.arange(8)[:, None] ** 2, wrong)
    assert not verified(points, wrong._replace(weights=None))
