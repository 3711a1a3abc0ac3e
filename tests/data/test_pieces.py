"""Passages that carry their document."""

import pytest

from paradigms.data import Corpus
from paradigms.data.pieces import Pieces
from paradigms.data.texts import WORD

TEXTS = {
    "a": "Ships sail. the sea is wide and ships sail the sea; a cat sleeps on the ship at night",
    "b": "the night is dark and a black cat sleeps",
    "c": "",
    "d": "a cat a cat a cat and the sea again and again and a night with ships and more of the night",
}
CORPUS = Corpus(list(TEXTS), list(TEXTS.values()), ["Ships sail.", "", "", ""])


def test_passages_hold_every_word_once_and_begin_with_the_title():
    pieces = Pieces(CORPUS, words=8)
    assert pieces.of("c") == ["c:0"]
    for document, text in TEXTS.items():
        title = CORPUS.titles[CORPUS.position(document)]
        parts = [pieces.corpus[pieces.corpus.position(p)] for p in pieces.of(document)]
        assert all(part.startswith(title) for part in parts)
        assert all(len(WORD.findall(part)) <= 8 for part in parts)
        rest = " ".join(part.removeprefix(title).strip() for part in parts)
        assert rest == text.removeprefix(title).strip()


def test_a_count_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="words of passages must be at least 0, got -1"):
        Pieces(CORPUS, -1)
