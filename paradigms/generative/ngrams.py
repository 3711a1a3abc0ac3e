"""{v : p·v is valid} for a prefix p: find the tokens that a beam search may generate next.

The search takes time proportional to the number of these tokens. The valid n-grams are either all n-grams of
a corpus (a suffix array in place of SEAL's FM-index: Bevilacqua et al. 2022, arXiv:2204.10628, §3), or only
the n-grams at the start of a document: a trie of identifiers (De Cao et al. 2021). LCP[r] is the number of
tokens that the suffixes of rows r − 1 and r share within a document. An n-gram of depth m occurs in rows lo …
hi − 1; its successors change at the rows r with LCP[r] = m (Abouelhoda et al. 2004, "Replacing suffix trees
with enhanced suffix arrays"). These rows are grouped by n-gram, so that a set of successors is a slice.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

SEPARATOR = -1  # closes every document; no n-gram contains it, so n-grams stay within a document


class Branches(NamedTuple):
    """Tokens that may follow each of x prefixes, and the prefixes' states after each token.

    Prefix p has the entries offsets[p] … offsets[p + 1] − 1 (CSR), possibly none.
    """

    offsets: Int[np.ndarray, " x1"]  # [x + 1], int64
    tokens: Int[np.ndarray, " t"]  # ascending within a prefix
    states: Int[np.ndarray, "t 3"]  # state of the prefix followed by that token


class Occurrences(NamedTuple):
    """Occurrences of each of x n-grams as CSR, sorted by document and position."""

    offsets: Int[np.ndarray, " x1"]  # [x + 1]
    documents: Int[np.ndarray, " t"]
    positions: Int[np.ndarray, " t"]  # of the n-gram's first token within the document


def ranges(
    first: Int[np.ndarray, " x"], last: Int[np.ndarray, " x"]
) -> tuple[Int[np.ndarray, " x1"], Int[np.ndarray, " t"]]:
    """Concatenate the integers of every range [first, last), as CSR: offsets [x + 1] and values."""
    offsets = np.zeros(len(first) + 1, dtype=np.int64)
    np.cumsum(last - first, out=offsets[1:])
    return offsets, np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], last - first)


@dataclass(frozen=True)
class NGramIndex:
    """Index of a corpus's valid n-grams; an n-gram's state is [lo, hi, depth].

    The n-gram is the first `depth` tokens of the suffixes of rows lo … hi − 1; lo = hi if the n-gram is
    absent. A node is an n-gram with multiple successors, or with one successor that does not follow every
    occurrence. The index takes about 26 bytes per token.
    """

    text: Int[np.ndarray, " l"]  # the documents, each closed by SEPARATOR
    starts: Int[np.ndarray, " d1"]  # document d begins at text[starts[d]]
    rows: Int[np.ndarray, " r"]  # the suffix array: start positions of the sorted suffixes
    nodes: Int[np.ndarray, " v"]  # lo · stride + depth of every node, ascending
    first: Int[np.ndarray, " v1"]  # node v has the successors first[v] … first[v + 1] − 1
    tokens: Int[np.ndarray, " e"]  # the successors' tokens, ascending within a node
    lows: Int[np.ndarray, " e"]  # lo of the n-gram followed by that successor; hi is the next entry's lo

    @classmethod
    def build(
        cls, tokens: Int[np.ndarray, " t"], offsets: Int[np.ndarray, " d1"], *, trie: bool = False
    ) -> "NGramIndex":
        """Index the documents tokens[offsets[d]:offsets[d + 1]].

        trie: allow only n-grams at the start of a document; the longest n-grams are whole documents. Raises
        ValueError if all documents are empty.
        """
        from pydivsufsort import divsufsort, kasai

        from paradigms.generative.compiled import previous_smaller

        if not len(tokens):
            raise ValueError("an n-gram index needs at least one token: every document is empty")
        text = np.insert(tokens.astype(np.int32), offsets[1:], SEPARATOR)
        starts = offsets + np.arange(len(offsets))
        symbols = np.searchsorted(np.unique(text), text)  # dense: most corpora then fit in 2 bytes per token
        symbols = symbols.astype(np.min_scalar_type(int(symbols.max())))
        rows = divsufsort(symbols)
        shared = np.roll(kasai(symbols, rows), 1)  # from rows (r, r + 1) to (r − 1, r)
        rows, shared = rows[len(offsets) - 1 :], shared[len(offsets) - 1 :]  # separators sort first
        until_end = np.repeat(starts[1:] - 1, np.diff(starts)) - np.arange(len(text))
        shared = np.minimum(shared, until_end[rows])
        if trie:
            begins = np.flatnonzero(np.isin(rows, starts))
            shared = np.minimum.reduceat(shared[: begins[-1] + 1], np.append(0, begins[:-1] + 1))
            rows = rows[begins]
        stride = int(np.diff(starts).max())  # more than any depth
        changes = previous_smaller(shared)[1:] * stride + shared[1:]  # the node whose successor changes here
        nodes = np.union1d(changes, 0)  # the empty n-gram is always a node
        keys = np.concatenate([nodes, changes])
        lows = np.concatenate([nodes // stride, np.arange(1, len(rows))])  # with each node's first successor
        successors = text[rows[lows] + keys % stride]
        real = np.flatnonzero(successors != SEPARATOR)
        real = real[np.argsort(keys[real], kind="stable")]
        nodes, counts = np.unique(keys[real], return_counts=True)
        first = np.concatenate([[0], np.cumsum(counts)])
        return cls(text, starts, rows, nodes, first, successors[real], lows[real].astype(rows.dtype))

    def start(self) -> Int[np.ndarray, "1 3"]:
        """The state of the empty prefix."""
        return np.array([[0, len(self.rows), 0]])

    def branches(self, states: Int[np.ndarray, "x 3"]) -> Branches:
        """Return the tokens that may follow the prefixes with the given states."""
        lo, hi, depth = states.T
        key = np.where(lo < hi, lo * self._stride + depth, -1)
        node = np.searchsorted(self.nodes, key)
        after = np.searchsorted(self.nodes, key, "right")
        first = self.first[node]
        last = self.first[after]
        single = np.flatnonzero((first == last) & (lo < hi))  # not nodes: at most one successor
        only = self.text[self.rows[lo[single]] + depth[single]]
        single, only = single[only != SEPARATOR], only[only != SEPARATOR]
        first[single], last[single] = 0, 1  # placeholders, overwritten below
        offsets, places = ranges(first, last)
        tokens = self.tokens[places].astype(np.int64)
        lows = self.lows[places].astype(np.int64)
        tokens[offsets[single]] = only
        lows[offsets[single]] = lo[single]
        successors = np.empty((len(tokens), 3), dtype=np.int64)
        successors[:, 0] = lows
        successors[:-1, 1] = lows[1:]
        inner = np.flatnonzero(last > first)
        successors[offsets[inner + 1] - 1, 1] = hi[inner]
        successors[:, 2] = np.repeat(depth + 1, last - first)
        return Branches(offsets, tokens, successors)

    def rests(self, states: Int[np.ndarray, "x 3"]) -> list[Int[np.ndarray, " m"]]:
        """Return each n-gram's continuation to the end of its document, or [] if any has more than one."""
        rests = []
        for lo, hi, depth in states.tolist():
            rests.append(self._until_end(int(self.rows[lo]) + depth))
            last = self._until_end(int(self.rows[hi - 1]) + depth)
            if not np.array_equal(rests[-1], last):  # rows are sorted
                return []
        return rests

    def _until_end(self, begin: int) -> Int[np.ndarray, " m"]:
        document = np.searchsorted(self.starts, begin, side="right")
        return self.text[begin : self.starts[document] - 1]

    def counts(self, states: Int[np.ndarray, "x 3"]) -> Int[np.ndarray, " x"]:
        """Number of occurrences of each n-gram in the corpus, including overlapping ones."""
        return states[:, 1] - states[:, 0]

    def locate(self, states: Int[np.ndarray, "x 3"]) -> Occurrences:
        """Find all occurrences of each n-gram. Memory grows with `counts`."""
        offsets, places = ranges(states[:, 0], states[:, 1])
        grams = np.repeat(np.arange(len(states)), np.diff(offsets))
        begins = self.rows[places].astype(np.int64)
        begins = begins[np.lexsort((begins, grams))]
        documents = np.searchsorted(self.starts, begins, side="right") - 1
        return Occurrences(offsets, documents, begins - self.starts[documents])

    def find(self, grams: Iterable[Sequence[int]]) -> Int[np.ndarray, "n 3"]:
        """Look up the states of n-grams; lo = hi if an n-gram is absent."""

        rows: Any = self.rows  # an array is no Sequence

        @cache
        def narrowed(lo: int, hi: int, depth: int, token: int) -> tuple[int, int]:
            low = bisect_left(rows, token, lo, hi, key=lambda begin: self.text[begin + depth])
            return low, bisect_right(rows, token, low, hi, key=lambda begin: self.text[begin + depth])

        states = []
        for gram in grams:
            lo = 0
            hi = len(self.rows)
            for depth, token in enumerate(gram):
                lo, hi = narrowed(lo, hi, depth, token)
            states.append([lo, hi, len(gram)])
        return np.array(states, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def _stride(self) -> int:
        return int(np.diff(self.starts).max())
