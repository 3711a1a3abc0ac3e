"""Exact search and reranking equal the readable twins on the stored vectors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.align import PoolTopK, TopK
from paradigms.core import similarity
from paradigms.data import best_first
from paradigms.find import INDEXES, Index, Store, kinds, open_index, ranking, scan
from paradigms.impute import imputed_rel
from paradigms.retrieve import Indexed, indexed
from tests.near import (
    SCORES,
    TOLERANCE,
    assert_same_run,
    assert_same_scores,
    assert_within_rounding,
    index_scores,
)
from tests.tiny import TERMS, built

TEXTS = [
    "the old man walked along the river road",
    "",
    "a bird flew over the sea",
    "fire, wood and the heat of the sun",
    "the queen read a letter on paper; the lion slept",
    "a bird flew over the sea",
    "corn grows well in the field by the mill",
    "winter snow fell on the mountain and on the town below it, and the children stayed in the house",
]
IDS = ["d3", "d1", "d7", "d0", "d2", "d5", "d6", "d4"]
QUERIES = {"q2": "bird over the sea", "q0": "", "q1": "what does the lion read on winter evenings in town"}
SMALL = {"query_length": 16, "document_length": 32}
OPTIONS: dict[str, dict] = {"xtr": {"search_tokens": 12, "k_train": 8}, "aligner": {"align": TopK(k=2)}}


def build(name: str, backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    return built(name, backbone, **(SMALL | OPTIONS.get(name, {}) | options))


@pytest.fixture(scope="module")
def indexes(tiny_bert, tmp_path_factory):
    root = tmp_path_factory.mktemp("indexes")
    paradigms = {name: build(name, tiny_bert) for name in PARADIGMS}
    return {
        name: (paradigm, Index(Store.build(kinds.exact(), paradigm, IDS, TEXTS, root / name, batch_size=3)))
        for name, paradigm in paradigms.items()
    }


def twin(paradigm: Paradigm, index: Index, ids: list[str], query: str) -> dict[str, float]:
    """Score all of `ids` at once by core.rel, or by imputed_rel for an imputing paradigm."""
    documents, queries = index.store.tokens_of(ids), paradigm.encode_queries([query])
    if paradigm.recipe.search == "impute":
        scores = imputed_rel(*similarity(documents, queries), paradigm.recipe.search_tokens)
    else:
        scores = paradigm.score(documents, queries)
    return dict(zip(ids, index_scores(scores, documents)[0].tolist(), strict=True))


@pytest.mark.parametrize("sizes", [(1, 1, 5, 2), (40, 300, 20, 1)])
@pytest.mark.parametrize("name", PARADIGMS)
def test_search_equals_the_twin_over_the_whole_corpus(indexes, name, sizes, monkeypatch):
    """At any block size of documents, tokens and queries."""
    paradigm, index = indexes[name]
    monkeypatch.setattr(ranking, "SIZES", {"cpu": sizes[:2]})
    monkeypatch.setattr(scan, "TOKEN_BLOCK", sizes[2])
    monkeypatch.setattr(indexed, "QUERIES", sizes[3])
    run = Indexed(index, paradigm).search(QUERIES, 5)
    assert list(run) == list(QUERIES)
    for query, text in QUERIES.items():
        expected = twin(paradigm, index, IDS, text)
        if not text:
            assert run[query] == {}
        elif paradigm.recipe.search == "gather":
            assert_same_scores([run[query]], [best_first(expected, 5)])
        else:
            results = {document: expected[document] for document in run[query]}
            assert_within_rounding(run[query], results, **SCORES)
            # Every document that is not found has only imputed similarities: none is better.
            left_out = expected.keys() - run[query].keys()
            assert min(run[query].values()) >= max(expected[d] for d in left_out) - TOLERANCE


def test_queries_may_be_their_first_vectors(tiny_bert, tmp_path):
    """A slice of the encoder's output: its tensors do not lie in one piece."""
    paradigm = build("colbert", tiny_bert, query_vectors="first", vectors=3, dim=None, normalize=False)
    index = Index(Store.build(kinds.exact(), paradigm, IDS, TEXTS, tmp_path / "index"))
    run = Indexed(index, paradigm).search(QUERIES, len(IDS))
    assert_same_run({query: Indexed(index, paradigm).rerank(QUERIES, run)[query] for query in run}, run)
    for query in ("q1", "q2"):
        expected = twin(paradigm, index, [id for id in IDS if id != "d1"], QUERIES[query])
        assert_within_rounding(run[query], expected, **SCORES)


