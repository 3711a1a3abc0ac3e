"""A build measures the recall of finders that read a part of an index, and chooses their settings by it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms.align import AllPairs, PoolTopK
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, open_index
from paradigms.find.recall import LEAST
from paradigms.io.files import write_json
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed
from paradigms.store import Kind
from paradigms.store.arrays import parts
from tests.tiny import WORDS, built

DIM, COUNT = 32, 3000
RECIPE = Recipe("dpr", AllPairs(), "one")
KINDS = {
    "compressed": kinds.compressed(bits=8),
    "lists": kinds.faiss("IVF128,SQfp16"),
    "graph": kinds.faiss("HNSW4,Flat"),
    "lemur": kinds.lemur(width=40, epochs=0, factory="IVF32,Flat"),
}
IDS = [f"d{n}" for n in range(COUNT)]
VECTORS = np.random.default_rng(0).standard_normal((COUNT, 1, DIM)).astype(np.float32)


def store(kind: str, folder: Path | None = None) -> Store:
    """One vector a document: most neighbours of a query lie in other lists than its own."""
    return Store.build_from(KINDS[kind], parts(IDS, VECTORS), folder, paradigm="dpr", dim=DIM)


def queries(seed: int, count: int = 32) -> Tokens:
    vectors = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, 1, DIM)))
    return Tokens(vectors.float()[:, None], torch.ones(count, 1, 1, dtype=torch.bool), side="query")


def recall(index: Index, k: int) -> float:
    """Against the exhaustive search of the same store, for queries that chose nothing."""
    recipe = replace(RECIPE, search_tokens=k)
    best = Index(index.store, index.finder.exhaustive(index.store)).search_tokens(recipe, queries(2), k)
    results = index.search_tokens(recipe, queries(2), k)
    return float(np.mean([len(a.keys() & b.keys()) / k for a, b in zip(results, best, strict=True)]))


@pytest.mark.parametrize("kind", KINDS)
def test_settings_follow_from_the_recall_that_they_reach(kind: str, tmp_path: Path) -> None:
    index = Index(store(kind, tmp_path / "index"))
    before = recall(index, 10)
    tuned = index.tuned(replace(RECIPE, search_tokens=10), [queries(1)])
    assert [choice.k for choice in tuned.choices] == [10, 100]
    assert tuned.choices[0].recall >= LEAST
    assert before < 0.9 < LEAST - 0.03 <= recall(tuned, 10)
    assert recall(open_index(tmp_path / "index"), 10) == recall(tuned, 10), "the folder keeps the choice"


def test_settings_of_a_user_are_kept_and_measured() -> None:
    index = Index(store("compressed")).with_finder(probes=4)
    tuned = index.tuned(RECIPE, [queries(1)])
    assert {choice.settings["probes"] for choice in tuned.choices} == {4}
    assert max(choice.recall for choice in tuned.choices) < 0.9


def test_candidates_grow_with_k_if_the_way_of_scoring_was_measured() -> None:
    index = Index(store("compressed")).tuned(RECIPE, [queries(1)])
    [_, last] = index.choices
    assert len(index.search_tokens(RECIPE, queries(2, 1), 2000)[0]) == 2000
    assert index._finder(RECIPE, 250).candidates == 3 * last.settings["candidates"]
    imputing = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=20)
    assert index._finder(imputing, 10) == index.finder


@pytest.mark.parametrize("kind", [KINDS["compressed"], kinds.lemur(width=40, epochs=0)])
def test_the_choice_of_a_small_index_serves_when_it_has_grown(kind: Kind) -> None:
    small = Store.build_from(kind, parts(IDS[:20], VECTORS[:20]), paradigm="dpr", dim=DIM)
    tuned = Index(small).tuned(RECIPE, [queries(1)])
    grown = Index(tuned.store.add_from(parts(IDS[20:], VECTORS[20:])))
    assert grown.choices == [], "they are of another size"
    assert all(choice.settings["candidates"] >= 64 for choice in tuned.choices)
    with pytest.raises(ValueError, match="restricted to some documents"):
        tuned.only(IDS[:5]).tuned(RECIPE, [queries(1)])


@pytest.mark.parametrize("entry", [3, [{"k": 10}], [{"search": "gather", "k": 10, "recall": 2}]])
def test_a_damaged_choice_is_refused(entry: object, tmp_path: Path) -> None:
    built = store("compressed", tmp_path / "index")
    write_json(tmp_path / "index" / "manifest.json", built.manifest | {"recall": entry})
    with pytest.raises(ValueError, match=r"manifest\.json"):
        open_index(tmp_path / "index").search_tokens(RECIPE, queries(1), 10)


def test_a_build_from_texts_measures_words_of_the_texts(tiny_bert: Path) -> None:
    texts = {f"d{n}": " ".join(WORDS.split()[n : n + 9]) for n in range(60)} | {"empty": ""}
    built_index = Indexed.build(built("colbert", tiny_bert), texts, kind=kinds.compressed(bits=8))
    assert [choice.k for choice in built_index.index.choices] == [10, 61]
    assert all(choice.queries > 30 and choice.recall >= LEAST for choice in built_index.index.choices)
    empty = Indexed.build(built("colbert", tiny_bert), {"empty": ""}, kind="compressed")
    assert empty.search({"q": "a"}) == {"q": {}}
