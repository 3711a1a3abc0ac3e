"""The fixed index: candidates are those of the encodings, scores those of rel; in step with its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paradigms.align import PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, open_index
from paradigms.recipe import Recipe
from tests.find.test_near_tokens import DIM, documents, queries
from tests.near import same_scores

RECIPE = Recipe("colbert", QueryToDocument(), "one")
IMPUTING = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=20)
SETTINGS = {"planes": 3, "repetitions": 6, "inner": 0, "factory": "Flat"}


@pytest.fixture(scope="module")
def exact() -> Index:
    empty = (["empty"], Tokens(torch.ones(1, 1, 1, DIM), torch.zeros(1, 1, 1, dtype=torch.bool)))
    return Index(Store.build_from(kinds.exact(), [*documents(0, 150), empty], paradigm="colbert", dim=DIM))


def by_row(rows: Any, scores: Any) -> list[dict[str, float]]:
    """The scores of each query under the numbers of their rows, best first."""
    queries = zip(rows.tolist(), scores.tolist(), strict=True)
    pairs = [{str(row): score for row, score in zip(*query, strict=True)} for query in queries]
    return [dict(sorted(query.items(), key=lambda item: (-item[1], item[0]))) for query in pairs]


def test_candidates_are_the_largest_inner_products(exact: Index) -> None:
    for centre in (True, False):
        index = Index(exact.store.copy(kinds.fixed(centre=centre, **SETTINGS)))
        encoding, mean = index.store.derived.encoding, None
        tokens = exact.store.tokens(np.arange(150))
        if centre:
            mean = tokens.vectors[tokens.mask].mean(0)
        scores = encoding.queries(queries(), mean) @ encoding.documents(tokens, mean).T
        best, rows = index.finder.nearest(index.store, queries(), 12)
        values, wanted = scores.topk(12)
        same_scores(by_row(rows, best), by_row(wanted, values))
        index = index.with_finder(candidates=12)
        for n, found in enumerate(index.search_tokens(RECIPE, queries(), 5)):
            near = exact.rerank_tokens([RECIPE], queries()[n : n + 1], [exact.store.names(rows[n])])[0][0]
            same_scores([found], [dict(list(near.items())[:5])])


def test_all_candidates_make_it_exact(exact: Index, tmp_path: Path) -> None:
    index = Index(exact.store.copy(kinds.fixed(**SETTINGS)))
    index = index.with_finder(candidates=1000)
    same_scores(index.search_tokens(RECIPE, queries(), 10), exact.search_tokens(RECIPE, queries(), 10))
    everything = [exact.store.names(np.arange(150))] * 6
    reranked = exact.rerank_tokens([IMPUTING], queries(), everything)[0]
    found = index.search_tokens(IMPUTING, queries(), 10)
    same_scores(found, [dict(list(row.items())[:10]) for row in reranked])


def test_the_fixed_index_keeps_in_step_with_its_store(exact: Index, tmp_path: Path) -> None:
    kind, common = kinds.fixed(**SETTINGS), {"paradigm": "colbert", "dim": DIM}
    index = Index(Store.build_from(kind, documents(0, 60), tmp_path / "index", **common))
    index = Index(index.store.add_from(documents(60, 150)))
    index = Index(index.store.delete(["d3", "d70"]))
    before = index.search_tokens(RECIPE, queries(), 100)
    assert not any({"d3", "d70", "empty"} & set(found) for found in before)
    index = Index(index.store.compact())
    same_scores(index.search_tokens(RECIPE, queries(), 100), before)
    same_scores(open_index(index.store.folder).search_tokens(RECIPE, queries(), 100), before)
    short = index.store.copy(kinds.fixed(**SETTINGS | {"inner": 4, "final": 32}))
    assert short.derived.nearest.index.d == 32


def test_impossible_settings_are_refused_before_anything_is_encoded(tmp_path: Path) -> None:
    def never() -> object:
        raise AssertionError("documents were read")
        yield

    for wrong, message in (
        ({"planes": 20}, "need 0 to 12"),
        ({"factory": "Nonsense"}, "cannot make the index"),
    ):
        with pytest.raises(ValueError, match=message):
            Store.build_from(kinds.fixed(**wrong), never(), tmp_path, paradigm="colbert", dim=DIM)  # type: ignore[arg-type]