def test_ties_at_the_cut_go_to_the_smaller_id_whatever_the_blocks(tiny_bert, tmp_path, monkeypatch):
    paradigm = build("colbert", tiny_bert)
    ones = replace(paradigm.encode_queries(["sea"]), salience=None)
    ones = replace(ones, vectors=torch.ones_like(ones.vectors))
    ids = [f"{n:02}" for n in np.random.default_rng(0).permutation(20)]
    index = Index(Store.build(kinds.exact(), paradigm, ids, [TEXTS[0]] * 20, tmp_path / "index"))
    for tokens in (1, 60, 10**6):
        monkeypatch.setattr(ranking, "SIZES", {"cpu": (tokens, 1 << 20)})
        index.store.columns["vectors"] = np.ones_like(index.store.columns["vectors"])  # sums without rounding
        assert list(index.search_tokens(paradigm.recipe, ones, 4)[0]) == ["00", "01", "02", "03"]


def test_the_store_is_float16_memory_mapped_and_gives_the_encoded_tokens_back(indexes):
    for paradigm, index in indexes.values():
        store = open_index(index.store.folder).store
        assert isinstance(store.columns["vectors"], np.memmap)
        assert store.columns["vectors"].dtype == np.float16
        tokens, encoded = store.tokens_of(IDS), paradigm.encode_documents(TEXTS)
        assert torch.equal(tokens.mask.sum(-1), encoded.mask.sum(-1))
        for name, dtype in (("vectors", torch.float16), ("ids", torch.float32), ("salience", torch.float32)):
            if name == "vectors" or name in paradigm.reads:
                mine, theirs = getattr(tokens, name), getattr(encoded, name)
                assert_within_rounding(mine[tokens.mask], theirs[encoded.mask], dtype, TERMS)
        files = store.folder.glob("*.bin")
        size = sum(file.stat().st_size for file in files if file.name != "texts.bin")  # no search reads it
        assert store.bytes_per_document == size / len(IDS)


def test_what_does_not_fit_the_store_is_named(indexes, tiny_bert):
    dpr, colbert, xtr = (indexes[name] for name in ("dpr", "colbert", "xtr"))
    pooled = xtr[0].with_alignment(PoolTopK(k=4))
    gather = Paradigm(replace(pooled.recipe, search="gather"), pooled.encoder)
    narrow = build("colbert", tiny_bert, dim=16)
    on_dpr = Indexed(*dpr[::-1])
    for message, refused in {
        "k must be at least 1": lambda: on_dpr.search(QUERIES, 0),
        "document 'd99' is not in the index": lambda: on_dpr.rerank(QUERIES, {"q1": {"d99": 1.0}}),
        "query 'q99', which has no text": lambda: on_dpr.rerank(QUERIES, {"q99": {"d1": 1.0}}),
        "32 dimensions of colbert, not of 16": lambda: Indexed(colbert[1], narrow).search(QUERIES),
        "holds no ids of tokens": lambda: Indexed(colbert[1], indexes["coil"][0]).rerank({}, {}),
        "of xtr reads the whole pool": lambda: Indexed(xtr[1], gather).search(QUERIES),
    }.items():
        with pytest.raises((KeyError, ValueError), match=message):
            refused()


@pytest.mark.parametrize(
    ("name", "kind"), [("coil", "exact"), ("xtr", "exact"), ("xtr", "faiss"), ("xtr", "compressed")]
)
def test_some_documents_of_an_index_are_an_index(tiny_bert, tmp_path, name, kind):
    paradigm = build(name, tiny_bert)
    index = Index(Store.build(INDEXES[kind](), paradigm, IDS, TEXTS))
    chosen = ["d1", "d2", "d4", "d5", "d6"]
    places = [IDS.index(id) for id in chosen]
    rebuilt = Index(Store.build(INDEXES[kind](), paradigm, chosen, [TEXTS[n] for n in places]))
    before, part = Indexed(index, paradigm).search(QUERIES), index.only(chosen)
    assert len(part) == 5
    if kind == "compressed":  # other centroids: the same documents are found, with the same codes of each
        assert {id for run in Indexed(part, paradigm).search(QUERIES).values() for id in run} <= {*chosen}
    else:
        assert_same_run(*(Indexed(one, paradigm).search(QUERIES, 3) for one in (part, rebuilt)))
    assert Indexed(index, paradigm).search(QUERIES) == before
    with pytest.raises(KeyError, match="d3"):
        Indexed(part, paradigm).rerank(QUERIES, {"q1": {"d3": 0.0}})
    with pytest.raises(KeyError, match="nowhere"):
        index.only(["nowhere"])


def test_two_documents_of_one_id_are_damage(indexes, monkeypatch):
    paradigm, index = indexes["colbert"]
    retriever = Indexed(index, paradigm)
    monkeypatch.setattr(Store, "names", lambda self, rows: ["d0"] * len(rows))
    with pytest.raises(ValueError, match=r"documents\.jsonl.*two documents have one id"):
        retriever.search({"q": "bird"}, 3)
