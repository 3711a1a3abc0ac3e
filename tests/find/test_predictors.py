"""Indexes of one fitted vector a document (LEMUR); changes of them are in tests/store/test_storage.py."""

from __future__ import annotations

import pytest
import torch

from paradigms.align import PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds
from paradigms.recipe import Recipe
from tests.find.test_near_tokens import DIM, documents, queries
from tests.near import assert_same_scores

RECIPE = Recipe("colbert", QueryToDocument(), "one")
IMPUTING = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=20)
LEMUR = kinds.lemur(width=40, factory="Flat")
EMPTY = (["empty"], Tokens(torch.ones(1, 1, 1, DIM), torch.zeros(1, 1, 1, dtype=torch.bool)))


@pytest.fixture(scope="module")
def exact() -> Index:
    return Index(Store.build_from(kinds.exact(), [*documents(0, 150), EMPTY], paradigm="colbert", dim=DIM))


def test_candidates_are_scored_by_rel(exact: Index) -> None:
    index = Index(exact.store.copy(LEMUR)).with_finder(candidates=12)
    _, rows = index.finder.nearest(index.store, queries(), 12)
    for n, ranked in enumerate(index.search_tokens(RECIPE, queries(), 5)):
        reranked = exact.rerank_tokens([RECIPE], queries()[n : n + 1], [exact.store.names(rows[n])])[0][0]
        assert_same_scores([ranked], [dict(list(reranked.items())[:5])])


def test_lemur_without_tokens_is_fitted_by_the_first_ones(exact: Index) -> None:
    store = Store.build_from(LEMUR, [EMPTY], paradigm="colbert", dim=DIM)
    assert Index(store).search_tokens(RECIPE, queries(), 5) == [{}] * 6
    grown = Index(store.add_from(documents(0, 60))).with_finder(candidates=60)
    expected = Index(exact.store.only([f"d{n}" for n in range(60)])).search_tokens(RECIPE, queries(), 5)
    assert_same_scores(grown.search_tokens(RECIPE, queries(), 5), expected)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="width must be at least 2"):
        kinds.lemur(width=1)
    with pytest.raises(ValueError, match="cannot make the index"):
        Store.build_from(kinds.lemur(factory="Nonsense"), [EMPTY], paradigm="colbert", dim=DIM)
