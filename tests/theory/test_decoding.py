"""Decoders' states, constraints and beams, beside what enumeration gives. The laws are in theory/claims."""

import numpy as np

from theory import decoding


def test_a_beam_counts_documents_outside_the_corpus() -> None:
    """Token 1 has more mass, though its only document in the corpus is worse."""
    p, corpus = np.array([[0.3, 0.1], [0.2, 0.4]]), np.array([[1, 0], [1, 0]])
    assert decoding.beam(p, corpus, 1).tolist() == [[1, 0]]
    assert decoding.beam(p, corpus, 2).tolist() == [[0, 0], [1, 0]]
