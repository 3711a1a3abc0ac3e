"""experiments/methods.py: two of its methods against slow twins."""

import numpy as np
import pytest
from methods import Candidates, largest, soft

from tests.near import assert_same


@pytest.fixture
def candidates() -> Candidates:
    """Forty documents of 1 to 5 tokens, and a query of 6."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 40)
    starts = np.cumsum(lengths) - lengths
    S = random.uniform(-1, 1, (6, lengths.sum()))
    return Candidates(np.arange(40), np.arange(6), np.arange(lengths.sum()), starts, S)


def documents(each: Candidates) -> list[np.ndarray]:
    return np.split(each.S, each.starts[1:], axis=1)


def test_the_soft_maximum_is_a_softmax_within_each_document(candidates: Candidates) -> None:
    weights = [np.exp(S / 0.1) / np.exp(S / 0.1).sum(1, keepdims=True) for S in documents(candidates)]
    expected = [(w * S).sum(1).mean() for w, S in zip(weights, documents(candidates), strict=True)]
    assert_same(soft(candidates, 0.1), np.array(expected))
    assert_same(soft(candidates, 1e-6), candidates.maxima().mean(0))


def test_the_largest_tokens_of_each_document_stay() -> None:
    offsets = np.array([0, 3, 3, 4, 8])
    stays = largest(np.array([0.1, 0.9, 0.5, 0.0, 4.0, 1.0, 3.0, 2.0]), offsets, 2)
    assert stays.tolist() == [False, True, True, True, True, False, True, False]
