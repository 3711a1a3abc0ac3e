"""The fixed index: candidates are those of the encodings, scores those of rel; in step with its store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms.core import Tokens
from paradigms.index import ExactIndex, FixedIndex, open_index
from paradigms.recipe import Recipe
from tests.index.test_faiss_index import DIM, documents, queries
from tests.near import same_scores

RECIPE = Recipe("colbert", "query_to_document", "one")
IMPUTING = Recipe("xtr", "pool_top_k", "retrieved", {"k": 8}, search="impute", search_tokens=20)
SETTINGS = {"planes": 3, "repetitions": 6, "inner": 0, "factory": "Flat"}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> ExactIndex:
    empty = (["empty"], Tokens(torch.ones(1, 1, 1, DIM), torch.zeros(1, 1, 1, dtype=torch.bool)))
    folder = tmp_path_factory.mktemp("exact") / "index"
    return ExactIndex.build_from([*documents(0, 150), empty], folder, paradigm="colbert", dim=DIM)


def test_candidates_are_the_largest_inner_products(exact: ExactIndex, tmp_path: Path) -> None:
    for centre in (True, False):
        index = FixedIndex.of(exact, tmp_path / str(centre), centre=centre, **SETTINGS)
        encoding, mean = index.settings, None
        tokens = exact.tokens(np.arange(150))
        if centre:
            mean = tokens.vectors[tokens.mask].mean(0)
        scores = encoding.queries(queries(), mean) @ encoding.documents(tokens, mean).T
        best, rows = index.nearest(queries(), 12)
        np.testing.assert_allclose(best, scores.topk(12).values, rtol=1e-4, atol=1e-4)
        assert all(set(a) == set(b) for a, b in zip(rows, scores.topk(12).indices.numpy(), strict=True))
        index.candidates = 12
        for n, found in enumerate(index.search_tokens(RECIPE, queries(), 5)):
            near = exact.rerank_tokens(RECIPE, queries()[n : n + 1], [exact.names(rows[n])])[0]
            same_scores([found], [dict(list(near.items())[:5])])


def test_all_candidates_make_it_exact(exact: ExactIndex, tmp_path: Path) -> None:
    index = FixedIndex.of(exact, tmp_path / "index", **SETTINGS)
    index.candidates = 1000
    same_scores(index.search_tokens(RECIPE, queries(), 10), exact.search_tokens(RECIPE, queries(), 10))
    everything = [exact.names(np.arange(150))] * 6
    reranked = exact.rerank_tokens(IMPUTING, queries(), everything)
    found = index.search_tokens(IMPUTING, queries(), 10)
    same_scores(found, [dict(list(row.items())[:10]) for row in reranked])


def test_the_fixed_index_keeps_in_step_with_its_store(exact: ExactIndex, tmp_path: Path) -> None:
    common = {"paradigm": "colbert", "dim": DIM} | SETTINGS
    index = FixedIndex.build_from(documents(0, 60), tmp_path / "index", **common)  # type: ignore[arg-type]
    index.add_from(documents(60, 150))
    index.delete(["d3", "d70"])
    before = index.search_tokens(RECIPE, queries(), 100)
    assert not any({"d3", "d70", "empty"} & set(found) for found in before)
    index.compact()
    same_scores(index.search_tokens(RECIPE, queries(), 100), before)
    same_scores(open_index(index.folder).search_tokens(RECIPE, queries(), 100), before)
    short = FixedIndex.of(index, tmp_path / "short", **SETTINGS | {"inner": 4, "final": 32})
    assert short._read().d == 32


def test_impossible_settings_are_refused_before_anything_is_encoded(tmp_path: Path) -> None:
    def never() -> object:
        raise AssertionError("documents were read")
        yield

    for wrong, message in (({"planes": 20}, "need 0 to 12"), ({"factory": "Nonsense"}, "makes no index")):
        common = {"paradigm": "colbert", "dim": DIM} | wrong
        with pytest.raises(ValueError, match=message):
            FixedIndex.build_from(never(), tmp_path / "index", **common)  # type: ignore[arg-type]
