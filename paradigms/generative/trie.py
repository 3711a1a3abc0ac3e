"""{v : p·v begins an identifier} for a prefix p: a trie of a fixed set of identifiers, in two arrays.

Keeps a decoder to GENRE's titles (De Cao et al. 2021, arXiv:2010.00904, §3.2), DSI's semantic ids (Tay et al.
2022, arXiv:2202.06991, §3.2) or any other list of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from paradigms.generative.constraints import LARGEST_TOKEN, Branches, check_sequences, columns, ranges


@dataclass(frozen=True)
class Trie:
    """A constraint whose finished sequences are the given identifiers; a state is [node].

    Nodes are numbered level by level, and within a level by their token sequence. Edge e leads to node e + 1,
    as every node but the root, 0, has one edge to it.
    """

    first: Int[np.ndarray, " nodes1"]  # node v has the edges first[v] … first[v + 1] − 1
    tokens: Int[np.ndarray, " edges"]  # of the edges, ascending within a node
    leaves: Int[np.ndarray, " n"]  # where each identifier ends, ascending
    identifiers: Int[np.ndarray, " n"]  # the numbers of these identifiers

    @classmethod
    def build(cls, tokens: Int[np.ndarray, " t"], offsets: Int[np.ndarray, " n1"], end: int) -> Trie:
        """The trie of identifiers tokens[offsets[n]:offsets[n + 1]], each followed by `end`.

        Identifiers may be equal: they share a leaf. ValueError names an identifier that is empty or contains
        `end`. A sort per level: O(t log n).
        """
        check_sequences(tokens, offsets, "identifier")
        lengths = np.diff(offsets)
        if not len(lengths):
            raise ValueError("a trie needs at least one identifier")
        if (empty := np.flatnonzero(lengths == 0)).size:
            raise ValueError(
                f"identifier {empty[0]} is empty: give its document a name of at least one token"
            )
        if not 0 <= end <= LARGEST_TOKEN:
            raise ValueError(f"the end token is {end}: tokens are in [0, 2^31)")
        if (inside := np.flatnonzero(tokens == end)).size:
            number = np.searchsorted(offsets, inside[0], side="right") - 1
            raise ValueError(f"identifier {number} contains the end token, {end}, which closes it early")
        tokens = np.insert(tokens, offsets[1:], end)
        offsets = offsets + np.arange(len(offsets))
        node = np.zeros(len(lengths), dtype=np.int64)  # how far each identifier has come
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
        """The numbers of the identifiers that end at each state, as CSR: offsets [x + 1] and numbers.

        Several, ascending, where identifiers are equal; none before an identifier's end.
        """
        first, last = (np.searchsorted(self.leaves, states[:, 0], side) for side in ("left", "right"))
        offsets, places = ranges(first, last)
        return offsets, self.identifiers[places]
