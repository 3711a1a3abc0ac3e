"""{v : p·v begins an identifier} for a prefix p: a trie of a fixed set of identifiers, in two arrays.

For GENRE's titles (De Cao et al. 2021, arXiv:2010.00904, §3.2) and DSI's semantic ids (Tay et al. 2022,
arXiv:2202.06991, §3.2).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from paradigms.generative.constraints import Branches, columns, ranges


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
        """The trie of non-empty tokens[offsets[n]:offsets[n + 1]], each followed by `end`, in O(t log n);
        equal ones share a leaf.
        """
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
        """The numbers of the identifiers that end at each state, as CSR; several, ascending, where they are
        equal.
        """
        first, last = (np.searchsorted(self.leaves, states[:, 0], side) for side in ("left", "right"))
        offsets, places = ranges(first, last)
        return offsets, self.identifiers[places]
