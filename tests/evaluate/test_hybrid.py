"""Hybrids: sums on the scales of the systems, λ where it can be computed by hand, nothing imputed as 0."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.data import Run, Split
from paradigms.evaluate.hybrid import System, candidate_scores, combine, curve, scale, tune

# The relevant document g beats r (dense ahead by 1, sparse behind by 2) from λ = 1/2 on, and s (dense behind
# by 3, sparse ahead by 1) up to λ = 3: it is first between.
DENSE: Run = {"q": {"g": 4.0, "r": 5.0, "s": 1.0}}
SPARSE: Run = {"q": {"g": 2.0, "r": 0.0, "s": 3.0}}
DEV = Split({"q": "a query"}, {"q": {"g": 1}})


def table(scores: Run) -> System:
    """A system that knows these scores: its search sees the best ones."""

    def search(queries: dict[str, str], k: int) -> Run:
        ranked = {q: sorted(scores[q].items(), key=lambda item: (-item[1], item[0])) for q in queries}
        return {q: dict(row[:k]) for q, row in ranked.items()}

    def rerank(queries: dict[str, str], run: Run) -> Run:
        return {q: {d: scores[q][d] for d in row} for q, row in run.items()}

    return System(search, rerank)


def test_the_weight_adds_sparse_scores_to_dense_ones():
    run = combine(DENSE, SPARSE, 2.0)
    assert list(run["q"].items()) == [("g", 8.0), ("s", 7.0), ("r", 5.0)]
    assert combine(DENSE, SPARSE, 0.0) == DENSE
    # Equal scores rank by id.
    assert list(combine(DENSE, SPARSE, 0.5)["q"]) == ["g", "r", "s"]
    assert list(combine(DENSE, SPARSE, 3.0)["q"]) == ["g", "s", "r"]
    assert combine({"q": {}}, {"q": {}}, 1.0) == {"q": {}}
    with pytest.raises(ValueError, match="'s' for query 'q' is NaN"):
        combine(DENSE, {"q": SPARSE["q"] | {"s": float("nan")}}, 1.0)
    for weight in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and at least 0"):
            combine(DENSE, SPARSE, weight)


def test_a_score_that_is_missing_is_not_0():
    for dense, sparse in (({"q": {"g": 4.0}}, SPARSE), (DENSE, {"q": {"g": 1.0, "r": 0.0}})):
        with pytest.raises(ValueError, match=r"document '[rs]' of the query 'q'.*rerank their `union`"):
            combine(dense, sparse, 1.0)
    for dense, sparse in ((DENSE, {}), ({}, SPARSE), ({"p": {}, **DENSE}, SPARSE)):
        with pytest.raises(ValueError, match=r"only one of the two runs has the (document|query)"):
            combine(dense, sparse, 1.0)


def test_the_best_weight_lies_between_the_two_at_which_documents_change_places():
    means = curve(DENSE, SPARSE, DEV, "RR@10")
    best = [weight for weight, value in means.items() if value == 1]
    assert best == [weight for weight in means if 0.5 < weight < 3]
    assert tune(DENSE, SPARSE, DEV, measure="RR@10") == best[len(best) // 2]


def test_weights_are_tried_around_the_ratio_of_the_spreads():
    ratio = np.std([4.0, 5.0, 1.0]) / np.std([2.0, 0.0, 3.0])
    assert scale(DENSE, SPARSE) == pytest.approx(ratio)
    weights = list(curve(DENSE, SPARSE, DEV))
    assert weights[0] == 0
    assert weights[1:] == pytest.approx([ratio * 2 ** (n / 2) for n in range(-12, 13)])
    # A candidate without tokens, whose dense score is −inf, has no part in the spread and stays last.
    empty = {"q": DENSE["q"] | {"e": -np.inf}}, {"q": SPARSE["q"] | {"e": 0.0}}
    sparse = np.std([2.0, 0.0, 3.0, 0.0])
    assert scale(*empty) == pytest.approx(np.std([4.0, 5.0, 1.0]) / sparse)
    assert curve(*empty, DEV).keys() == {0.0, *(scale(*empty) * 2 ** (n / 2) for n in range(-12, 13))}
    assert list(combine(*empty, 3.0)["q"])[-1] == "e"
    assert combine(*empty[::-1], 0.0) == {
        "q": dict(sorted(empty[1]["q"].items(), key=lambda x: (-x[1], x[0])))
    }
    # Of several queries the mean spread counts; a query without candidates has none.
    dense: Run = {"q": DENSE["q"], "p": {"x": 1.0, "y": 3.0}, "o": {}}
    sparse: Run = {"q": SPARSE["q"], "p": {"x": 0.0, "y": 0.0}, "o": {}}
    assert scale(dense, sparse) == pytest.approx(
        (np.std([4.0, 5.0, 1.0]) + 1) / (np.std([2.0, 0.0, 3.0]) + 0)
    )
    flat: Run = {"q": dict.fromkeys("grs", 1.0)}
    with pytest.raises(ValueError, match="the sparse scores of the candidates differ within no query"):
        tune(DENSE, flat, DEV)
    with pytest.raises(ValueError, match="the dense scores"):
        tune(flat, SPARSE, DEV)


@settings(max_examples=15)
@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(0, 5))
def test_the_choice_does_not_depend_on_units(dense, sparse, seed):
    """Dense scores times a and sparse ones times b: the ranking stays, and λ is a / b times what it was."""
    generator = np.random.default_rng(seed)
    runs: list[Run] = [{q: {d: float(generator.normal()) for d in "abcdef"} for q in "xyz"} for _ in range(2)]
    dev = Split(dict.fromkeys("xyz", "a query"), {q: {"a": 1} for q in "xyz"})
    scaled = [
        {q: {d: unit * score for d, score in row.items()} for q, row in run.items()}
        for unit, run in zip((dense, sparse), runs, strict=True)
    ]
    assert tune(*scaled, dev) == pytest.approx(tune(*runs, dev) * dense / sparse)
    one, other = curve(*runs, dev), curve(*scaled, dev)
    assert list(other.values()) == pytest.approx(list(one.values()))


def test_candidates_are_what_either_system_finds():
    """With one candidate of each, g is never seen; with two it is, and what one system missed is scored."""
    systems = table(DENSE), table(SPARSE)
    assert combine(*candidate_scores(*systems, {"q": "?"}, 1), 1.0) == {"q": {"r": 5.0, "s": 4.0}}
    found = combine(*candidate_scores(*systems, {"q": "?"}, 2), 1.0)["q"]
    assert list(found.items()) == [("g", 6.0), ("r", 5.0), ("s", 4.0)]


def test_scores_of_an_imputing_search_are_not_taken_over():
    """A search whose scores differ from its rerank's: both kinds must not meet in one ranking."""
    honest = table(DENSE)
    imputing = System(lambda queries, k: {q: {"g": 900.0} for q in queries}, honest.rerank)
    dense, sparse = candidate_scores(imputing, table(SPARSE), {"q": "?"}, 2)
    assert dense == {"q": {"g": 4.0, "s": 1.0}}
    assert sparse == {"q": {"g": 2.0, "s": 3.0}}
