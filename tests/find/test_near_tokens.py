"""Indexes of FAISS, of tokens and of one fitted vector a document (LEMUR): near exact search, deterministic.

That flat ones are exact, after any change, is in tests/store/test_storage.py.
"""

from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from paradigms.align import PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, nearest, open_index
from paradigms.recipe import Recipe
from tests.near import SCORES, assert_same_scores, assert_within_rounding

DIM = 16
RECIPE = Recipe("colbert", QueryToDocument(), "one", search_tokens=60)
IMPUTING = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=60)
APPROXIMATE = ["IVF16,SQfp16", "IVF16,PQ8x8", "SQ8", "PQ8x8", "OPQ8,IVF16,PQ8x8", "HNSW16"]
Parts = list[tuple[list[str], Tokens]]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def unit(*shape: int, seed: int) -> torch.Tensor:
    """Unit vectors about 12 centres: what inverted lists are made for."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, DIM, generator=torch.Generator().manual_seed(99))
    chosen = centres[torch.randint(0, 12, shape, generator=random)]
    return torch.nn.functional.normalize(chosen + 0.4 * torch.randn(*shape, DIM, generator=random), dim=-1)


def documents(first: int, last: int) -> Parts:
    """Documents of 1 to 10 tokens, that depend on their number alone."""
    return [
        ([f"d{n}"], Tokens(unit(1, 1, 10, seed=n), torch.arange(10)[None, None] < 1 + n % 10))
        for n in range(first, last)
    ]


def queries() -> Tokens:
    return Tokens(unit(6, 1, 5, seed=10_000), torch.ones(6, 1, 5, dtype=torch.bool))


def build(folder: Path | None, factory: str = "Flat", count: int = 200, probes: int = 16) -> Index:
    kind = kinds.faiss(factory, probes)
    return Index(Store.build_from(kind, documents(0, count), folder, paradigm="colbert", dim=DIM))


def token_search(index: Index, vectors: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The index's token search."""
    return index.finder.token_search(index.store, vectors, k)


@pytest.fixture(scope="module")
def exact():
    return Index(Store.build_from(kinds.exact(), documents(0, 200), paradigm="colbert", dim=DIM))


def owners(index: Index, tokens: torch.Tensor) -> set[str]:
    """The documents that hold tokens."""
    return set(index.store.names(index.store.owners(tokens.flatten().numpy())))


def overlap(results: list[dict[str, float]], expected: list[dict[str, float]]) -> float:
    return float(np.mean([len(a.keys() & b.keys()) / len(b) for a, b in zip(results, expected, strict=True)]))


def test_token_search_is_exact(exact):
    vectors = queries().vectors.flatten(0, 2)
    flat = Index(exact.store.copy(kinds.faiss("Flat")))
    mine, theirs = (token_search(index, vectors, 7) for index in (flat, exact))
    assert_within_rounding(mine[0].sort().values, theirs[0].sort().values, **SCORES)
    assert torch.equal(mine[1].sort().values, theirs[1].sort().values)


@pytest.mark.parametrize("factory", APPROXIMATE)
def test_any_factory_is_near_the_exact_search_and_the_same_every_time(exact, tmp_path, factory, monkeypatch):
    monkeypatch.setattr(nearest, "SAMPLE", 900)  # of 1100 tokens
    indexes = [build(tmp_path / name, factory) for name in ("one", "two")]
    one, two = ((index.store.folder / "tokens.faiss").read_bytes() for index in indexes)
    assert one == two
    expected = exact.search_tokens(RECIPE, queries(), 5)
    results = indexes[0].search_tokens(RECIPE, queries(), 5)
    assert overlap(results, expected) >= 0.8
    assert results == open_index(tmp_path / "one").search_tokens(RECIPE, queries(), 5)
    imputed = indexes[0].search_tokens(IMPUTING, queries(), 5)
    assert overlap(imputed, exact.search_tokens(IMPUTING, queries(), 5)) >= 0.4


def test_what_is_not_found_is_left_empty(tmp_path):
    index = build(tmp_path / "index", "IVF64,SQfp16", probes=1)
    scores, rows = token_search(index, queries().vectors.flatten(0, 2), 1000)
    assert (rows < 0).any()
    assert torch.equal(scores == -torch.inf, rows < 0)
    results = index.search_tokens(replace(IMPUTING, search_tokens=1000), queries(), 1000)
    for row, scored in enumerate(results):
        tokens = token_search(index, queries().vectors[row, 0], 1000)[1]
        assert scored.keys() == owners(index, tokens[tokens >= 0])
        assert all(np.isfinite(list(scored.values())))


