"""Indexes of one long vector a document (MUVERA, LEMUR): candidates are those of the vectors, scores those of
rel; in step with their store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paradigms.align import PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, nearest, open_index
from paradigms.muvera import FixedEncoding
from paradigms.recipe import Recipe
from paradigms.store.kind import Kind
from tests.find.test_near_tokens import DIM, documents, queries
from tests.near import same_scores

RECIPE = Recipe("colbert", QueryToDocument(), "one")
IMPUTING = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=20)
SETTINGS = {"planes": 3, "repetitions": 6, "inner": 0, "factory": "Flat"}
KINDS = {"fixed": kinds.fixed(**SETTINGS), "lemur": kinds.lemur(width=40, factory="Flat")}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


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
        encoding, mean = FixedEncoding(3, 6, 0), None
        tokens = exact.store.tokens(np.arange(150))
        if centre:
            mean = tokens.vectors[tokens.mask].mean(0)
        scores = encoding.queries(queries(), mean) @ encoding.documents(tokens, mean).T
        values, wanted = scores.topk(12)
        best, rows = index.finder.nearest(index.store, queries(), 12)
        same_scores(by_row(rows, best), by_row(wanted, values))


@pytest.mark.parametrize("kind", [kinds.fixed(3, 6, 0), kinds.lemur(40)], ids=KINDS)
def test_no_number_of_documents_hides_candidates(
    exact: Index, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, all documents' vectors are compared, however many there are."""
    before = Index(exact.store.copy(kind)).with_finder(probes=1)
    monkeypatch.setattr(nearest, "SMALL", 2)
    many = Index(exact.store.copy(kind)).with_finder(probes=1)
    assert many.search_tokens(RECIPE, queries(), 5) == before.search_tokens(RECIPE, queries(), 5)


@each_kind
def test_candidates_are_scored_by_rel(exact: Index, kind: Kind) -> None:
    index = Index(exact.store.copy(kind)).with_finder(candidates=12)
    _, rows = index.finder.nearest(index.store, queries(), 12)
    for n, found in enumerate(index.search_tokens(RECIPE, queries(), 5)):
        near = exact.rerank_tokens([RECIPE], queries()[n : n + 1], [exact.store.names(rows[n])])[0][0]
        same_scores([found], [dict(list(near.items())[:5])])


def test_predicted_scores_are_near_rel(exact: Index) -> None:
    """Those of 10 documents have the 3 best of 150 among them, for most queries; so has no random choice."""
    index = Index(exact.store.copy(KINDS["lemur"]))
    values, rows = index.finder.nearest(index.store, queries(), 10)
    shares, errors = [], []
    for n, row in enumerate(exact.search_tokens(RECIPE, queries(), 150)):
        names = exact.store.names(rows[n])
        shares.append(np.mean([id in names for id in list(row)[:3]]))
        errors += [abs(values[n][place] - row[id]) for place, id in enumerate(names)]
    assert np.mean(shares) > 0.6
    assert np.mean(errors) < 0.5  # of scores up to 5


@each_kind
def test_all_candidates_make_it_exact(exact: Index, kind: Kind) -> None:
    index = Index(exact.store.copy(kind))
    index = index.with_finder(candidates=1000)
    same_scores(index.search_tokens(RECIPE, queries(), 10), exact.search_tokens(RECIPE, queries(), 10))
    everything = [exact.store.names(np.arange(150))] * 6
    reranked = exact.rerank_tokens([IMPUTING], queries(), everything)[0]
    found = index.search_tokens(IMPUTING, queries(), 10)
    same_scores(found, [dict(list(row.items())[:10]) for row in reranked])


@each_kind
def test_it_keeps_in_step_with_its_store(exact: Index, kind: Kind, tmp_path: Path) -> None:
    common = {"paradigm": "colbert", "dim": DIM}
    index = Index(Store.build_from(kind, documents(0, 60), tmp_path / "index", **common))
    index = Index(index.store.add_from(documents(60, 150)))
    index = Index(index.store.delete(["d3", "d70"]))
    before = index.search_tokens(RECIPE, queries(), 100)
    assert not any({"d3", "d70", "empty"} & set(found) for found in before)
    index = Index(index.store.compact())
    same_scores(index.search_tokens(RECIPE, queries(), 100), before)
    same_scores(open_index(index.store.folder).search_tokens(RECIPE, queries(), 100), before)


def test_both_have_the_width_that_is_asked_for(exact: Index) -> None:
    for kind in (kinds.fixed(**SETTINGS | {"inner": 4, "final": 32}), kinds.lemur(width=32)):
        assert exact.store.copy(kind).derived.nearest.index.d == 32


def test_lemur_without_tokens_is_fitted_by_the_first_ones(exact: Index) -> None:
    empty = (["empty"], Tokens(torch.ones(1, 1, 1, DIM), torch.zeros(1, 1, 1, dtype=torch.bool)))
    store = Store.build_from(KINDS["lemur"], [empty], paradigm="colbert", dim=DIM)
    assert Index(store).search_tokens(RECIPE, queries(), 5) == [{}] * 6
    grown = Index(store.add_from(documents(0, 60))).with_finder(candidates=60)
    wanted = Index(exact.store.only([f"d{n}" for n in range(60)])).search_tokens(RECIPE, queries(), 5)
    same_scores(grown.search_tokens(RECIPE, queries(), 5), wanted)


def test_impossible_settings_are_refused_before_anything_is_encoded(tmp_path: Path) -> None:
    def never() -> object:
        raise AssertionError("documents were read")
        yield

    for wrong, message in (
        (partial(kinds.fixed, planes=20), "need 0 to 12"),
        (partial(kinds.fixed, factory="Nonsense"), "cannot make the index"),
        (partial(kinds.lemur, width=1), "a width from 2"),
        (partial(kinds.lemur, factory="Nonsense"), "cannot make the index"),
    ):
        with pytest.raises(ValueError, match=message):
            Store.build_from(wrong(), never(), tmp_path, paradigm="colbert", dim=DIM)  # type: ignore[arg-type]
