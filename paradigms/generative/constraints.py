"""Which tokens may follow a prefix: what a beam search asks of a trie of identifiers or an index of n-grams.

Both answer for many prefixes in one call of numpy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Branches:
    """{(v, state of p·v) : v may follow p} for each of x prefixes p, as CSR; maybe none."""

    offsets: Int[np.ndarray, " x1"]  # [x + 1], int64
    tokens: Int[np.ndarray, " t"]  # ascending within a prefix
    states: Int[np.ndarray, "t s"]  # the prefix's state after taking that token


@runtime_checkable
class Constraint(Protocol):
    """The valid sequences. A state is a row of s integers; one without branches is a finished sequence."""

    def start(self) -> Int[np.ndarray, "1 s"]:
        """The state of the empty prefix."""

    def branches(self, states: Int[np.ndarray, "x s"]) -> Branches:
        """What may follow the prefixes that have these states."""


def ranges(
    first: Int[np.ndarray, " x"], last: Int[np.ndarray, " x"]
) -> tuple[Int[np.ndarray, " x1"], Int[np.ndarray, " t"]]:
    """The integers of every [first, last), one range after the other, as CSR: offsets [x + 1] and values."""
    offsets = np.zeros(len(first) + 1, dtype=np.int64)
    np.cumsum(last - first, out=offsets[1:])
    return offsets, np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], last - first)


def find_in_ranges(
    values: Int[np.ndarray, " v"],
    first: Int[np.ndarray, " x"],
    last: Int[np.ndarray, " x"],
    wanted: Int[np.ndarray, " x"],
) -> Int[np.ndarray, " x"]:
    """The place of wanted[n] in values[first[n]:last[n]], which ascends, counted from values[0]; else −1."""
    parts = zip(first, last, wanted, strict=True)
    places = first + np.array([np.searchsorted(values[a:b], v) for a, b, v in parts], dtype=np.int64)
    hit = (places < last) & (values[np.minimum(places, len(values) - 1)] == wanted)
    return np.where(hit, places, -1)


def columns(offsets: Int[np.ndarray, " n1"]) -> Iterator[tuple[Int[np.ndarray, " a"], Int[np.ndarray, " a"]]]:
    """For i = 0, 1, …: the sequences of a CSR that have an i-th token, and the places of these tokens."""
    lengths = np.diff(offsets)
    rows, i = np.flatnonzero(lengths), 0
    while rows.size:
        yield rows, offsets[rows] + i
        i += 1
        rows = rows[lengths[rows] > i]


@dataclass(frozen=True)
class Trie:
    """A constraint whose finished sequences are the given identifiers; a state is [node].

    Nodes are numbered level by level, then by tokens. Edge e leads to node e + 1; the root is 0.
    """

    first: Int[np.ndarray, " nodes1"]  # node v has the edges first[v] … first[v + 1] − 1
    tokens: Int[np.ndarray, " edges"]  # of the edges, ascending within a node
    leaves: Int[np.ndarray, " n"]  # where each identifier ends, ascending
    identifiers: Int[np.ndarray, " n"]  # the numbers of these identifiers

    @classmethod
    def build(cls, tokens: Int[np.ndarray, " t"], offsets: Int[np.ndarray, " n1"], end: int) -> "Trie":
        """The trie of the sequences tokens[offsets[n]:offsets[n + 1]] and `end`; equal ones share a leaf."""
        tokens = np.insert(tokens, offsets[1:], end)
        offsets = offsets + np.arange(len(offsets))
        node = np.zeros(len(offsets) - 1, dtype=np.int64)  # how far each identifier has come
        span = int(tokens.max()) + 1
        parents, labels, nodes = [], [], 1
        for rows, places in columns(offsets):
            edges, inverse = np.unique(node[rows] * span + tokens[places], return_inverse=True)
            node[rows] = nodes + inverse
            parents.append(edges // span)
            labels.append(edges % span)
            nodes += len(edges)
        first = np.searchsorted(np.concatenate(parents), np.arange(nodes + 1))
        order = np.argsort(node, kind="stable")
        return cls(first, np.concatenate(labels), node[order], order)

    def start(self) -> Int[np.ndarray, "1 1"]:
        return np.zeros((1, 1), dtype=np.int64)

    def branches(self, states: Int[np.ndarray, "x 1"]) -> Branches:
        nodes = states[:, 0]
        offsets, edges = ranges(self.first[nodes], self.first[nodes + 1])
        return Branches(offsets, self.tokens[edges], edges[:, None] + 1)

    def identifiers_at(
        self, states: Int[np.ndarray, "x 1"]
    ) -> tuple[Int[np.ndarray, " x1"], Int[np.ndarray, " t"]]:
        """The numbers, ascending, of the identifiers that end at each state, as CSR."""
        first, last = (np.searchsorted(self.leaves, states[:, 0], side) for side in ("left", "right"))
        offsets, places = ranges(first, last)
        return offsets, self.identifiers[places]
