"""Texts cut into passages of at most l tokens, of words or of an encoder's tokens, and read where they lie.

Luan et al., TACL 2021, §§5 and 6: one text as passages of 50, 100, 200 and 400 tokens. Cuts fall on white
space. Words are runs of letters, digits and underscores in lower case.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from paradigms.data.collection import Corpus, body

WORD, RUN = re.compile(r"\w+"), re.compile(r"\S+")
BATCH = 1000  # texts in one call of a tokenizer


class Runs(NamedTuple):
    """The runs between white space: text[starts[i]:ends[j]] has upto[j] − before[i] tokens."""

    starts: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    upto: np.ndarray


class Unit(NamedTuple):
    """text[start:end] of a text, and its place among the units of that text."""

    place: int
    start: int
    end: int


class Slices(Sequence[str]):
    """texts[of[i]][starts[i]:ends[i]] for every i, read when asked for."""

    def __init__(self, texts: Sequence[str], of: np.ndarray, starts: np.ndarray, ends: np.ndarray):
        self._texts, self._of, self._starts, self._ends = texts, of, starts, ends
        self._read = (-1, "")  # the text read last: neighbours lie in it

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, index: Any) -> Any:
        of = int(self._of[index])
        read = self._read
        if read[0] != of:
            read = self._read = of, self._texts[of]
        return read[1][int(self._starts[index]) : int(self._ends[index])]

    def __reduce__(self) -> tuple:
        return Slices, (self._texts, self._of, self._starts, self._ends)


class Joined(Sequence[str]):
    """The texts bounds[i] … bounds[i + 1] − 1 of a corpus as one, without titles, a line each."""

    def __init__(self, corpus: Corpus, bounds: list[int]):
        self._corpus, self._bounds = corpus, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        places = range(self._bounds[index], self._bounds[index + 1])
        return "\n".join(body(self._corpus.titles[i], self._corpus[i]) for i in places)


def articles(corpus: Corpus) -> Corpus:
    """Documents that follow each other under one title, joined under the first one's id."""
    bounds = [0]
    for _, run in groupby(enumerate(corpus.titles), lambda row: row[1] or row[0]):
        bounds.append(bounds[-1] + len(list(run)))
    firsts = bounds[:-1]
    return Corpus([corpus.ids[i] for i in firsts], Joined(corpus, bounds), [corpus.titles[i] for i in firsts])


def cut(corpus: Corpus, length: int, tokenizer: Any = None) -> Corpus:
    """Every text in passages of at most `length` tokens, read from the corpus when asked for.

    tokenizer: a fast Hugging Face one; by default words count. Each passage is as long as white space allows;
    what is longer without any is left out. Passage n of "d" is "d:n", with its title beside it.
    """
    if length < 1:
        raise ValueError(f"a passage has at least 1 token, not {length}")
    ids, titles, rows = [], [], []
    texts = zip(corpus.ids, corpus.titles, read_runs(corpus, tokenizer), strict=True)
    for of, (id, title, (_, runs)) in enumerate(texts):
        for unit in units(runs, length):
            ids.append(f"{id}:{unit.place}")
            titles.append(title)
            rows.append((of, unit.start, unit.end))
    return Corpus(ids, Slices(corpus, *np.array(rows, dtype=np.int64).reshape(-1, 3).T), titles)


def words_of(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def read_runs(texts: Iterable[str], tokenizer: Any = None) -> Iterator[tuple[str, Runs]]:
    """Each text and its runs; tokens are those of a fast tokenizer, by default words."""
    if tokenizer is not None and not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} is a slow tokenizer, which knows no places in the text")
    stream = iter(texts)
    while batch := list(islice(stream, BATCH)):
        if tokenizer is None:
            places = [[match.span() for match in WORD.finditer(text)] for text in batch]
        else:
            # No warning on texts that are longer than a model's input.
            settings = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
            places = tokenizer(batch, **settings)["offset_mapping"]
        yield from ((text, _runs(text, tokens)) for text, tokens in zip(batch, places, strict=True))


def units(runs: Runs, length: int, *, group: int = 1, least: int = 1) -> Iterator[Unit]:
    """A text in units of at most `length` tokens, each as long as its runs allow.

    Units of fewer than `least` tokens are left out, as are runs of more than `length`. From one multiple of
    `group` to the next, units follow each other without a gap in the text.
    """
    first = place = 0
    while first < len(runs.starts):
        end = int(np.searchsorted(runs.upto, runs.before[first] + length, side="right"))
        if end > first and runs.upto[end - 1] - runs.before[first] >= least:
            yield Unit(place, int(runs.starts[first]), int(runs.ends[end - 1]))
            place += 1
        else:
            place = -(-place // group) * group
        first = max(end, first + 1)


def _runs(text: str, tokens: Sequence[tuple[int, int]]) -> Runs:
    """tokens: start and end of each. White space before a run may be its first token, or part of that."""
    starts, ends = _spans([match.span() for match in RUN.finditer(text)])
    first, last = _spans(tokens)
    return Runs(
        starts, ends, np.searchsorted(last, starts, side="left"), np.searchsorted(first, ends, side="left")
    )


def _spans(places: Sequence[tuple[int, int]]) -> np.ndarray:
    """[2, places]"""
    return np.array(places, dtype=np.int64).reshape(-1, 2).T.copy()
