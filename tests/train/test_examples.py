"""Queries of equal text are one query, documents of equal text one document, in all kinds of negatives."""

import pytest

from paradigms.data import Corpus, Problems, Split
from paradigms.generative.pairs import Pair
from paradigms.train.examples import build_examples
from paradigms.train.generative import with_negatives
from paradigms.train.negatives import FalseNegatives

# One question has two ids, each judged with another document; C is a copy of a.
CORPUS = Corpus([*"abCde"], ["the cat", "the dog", "the cat", "old sea", "a red fox"])
SPLIT = Split(
    {"q1": "which pet", "q2": "which pet", "q3": "what swims"},
    {"q1": {"C": 1}, "q2": {"b": 1, "a": 0}, "q3": {"d": 1}},
)
RUN = {
    "q1": {"a": 9.0, "b": 8.0, "C": 7.0, "e": 6.0},
    "q2": {"d": 5.0, "a": 4.0},
    "q3": {"a": 3.0, "C": 2.0, "e": 1.0},
}


def test_equal_texts_are_one_query_and_one_document():
    examples = build_examples(CORPUS, SPLIT, RUN, 2)
    assert [(e.query, e.positive, e.relevant) for e in examples] == [
        ("which pet", 0, (0, 1)),
        ("which pet", 1, (0, 1)),
        ("what swims", 3, (3,)),
    ]
    assert [set(e.negatives) for e in examples] == [{3, 4}, {3, 4}, {0, 4}]
    with pytest.raises(ValueError, match="query 'q1': 4 different documents hold no 3 negatives"):
        build_examples(CORPUS, SPLIT, {}, 3)  # two documents are left, as a copy is no other document
    drawn = [build_examples(CORPUS, SPLIT, {}, 2, seed=seed) for seed in (0, 0, 1)]
    assert {n for e in drawn[0] for n in e.negatives} <= {0, 1, 3, 4}
    assert drawn[0] == drawn[1] != drawn[2]
    first = build_examples(CORPUS, SPLIT, RUN, 1, depth=3)  # of the first query a, b and d, and not e
    assert [e.negatives for e in first[:2]] == [(3,), (3,)]
    assert all(e.negatives == () for e in build_examples(CORPUS, SPLIT))
    with pytest.raises(ValueError, match="no run to mine them from"):
        build_examples(CORPUS, SPLIT, None, 1)
    with pytest.raises(ValueError, match="no relevant document"):
        build_examples(CORPUS, Split({"q": "x"}, {"q": {"b": 0}}))


def test_a_query_that_is_a_document_is_not_its_own_negative():
    corpus = Corpus(["q", "d", "e"], ["old sea", "a blue ocean", "the cat"])
    [example] = build_examples(corpus, Split({"q": "old sea"}, {"q": {"d": 1}}), {"q": {"q": 9.0}}, 1)
    assert (example.relevant, example.negatives) == ((1, 0), (2,))


def test_teachers_and_filters_score_equal_texts_once():
    """The scores of a file are of any of the ids; those of a larger corpus are passed over."""
    scores = {
        "q1": {"C": 9.0, "e": 2.0, "unknown": 1.0},
        "q2": {"b": 8.0, "d": 8.5},
        "q3": {"d": 5.0, "C": 1.0, "e": 4.9},
    }
    requests = []
    taught = build_examples(CORPUS, SPLIT, RUN, 2, teacher=lambda pairs: requests.append(pairs) or scores)
    assert [{query: sorted(documents) for query, documents in pairs.items()} for pairs in requests] == [
        {"q1": ["a", "b", "d", "e"], "q3": ["a", "d", "e"]}
    ]
    expected = [{0: 9.0, 1: 8.0, 3: 8.5, 4: 2.0}] * 2 + [{3: 5.0, 0: 1.0, 4: 4.9}]
    for example, values in zip(taught, expected, strict=True):
        assert example.teacher == tuple(values[p] for p in (example.positive, *example.negatives))
    problems = Problems()
    suspects = FalseNegatives(lambda pairs: scores, margin=0.6)
    filtered = build_examples(CORPUS, SPLIT, RUN, 1, suspects=suspects, problems=problems)
    assert [e.relevant for e in filtered] == [(0, 1, 3), (0, 1, 3), (3, 4)]
    assert [e.negatives for e in filtered] == [(4,), (4,), (0,)]


def test_generative_pairs_have_no_copies_as_negatives():
    pairs = [Pair("which pet", 2), Pair("which pet", 1), Pair("what swims sea", 3)]
    results = with_negatives(pairs, CORPUS, 2, 0)
    assert [set(pair.negatives) for pair in results[:2]] == [{3, 4}] * 2
    assert set(results[2].negatives) < {0, 1, 4}
    with pytest.raises(ValueError, match="query 'which pet': 4 different documents hold no 3 negatives"):
        with_negatives(pairs, CORPUS, 3, 0)
