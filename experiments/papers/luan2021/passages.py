"""Cut texts into units of at most l tokens, counted as words or as an encoder's tokens.

Luan et al., TACL 2021, §§5 and 6, cut the same text into passages of 50, 100, 200 and 400 tokens. Cuts fall
on white space. Words are runs of letters, digits and underscores in lower case.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from paradigms.data.collection import Corpus, body

WORD = re.compile(r"\w+")
RUN = re.compile(r"\S+")
BATCH = 1000  # texts per tokenizer call


class Runs(NamedTuple):
    """A text's runs between white space: text[starts[i]:ends[j]] has upto[j] − before[i] tokens."""

    starts: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    upto: np.ndarray


def articles(corpus: Corpus) -> Corpus:
    """Join consecutive documents that have the same title, one per line, under the first document's id."""
    ids = []
    texts = []
    titles = []
    rows = zip(corpus.ids, corpus.titles, corpus, strict=True)
    for _, run in groupby(enumerate(rows), lambda row: row[1][1] or row[0]):
        passages = [row for _, row in run]
        ids.append(passages[0][0])
        titles.append(passages[0][1])
        texts.append("\n".join(body(title, text) for _, title, text in passages))
    return Corpus(ids, texts, titles)


def words_of(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def read_runs(texts: Iterable[str], tokenizer: Any = None) -> Iterator[tuple[str, Runs]]:
    """Yield each text and its runs, counted in tokens of a fast tokenizer or, by default, in words."""
    if tokenizer is not None and not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} is a slow tokenizer, which cannot map tokens to the text"
        )
    stream = iter(texts)
    while batch := list(islice(stream, BATCH)):
        if tokenizer is None:
            places = [[match.span() for match in WORD.finditer(text)] for text in batch]
        else:
            # verbose=False: no warning about texts longer than the model's input
            settings = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
            places = tokenizer(batch, **settings)["offset_mapping"]
        yield from ((text, _runs(text, tokens)) for text, tokens in zip(batch, places, strict=True))


def units(runs: Runs, length: int, *, group: int = 1, least: int = 1) -> Iterator[tuple[int, int, int]]:
    """Cut a text into units (number, start, end) of at most `length` tokens, as long as its runs allow.

    Units of fewer than `least` tokens are left out, as are runs of more than `length` tokens. Units with the
    same number // group follow each other without a gap in the text.
    """
    first = place = 0
    while first < len(runs.starts):
        end = int(np.searchsorted(runs.upto, runs.before[first] + length, side="right"))
        if end > first and runs.upto[end - 1] - runs.before[first] >= least:
            yield place, int(runs.starts[first]), int(runs.ends[end - 1])
            place += 1
        else:
            place = -(-place // group) * group
        first = max(end, first + 1)


def _runs(text: str, tokens: Sequence[tuple[int, int]]) -> Runs:
    """Return the `Runs` of a text. tokens: (start, end) of each token, which may begin with white space."""
    starts, ends = _spans([match.span() for match in RUN.finditer(text)])
    first, last = _spans(tokens)
    return Runs(starts, ends, np.searchsorted(last, starts), np.searchsorted(first, ends))


def _spans(places: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the starts and the ends of spans, [2, spans]."""
    return np.array(places, dtype=np.int64).reshape(-1, 2).T.copy()