@pytest.mark.parametrize("factory", ["IVF16,SQfp16", "HNSW16"])
def test_the_token_index_keeps_step_with_the_store(exact, tmp_path, factory):
    index = build(tmp_path / "index", factory, count=150, probes=16)
    index = Index(index.store.add_from(documents(150, 200)))
    expected = exact.search_tokens(RECIPE, queries(), 5)
    assert overlap(index.search_tokens(RECIPE, queries(), 5), expected) >= 0.9
    gone = list({id for scores in expected for id in scores})
    index = Index(index.store.delete(gone))
    scores, rows = token_search(index, queries().vectors.flatten(0, 2), 60)
    assert scores.shape == (30, 60)
    if factory != "HNSW16":  # whose graph may not lead to all of them
        assert (rows >= 0).all()  # as many as wanted, however many of the best are deleted
    before = index.search_tokens(RECIPE, queries(), 5)
    living = exact.only(id for id in exact.store.ids if id not in gone)
    assert overlap(before, living.search_tokens(RECIPE, queries(), 5)) >= 0.9
    index = Index(index.store.compact())
    assert index.store.derived.index.ntotal == index.store.offsets[-1]
    assert overlap(index.search_tokens(RECIPE, queries(), 5), before) >= 0.9
    index = Index(index.store.delete(index.store.ids).compact())
    assert index.search_tokens(IMPUTING, queries(), 5) == [{}] * 6
    assert not list(index.store.folder.glob("*.faiss"))
    index = Index(index.store.add_from(documents(0, 150)))  # trained again
    assert index.store.derived.index.ntotal == index.store.offsets[-1]


def test_what_faiss_cannot_make_or_read_is_said(tmp_path):
    with pytest.raises(ValueError, match="FAISS cannot make the index 'nonsense'"):
        build(tmp_path / "index", "nonsense", count=3)
    assert not list(tmp_path.iterdir())  # told before anything is encoded
    with pytest.raises(ValueError, match="vectors cannot train 'IVF64,SQfp16'"):
        build(tmp_path / "index", "IVF64,SQfp16", count=3)
    assert [entry.name for entry in tmp_path.iterdir()] == [".index.building"]  # and are kept
    index = build(tmp_path / "index", count=3)
    file = index.store.folder / "tokens.faiss"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(ValueError, match=r"tokens.faiss is damaged .its checksum"):
        open_index(index.store.folder)
    with pytest.raises(ValueError, match=r"tokens.faiss is damaged"):
        open_index(index.store.folder, verify=False).search_tokens(RECIPE, queries())


def test_threads_are_torchs_and_settings_come_back(tmp_path, monkeypatch):
    threshold = faiss.cvar.distance_compute_blas_threshold
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # FAISS and torch may count in one place
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: 3)
    seen: list[int] = []
    monkeypatch.setattr(faiss, "omp_set_num_threads", seen.append)
    build(tmp_path / "index", count=3).search_tokens(RECIPE, queries())
    assert seen
    assert seen == [2, 3] * (len(seen) // 2)
    assert faiss.cvar.distance_compute_blas_threshold == threshold


def test_the_file_of_a_flat_index_of_single_vectors_is_one_for_any_faiss(tmp_path):
    given = [
        ([f"d{n}"], Tokens(unit(1, 1, 1, seed=n), torch.ones(1, 1, 1, dtype=torch.bool))) for n in range(30)
    ]
    index = Index(Store.build_from(kinds.faiss("Flat"), given, tmp_path / "index", paradigm="dpr", dim=DIM))
    query = unit(1, 1, 1, seed=7)
    scores, rows = faiss.read_index(str(index.store.folder / "tokens.faiss")).search(query[0, 0].numpy(), 5)
    [ranked] = index.search_tokens(RECIPE, Tokens(query, torch.ones(1, 1, 1, dtype=torch.bool)), 5)
    assert [f"d{row}" for row in rows[0]] == list(ranked)
    assert_within_rounding(scores[0], list(ranked.values()), **SCORES)


LEMUR = kinds.lemur(width=40, factory="Flat")


def test_candidates_of_lemur_are_scored_by_rel(exact):
    index = Index(exact.store.copy(LEMUR)).with_finder(candidates=12)
    _, rows = index.finder.nearest(index.store, queries(), 12)
    for n, ranked in enumerate(index.search_tokens(RECIPE, queries(), 5)):
        reranked = exact.rerank_tokens([RECIPE], queries()[n : n + 1], [exact.store.names(rows[n])])[0][0]
        assert_same_scores([ranked], [dict(list(reranked.items())[:5])])


def test_lemur_without_tokens_is_fitted_by_the_first_ones(exact):
    empty = ["empty"], Tokens(torch.ones(1, 1, 1, DIM), torch.zeros(1, 1, 1, dtype=torch.bool))
    store = Store.build_from(LEMUR, [empty], paradigm="colbert", dim=DIM)
    assert Index(store).search_tokens(RECIPE, queries(), 5) == [{}] * 6
    grown = Index(store.add_from(documents(0, 60))).with_finder(candidates=60)
    expected = exact.only([f"d{n}" for n in range(60)]).search_tokens(RECIPE, queries(), 5)
    assert_same_scores(grown.search_tokens(RECIPE, queries(), 5), expected)
    with pytest.raises(ValueError, match="width must be at least 2"):
        kinds.lemur(width=1)
