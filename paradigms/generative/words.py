"""A text as words that know their tokens, so that spans of words are slices of the text's tokens."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from paradigms.baselines import bm25 as lexical

WORD = re.compile(r"\S+")


class Words:
    """The words of a text that have tokens (those that end after the word before), and the first token of
    each.
    """

    def __init__(self, text: str, tokens: Sequence[int], ends: Sequence[int]) -> None:
        """tokens, ends: of the text's first tokens, and the characters at which they end."""
        places = [match.span() for match in WORD.finditer(text)]
        closed = np.array([end for _, end in places[:-1]])
        bounds = [0, *np.searchsorted(ends, closed, side="right").tolist(), len(tokens)]
        kept = [n for n in range(len(places)) if bounds[n] < bounds[n + 1]]
        self.text, self.tokens = text, tokens
        self.places = [places[n] for n in kept]
        self.words = [text[start:end] for start, end in self.places]
        self.bounds = [*(bounds[n] for n in kept), len(tokens)]

    def starts(self, words: int = 1) -> list[int]:
        """The words at which a span of `words` words may start: no stop words where there is another."""
        every = range(max(0, len(self.words) - words) + 1) if self.words else range(0)
        return [n for n in every if _content(self.words[n])] or list(every)

    def source(self, start: int, words: int) -> str:
        return self.text[self.places[start][0] : self.places[min(start + words, len(self.words)) - 1][1]]

    def target(self, start: int, words: int) -> tuple[int, ...]:
        return tuple(self.tokens[self.bounds[start] : self.bounds[min(start + words, len(self.words))]])


@lru_cache(1 << 16)
def _content(word: str) -> bool:
    return bool(lexical.tokenize(word))
