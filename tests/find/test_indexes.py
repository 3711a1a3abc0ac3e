"""Several indexes answer as one index of all their documents."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.align import QueryToDocument
from paradigms.core import Tokens
from paradigms.find import INDEXES, Index, Indexes, Store, kinds, open_indexes
from paradigms.impute import IMPUTATIONS, imputed_rel
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed
from paradigms.scoring.stored import Retrieved, filled
from tests.near import SCORES, assert_same, assert_within_rounding, same_run
from tests.tiny import WORDS, built

TEXTS = {f"d{n:02}": " ".join(WORDS.split()[(7 * n + w) % 200] for w in range(n % 6)) for n in range(40)}
QUERIES = {"a": "bird over the sea", "b": "fire and wood in winter", "none": "", "c": "city cold color"}
SMALL = {"query_length": 12, "document_length": 16}
PARTS = (range(0, 40, 3), range(1, 40, 3), range(2, 40, 3))
ALL = {"faiss": {"factory": "Flat"}, "compressed": {"bits": 8, "lists": 4, "probes": 4, "candidates": 40}}
ALL |= {"exact": {}, "lemur": {"width": 16, "candidates": 20}}


def model(name: str, backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    return built(name, backbone, **(SMALL | options))


def parts(paradigm: Paradigm, kind: str) -> tuple[Indexed, Indexed]:
    """One index of all documents, and three that share them, one document of which is deleted."""
    whole = Indexed.build(paradigm, TEXTS, kind=INDEXES[kind](**ALL[kind])).index.store.delete(["d03"])
    ids, stores = list(TEXTS), []
    for rows in PARTS:
        some = {ids[n]: TEXTS[ids[n]] for n in rows}
        stores.append(Indexed.build(paradigm, some, kind=INDEXES[kind](**ALL[kind])).index.store)
    stores[0] = stores[0].delete(["d03"])
    return Indexed(Index(whole), paradigm), Indexed(Indexes([Index(store) for store in stores]), paradigm)


@pytest.mark.parametrize("k", [1, 4, 100])
@pytest.mark.parametrize("name", PARADIGMS)
def test_exact_indexes_search_and_rerank_as_one(tiny_bert, name, k):
    paradigm = model(name, tiny_bert, **({"search_tokens": 7} if name == "xtr" else {}))
    one, several = parts(paradigm, "exact")
    assert len(several.index) == len(one.index) == 39
    assert several.size_in_bytes() == pytest.approx(one.size_in_bytes(), abs=3)
    found = several.search(QUERIES, k)
    same_run(found, one.search(QUERIES, k))
    assert {query: len(scores) for query, scores in found.items()}["none"] == 0
    pool = {query: dict.fromkeys(list(TEXTS)[n + 4 :: 3], 0.0) for n, query in enumerate(QUERIES)}
    same_run(several.rerank(QUERIES, pool), one.rerank(QUERIES, pool))
    some = [id for id in TEXTS if id != "d03"][::2]
    same_run(several.only(some).search(QUERIES, k), one.only(some).search(QUERIES, k))


@pytest.mark.parametrize("imputation", IMPUTATIONS)
@pytest.mark.parametrize("kind", ["exact", "faiss"])
@pytest.mark.parametrize("k", [1, 7, 10_000])
def test_missing_similarities_come_from_all_indexes(tiny_bert, kind, k, imputation):
    """The k'-th similarity of one index is that of all, and not the largest or smallest of each one's."""
    paradigm = model("xtr", tiny_bert, search_tokens=k, imputation=imputation)
    one, several = parts(paradigm, kind)
    found, wanted = several.search(QUERIES, 40), one.search(QUERIES, 40)
    assert {query: scores.keys() for query, scores in found.items()} == {
        query: scores.keys() for query, scores in wanted.items()
    }
    for query in QUERIES:
        assert_within_rounding(found[query], {id: wanted[query][id] for id in found[query]}, **SCORES)


@pytest.mark.parametrize(
    ("name", "kind"), [("colbert", "compressed"), ("xtr", "compressed"), ("xtr", "lemur")]
)
def test_other_kinds_of_index_rank_what_each_finds(tiny_bert, name, kind):
    """With all lists probed and 8 bits, as one index but for the error of the codes."""
    paradigm = model(name, tiny_bert, **({"search_tokens": 10} if name == "xtr" else {}))
    one, several = parts(paradigm, kind)
    found, wanted = several.search(QUERIES, 5), one.search(QUERIES, 5)
    for query, scores in wanted.items():
        assert list(scores.values()) == pytest.approx(list(found[query].values()), abs=0.02)


def test_one_retriever_over_folders(tiny_bert, tmp_path):
    paradigm = model("colbert", tiny_bert)
    ids = list(TEXTS)
    for n, rows in enumerate(PARTS):
        Indexed.build(paradigm, {ids[row]: TEXTS[ids[row]] for row in rows}, tmp_path / str(n))
    whole = Indexed.build(paradigm, TEXTS)
    folders = [tmp_path / str(n) for n in range(3)]
    several = Indexed.open(folders, paradigm, whole.corpus)
    same_run(several.search(QUERIES, 5), whole.search(QUERIES, 5))
    halves = [several.part(n, 2) for n in range(2)]
    assert [len(half.index) for half in halves if half] == [27, 13]
    assert several.part(0, 4) is None
    tokens = several.index.store.tokens_of(["d05", "d01", "d00", "d03"])
    one = whole.index.store.tokens_of(["d05", "d01", "d00", "d03"])
    assert torch.equal(tokens.mask, one.mask)
    assert torch.equal(tokens.vectors[tokens.mask], one.vectors[one.mask])
    assert several.explain(QUERIES["a"], "d02", ["d05"])[0].rel == pytest.approx(
        whole.explain(QUERIES["a"], "d02", ["d05"])[0].rel
    )
    assert isinstance(open_indexes(folders[:1]), Index)


def test_what_cannot_be_searched_together_is_named(tiny_bert):
    one, other = (model("colbert", tiny_bert, dim=dim) for dim in (8, 4))
    first, second = (Index(Store.build(kinds.exact(), one, [id], ["bird"])) for id in "ab")
    with pytest.raises(ValueError, match=r"not made by one model \(dim: 4 then, 8 now"):
        Indexes([first, Index(Store.build(kinds.exact(), other, ["c"], ["bird"]))])
    with pytest.raises(ValueError, match="document 'a' is both in"):
        Indexes([first, second, first])
    with pytest.raises(ValueError, match="there is no index"):
        Indexes([])
    with pytest.raises(KeyError, match="document 'c' is in none of the indexes"):
        Indexes([first, second]).only(["a", "c"])
    xtr = model("xtr", tiny_bert, search_tokens=3)
    mixed = [
        Index(Store.build(kind, xtr, [id], ["bird"]))
        for kind, id in ((kinds.exact(), "a"), (kinds.faiss(), "b"))
    ]
    with pytest.raises(ValueError, match="several kinds, which cannot impute together"):
        Indexes(mixed).search_tokens(xtr.recipe, xtr.encode_queries(["bird"]), 3)
    with pytest.raises(ValueError, match=r"queries need axes \[b, 1, j, 8\]"):
        Indexes([first, second]).search_tokens(
            one.recipe, Tokens(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2) > 0), 3
        )
    assert not np.isnan(
        list(Indexed(Indexes([first, second]), one).search({"q": "sea"}, 2)["q"].values())
    ).any()


@pytest.mark.parametrize("imputation", IMPUTATIONS)
@pytest.mark.parametrize("k", [1, 9, 500])
def test_pools_put_together_impute_as_one_in_float64(k, imputation):
    """Eq. 4 over the whole corpus, from what each part of it retrieves."""
    S = np.random.default_rng(0).standard_normal((30, 4, 5))  # documents, their tokens, query tokens
    recipe = Recipe("xtr", QueryToDocument(), "query_tokens", "impute", k, imputation)
    pools = []
    for rows in np.split(np.arange(30), [4, 17]):
        found = np.sort(S[rows].reshape(-1, 5).T, axis=1)[:, -k:]
        pools.append(Retrieved(found.shape[1], found, rows, S[rows].max(1)))
    made, _ = filled(recipe, np.array([0, 5]), pools, 120)
    valid = torch.ones(1, 30, 4, 5, dtype=torch.bool)
    wanted = imputed_rel(torch.from_numpy(S)[None], valid, k, imputation)[0]
    owns = np.concatenate([mine[0] for _, mine in made])
    assert owns.any()
    assert_same(torch.cat([scores[0] for scores, _ in made])[owns], wanted[owns])
