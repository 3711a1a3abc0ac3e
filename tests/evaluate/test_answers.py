"""Answers in passages by hand; what follows: accuracy, macro-averages, their intervals."""

import numpy as np
import pytest

from paradigms.data import Corpus, Split
from paradigms.evaluate import PerQuery, cutoff_curve, has_answer, on_split, seeds_interval, with_judgements


@pytest.mark.parametrize(
    ("text", "answers", "found"),
    [
        ("The capital is Paris.", ["paris"], True),
        ("Parisian cafés", ["Paris"], False),  # tokens, not characters
        ("Born in Zürich", ["Zu\u0308rich"], True),  # composed and decomposed
        ("cost 1,000 in 1969", ["000", "x"], True),
        ("anything", ["", " ", "\u200b"], False),  # an answer without a token
        ("a\u200bnd", ["a nd"], True),  # a character that shows nothing ends a word
        ("東京都は日本の首都", ["東京"], False),  # no spaces: the sentence is one token, as in DPR's code
        ("ΟΔΟΣ", ["οδος"], True),  # each token lowered by itself, on both sides alike
        ("a ≯ b", [">"], True),  # decomposed into > and a mark, which is no letter's
        ("snake_case", ["snake"], True),  # unlike \\w, an underscore is a token
    ],
)
def test_whether_a_text_has_an_answer(text, answers, found):
    assert has_answer(text, answers) is found


CORPUS = Corpus(
    ["a", "b", "c", "d"],
    ["Paris Paris is the capital", "Rome is the capital of Italy", "Berlin about Germany", "no title"],
    ["Paris", "", "Berlin", ""],
)
SPLIT = Split(
    {"q1": "which?", "q2": "where?", "q3": "who?", "q4": "what?"},
    {"q1": {}, "q2": {}, "q3": {}, "q4": {}},
    {"q1": ["Paris"], "q2": ["Berlin", "Italy"], "q3": ["nobody"], "q4": ["Berlin"]},
    {"q1": "P1", "q2": "P1", "q3": "P1", "q4": "P2"},
)
RUN = {
    "q1": {"b": 3.0, "a": 2.0},
    "q2": {"c": 3.0, "d": 2.0, "b": 1.0},
    "q3": {"a": 1.0},
    "q4": {"c": 9.0, "d": 8.0},
}


def test_retrieved_passages_are_judged_by_their_texts_without_titles():
    judged = with_judgements(SPLIT, CORPUS, [RUN, {"q4": {"b": 1.0}, "unknown query": {"a": 1.0}}])
    assert judged.judgements == {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {}, "q4": {}}
    assert (judged.queries, judged.answers, judged.groups) == (SPLIT.queries, SPLIT.answers, SPLIT.groups)
    by_hand = Split({"q": "text"}, {"q": {"a": 1}})
    assert with_judgements(by_hand, CORPUS, [RUN]) is by_hand


def test_accuracy_counts_every_question_and_averages_over_groups():
    judged = with_judgements(SPLIT, CORPUS, [RUN])
    results = on_split(RUN, judged, ["Success@1", "Success@2", "Success@3"])
    assert results.queries == ["q1", "q2", "q3", "q4"]
    assert results.values["Success@2"].tolist() == [1, 0, 0, 0]
    assert results.values["Success@3"].tolist() == [1, 1, 0, 0]
    assert results.mean("Success@1") == 0
    assert results.mean("Success@2") == pytest.approx((1 / 3 + 0) / 2)
    assert results.mean("Success@3") == pytest.approx((2 / 3 + 0) / 2)
    assert results.without_relevant == 0
    ungrouped = Split(judged.queries, judged.judgements, judged.answers)
    assert on_split(RUN, ungrouped, ["Success@3"]).mean("Success@3") == 0.5
    curve = cutoff_curve(RUN, judged, "Success")
    assert (curve[2], curve[5]) == pytest.approx((1 / 6, 1 / 3))
    unjudged = Split(judged.queries, judged.judgements)  # judgements alone: no measure without a relevant one
    assert on_split(RUN, unjudged, ["Success@3"]).queries == ["q1", "q2"]


def test_the_interval_of_a_macro_average_draws_within_groups():
    """Groups in which all queries score alike leave nothing to chance, however different the groups are."""
    groups = ["x"] * 30 + ["y"] * 10
    alike = PerQuery([str(i) for i in range(40)], {"m": np.array([1.0] * 30 + [0.0] * 10)}, groups=groups)
    assert seeds_interval(alike.weighted("m")[None], groups=groups) == pytest.approx((0.5, 0.5, 0.5))
    low, high = seeds_interval(alike.weighted("m")[None])[1:]
    assert high - low > 0.1
    values = np.concatenate([np.tile([0.0, 1.0], 15), np.tile([0.0, 0.0, 0.0, 0.0, 1.0], 2)])
    mixed = PerQuery(alike.queries, {"m": values}, groups=groups)
    mean, low, high = seeds_interval(mixed.weighted("m")[None], groups=groups, resamples=40_000)
    error = np.sqrt((0.25 / 30 + 0.16 / 10) / 4)  # of the mean of two independent means
    assert mean == pytest.approx(0.35)
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.08)
