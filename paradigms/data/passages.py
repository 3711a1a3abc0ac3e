"""Texts cut into passages of at most l tokens, of words or of an encoder's tokens, and read where they lie.

Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §§5–6: the same
text as collections of passages of 50, 100, 200 and 400 tokens. Cuts fall between words, which are runs of
letters, digits and underscores: a language written without spaces has few of them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from paradigms.data.collection import Corpus, body

WORD = re.compile(r"\w+")
BATCH = 1000  # texts in one call of a tokenizer


class Words(NamedTuple):
    """The words of a text in lower case, where they stand, and the tokens before and up to each.

    text[starts[i]:ends[j]] has upto[j] − before[i] tokens. The first word begins where the text does.
    """

    words: list[str]
    starts: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    upto: np.ndarray
    tokens: int  # of the whole text


class Unit(NamedTuple):
    """text[start:end] of a text, its words first … last − 1, and its place among the units of that text.

    Units of places n, n + 1, … follow each other without a gap, save where a place is a multiple of `group`.
    """

    place: int
    start: int
    end: int
    first: int
    last: int
    tokens: int


class Slices(Sequence[str]):
    """texts[of[i]][starts[i]:ends[i]] for every i, read when asked for."""

    def __init__(self, texts: Sequence[str], of: np.ndarray, starts: np.ndarray, ends: np.ndarray):
        self._texts, self._of, self._starts, self._ends = texts, of, starts, ends

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, index: Any) -> Any:
        return self._texts[int(self._of[index])][int(self._starts[index]) : int(self._ends[index])]


class Joined(Sequence[str]):
    """The texts of each range of a corpus without their titles, a line each, read when asked for."""

    def __init__(self, corpus: Corpus, bounds: list[int]):
        self._corpus, self._bounds = corpus, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        places = range(self._bounds[index], self._bounds[index + 1])
        return "\n".join(body(self._corpus.titles[i], self._corpus[i]) for i in places)


def articles(corpus: Corpus) -> Corpus:
    """Documents of the same title that follow each other, joined to one: paragraphs to articles.

    Each is named by its first document. Titles stay beside the texts and are no part of them. Documents
    without a title stay by themselves.
    """
    bounds = [0]
    for (title, _), run in groupby(enumerate(corpus.titles), lambda row: (row[1], row[1] or row[0])):
        last = [place for place, _ in run][-1]
        bounds.append(last + 1)
    firsts = bounds[:-1]
    return Corpus([corpus.ids[i] for i in firsts], Joined(corpus, bounds), [corpus.titles[i] for i in firsts])
