"""Rows of a user's own pairs, triplets and scored candidates become a corpus and training examples."""

import datasets
import pytest

from paradigms.train.rows import examples_from_rows

ROWS = [
    {
        "anchor": "cats",
        "positive": "a cat",
        "negative_1": "a dog",
        "negative_2": "a bank",
        "scores": [3, 1, 0],
    },
    {
        "anchor": "cats",
        "positive": "a kitten",
        "negative_1": "a bank",
        "negative_2": "a dog",
        "scores": [2, 0, 1],
    },
]


@pytest.mark.parametrize("make", [list, datasets.Dataset.from_list])
def test_rows_become_examples(make):
    corpus, (first, second) = examples_from_rows(make(ROWS))
    assert list(corpus) == ["a cat", "a dog", "a bank", "a kitten"]
    assert (first.query, first.positive, first.negatives, first.teacher) == (
        "cats",
        0,
        (1, 2),
        (3.0, 1.0, 0.0),
    )
    assert (second.positive, second.negatives) == (3, (2, 1))
    assert first.relevant == second.relevant == (0, 3)  # a kitten is no negative of the other row
    corpus, (pair,) = examples_from_rows([{"query": "q", "document": "d"}])
    assert (pair.negatives, pair.teacher, len(corpus)) == ((), (), 1)


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (
            {"q": "x", "document": "d"},
            ValueError,
            "row 3 has none of query, anchor, question; it has q, document",
        ),
        ({"query": "x", "document": None}, TypeError, "document of row 3 is None"),
        (
            {"query": "cats", "document": "x", "negatives": ["a cat"]},
            ValueError,
            "row 3: a negative is relevant",
        ),
        ({"query": "x", "document": "d", "scores": [1, 2]}, ValueError, "row 3 has 2 scores for 1 documents"),
    ],
)
def test_wrong_rows_are_named(row, error, message):
    with pytest.raises(error, match=message):
        examples_from_rows([*ROWS, row])
