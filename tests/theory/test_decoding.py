"""Decoders' states, constraints and beams, beside what enumeration gives. The laws are in theory/claims."""

import numpy as np
import pytest

from tests.near import assert_same
from theory import decoding


def test_one_number_per_prefix_gives_any_distribution_over_binary_sequences() -> None:
    p = np.array([[0.1, 0.2], [0.3, 0.4]])
    states = decoding.prefix_states(p)
    assert_same(states, [np.log([[0.7 / 0.3]]), np.log([[2.0], [4 / 3]])])
    assert_same(decoding.sequence_log_p(states), np.log(p))


def test_a_gap_is_zero_where_every_token_keeps_the_same_share_of_its_mass() -> None:
    assert decoding.foresight_gap([0.5, 0.5], [0.5, 0.25]) == pytest.approx(
        2 / 3 * np.log(4 / 3) + 1 / 3 * np.log(2 / 3), abs=0, rel=1e-12
    )
    gaps = decoding.foresight_gap([[0.5, 0.5], [0.7, 0.3]], [[0.2, 0.2], [0.0, 0.3]])
    assert_same(gaps, [0.0, 0.0], 1.0)  # in the second, one token is valid


def test_a_beam_counts_documents_outside_the_corpus() -> None:
    """Token 1 has more mass, though its only document in the corpus is worse."""
    p, corpus = np.array([[0.3, 0.1], [0.2, 0.4]]), np.array([[1, 0], [1, 0]])
    assert decoding.beam(p, corpus, 1).tolist() == [[1, 0]]
    assert decoding.beam(p, corpus, 2).tolist() == [[0, 0], [1, 0]]
