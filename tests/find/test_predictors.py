"""Indexes of one fitted vector a document (LEMUR): scores are those of rel; in step with their store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms.align import PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, open_index
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


def test_all_candidates_make_it_exact(exact: Index) -> None:
    index = Index(exact.store.copy(LEMUR))
    index = index.with_finder(candidates=1000)
    assert_same_scores(index.search_tokens(RECIPE, queries(), 10), exact.search_tokens(RECIPE, queries(), 10))
    everything = [exact.store.names(np.arange(150))] * 6
    reranked = exact.rerank_tokens([IMPUTING], queries(), everything)[0]
    results = index.search_tokens(IMPUTING, queries(), 10)
    assert_same_scores(results, [dict(list(row.items())[:10]) for row in reranked])


def test_it_keeps_in_step_with_its_store(exact: Index, tmp_path: Path) -> None:
    common = {"paradigm": "colbert", "dim": DIM}
    index = Index(Store.build_from(LEMUR, documents(0, 60), tmp_path / "index", **common))
    index = Index(index.store.add_from(documents(60, 150)))
    index = Index(index.store.delete(["d3", "d70"]))
    before = index.search_tokens(RECIPE, queries(), 100)
    assert not any({"d3", "d70", "empty"} & set(ranked) for ranked in before)
    index = Index(index.store.compact())
    assert_same_scores(index.search_tokens(RECIPE, queries(), 100), before)
    assert_same_scores(open_index(index.store.folder).search_tokens(RECIPE, queries(), 100), before)


def test_lemur_without_tokens_is_fitted_by_the_first_ones(exact: Index) -> None:
    store = Store.build_from(LEMUR, [EMPTY], paradigm="colbert", dim=DIM)
    assert Index(store).search_tokens(RECIPE, queries(), 5) == [{}] * 6
    grown = Index(store.add_from(documents(0, 60))).with_finder(candidates=60)
    expected = Index(exact.store.only([f"d{n}" for n in range(60)])).search_tokens(RECIPE, queries(), 5)
    assert_same_scores(grown.search_tokens(RECIPE, queries(), 5), expected)


def test_impossible_settings_are_refused_before_anything_is_encoded(tmp_path: Path) -> None:
    def never() -> object:
        raise AssertionError("documents were read")
        yield

    for wrong, message in (
        (partial(kinds.lemur, width=1), "width must be at least 2"),
        (partial(kinds.lemur, factory="Nonsense"), "cannot make the index"),
    ):
        with pytest.raises(ValueError, match=message):
            Store.build_from(wrong(), never(), tmp_path, paradigm="colbert", dim=DIM)  # type: ignore[arg-type]
