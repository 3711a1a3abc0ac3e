"""Exact search and reranking equal the readable twins on the stored vectors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.core import similarity
from paradigms.impute import imputed_rel
from paradigms.index import INDEXES, ExactIndex, base, exact
from paradigms.index.strategies import STRATEGIES, rerank_strategies
from paradigms.io.progress import progress_bar
from tests.near import placed, same_run
from tests.tiny import built

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
OPTIONS: dict[str, dict] = {"xtr": {"search_tokens": 12, "k_train": 8}, "aligner": {"align_knobs": {"k": 2}}}


def build(name: str, backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    return built(name, backbone, **(SMALL | OPTIONS.get(name, {}) | options))


@pytest.fixture(scope="module")
def made(tiny_bert, tmp_path_factory):
    root = tmp_path_factory.mktemp("indexes")
    paradigms = {name: build(name, tiny_bert) for name in PARADIGMS}
    return {
        name: (paradigm, ExactIndex.build(paradigm, IDS, TEXTS, root / name, batch_size=3))
        for name, paradigm in paradigms.items()
    }


def twin(paradigm: Paradigm, index: ExactIndex, ids: list[str], query: str) -> dict[str, float]:
    """All of `ids` scored at once by core.rel, or for an imputing paradigm by imputed_rel."""
    documents, queries = index.tokens_of(ids), paradigm.encode_queries([query])
    if paradigm.recipe.search == "impute":
        scores = imputed_rel(*similarity(documents, queries), paradigm.recipe.search_tokens)
    else:
        scores = paradigm.score(documents, queries)
    return dict(zip(ids, placed(scores, documents)[0].tolist(), strict=True))


def ranked(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda d: (-scores[d], d))


@pytest.mark.parametrize("sizes", [(1, 1, 5, 2), (40, 300, 20, 1), (10**6, 10**8, 10**6, 1)])
@pytest.mark.parametrize("name", PARADIGMS)
def test_search_equals_the_twin_over_the_whole_corpus(made, name, sizes, monkeypatch):
    """Whatever the sizes of blocks of documents, tokens and queries."""
    paradigm, index = made[name]
    monkeypatch.setattr(base, "SIZES", {"cpu": sizes[:2]})
    monkeypatch.setattr(exact, "TOKEN_BLOCK", sizes[2])
    monkeypatch.setattr(base, "QUERIES", sizes[3])
    found = index.search(paradigm, QUERIES, 5)
    assert list(found) == list(QUERIES)
    for query, text in QUERIES.items():
        expected = twin(paradigm, index, IDS, text)
        for document, score in found[query].items():
            assert score == pytest.approx(expected[document], rel=1e-5, abs=1e-5)
        assert list(found[query]) == ranked(found[query])
        if not text:
            assert found[query] == {}
        elif paradigm.recipe.search == "gather":
            assert len(found[query]) == 5
            best = sorted(expected.values(), reverse=True)[:5]
            assert list(found[query].values()) == pytest.approx(best, rel=1e-5, abs=1e-5)
        else:  # every document that is not found has only imputed similarities: none is better
            left_out = expected.keys() - found[query].keys()
            assert min(found[query].values()) >= max(expected[d] for d in left_out) - 1e-5


@pytest.mark.parametrize("name", PARADIGMS)
def test_rerank_equals_the_twin_over_the_candidates(made, name):
    paradigm, index = made[name]
    run = {"q1": {"d7": 3.0, "d1": 2.0, "d4": 1.0, "d5": 0.5}, "q0": {"d3": 1.0}, "q2": {}}
    found = index.rerank(paradigm, QUERIES, run)
    assert list(found) == list(run)
    for query, candidates in run.items():
        if candidates:
            expected = twin(paradigm, index, list(candidates), QUERIES[query])
            assert found[query] == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert list(found[query]) == ranked(found[query])
    assert found["q2"] == {}


@pytest.mark.parametrize("scanned", [True, False])
def test_a_query_without_candidates_has_none(made, monkeypatch, scanned):
    paradigm, index = made["xtr"]
    if not scanned:
        monkeypatch.setattr(ExactIndex, "_scanned", lambda *_: None)
    assert index.rerank_tokens(paradigm.recipe, paradigm.encode_queries(["sea"]), [[]]) == [{}]


def test_the_scores_of_one_part_of_the_queries_are_held_at_a_time(made, monkeypatch):
    paradigm, index = made["colbert"]
    made_of, cut = exact.score, ExactIndex._keys
    order: list[str] = []
    monkeypatch.setattr(ExactIndex, "_scanned", lambda *_: None)
    monkeypatch.setattr(base, "SIZES", {"cpu": (16, 1 << 20)})
    monkeypatch.setattr(exact, "score", lambda *given: order.append("scores") or made_of(*given))
    monkeypatch.setattr(ExactIndex, "_keys", lambda *given: order.append("keys") or cut(*given))
    parts = [paradigm.encode_queries([text]) for text in ("sea", "lion")]
    with progress_bar(False) as bar:
        index._search(paradigm.recipe, parts, 3, bar)
    assert order == ["scores", "keys"] * (len(order) // 2)
    assert len(order) > 4


@pytest.mark.parametrize("name", ["aligner", "colbert"])
def test_strategies_rerank_as_each_alone(made, name, monkeypatch):
    """Also with those that the kernels do not know; every query is encoded once."""
    paradigm, index = made[name]
    soft = {"soft": ("entropic", {"k": 1, "eps": 0.1})}
    run = {"q1": dict.fromkeys(IDS, 1.0), "q0": {"d3": 1.0}, "q2": {"d4": 1.0, "d1": 2.0}}
    encoded, encode = [], Paradigm.encode_queries
    for strategies in (STRATEGIES, STRATEGIES | soft):
        with monkeypatch.context() as patch:
            patch.setattr(Paradigm, "encode_queries", lambda self, t: encoded.extend(t) or encode(self, t))
            found = rerank_strategies(index, paradigm, QUERIES, run, strategies)
        assert sorted(encoded) == sorted(QUERIES.values())
        encoded.clear()
        assert list(found) == list(strategies)
        for strategy, (align, knobs) in strategies.items():
            same_run(found[strategy], index.rerank(paradigm.with_alignment(align, **knobs), QUERIES, run))


def test_no_index_takes_the_place_of_a_folder_of_the_users(made, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"holds settings\.json, and no manifest\.json"):
        ExactIndex.build(made["dpr"][0], IDS, TEXTS, tmp_path)
    bm25 = BM25.build(["the sea"], ["d"])
    with pytest.raises(FileExistsError, match=r"holds settings.json, and no params.index.json"):
        bm25.save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_queries_may_be_their_first_vectors(tiny_bert, tmp_path):
    """A slice of the encoder's output: its tensors do not lie in one piece."""
    paradigm = build("colbert", tiny_bert, query_vectors="first", first=3, dim=None, normalize=False)
    index = ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "index")
    found = index.search(paradigm, QUERIES, len(IDS))
    same_run({query: index.rerank(paradigm, QUERIES, found)[query] for query in found}, found)
    for query in ("q1", "q2"):
        expected = twin(paradigm, index, [id for id in IDS if id != "d1"], QUERIES[query])
        assert found[query] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_ties_at_the_cut_go_to_the_smaller_id_whatever_the_blocks(tiny_bert, tmp_path, monkeypatch):
    paradigm = build("colbert", tiny_bert)
    ones = replace(paradigm.encode_queries(["sea"]), salience=None)
    ones = replace(ones, vectors=torch.ones_like(ones.vectors))
    ids = [f"{n:02}" for n in np.random.default_rng(0).permutation(20)]
    index = ExactIndex.build(paradigm, ids, [TEXTS[0]] * 20, tmp_path / "index")
    for tokens in (1, 60, 10**6):
        monkeypatch.setattr(base, "SIZES", {"cpu": (tokens, 1 << 20)})
        index.fields["vectors"] = np.ones_like(index.fields["vectors"])  # sums without rounding
        assert list(index.search_tokens(paradigm.recipe, ones, 4)[0]) == ["00", "01", "02", "03"]


def test_the_store_is_float16_memory_mapped_and_gives_the_encoded_tokens_back(made):
    for paradigm, index in made.values():
        opened = ExactIndex.open(index.folder)
        vectors = opened.fields["vectors"]
        assert isinstance(vectors, np.memmap)
        assert vectors.dtype == np.float16
        tokens = opened.tokens_of(IDS)
        encoded = paradigm.encode_documents(TEXTS)
        assert torch.equal(tokens.mask.sum(-1), encoded.mask.sum(-1))
        stored, fresh = tokens.vectors[tokens.mask], encoded.vectors[encoded.mask]
        torch.testing.assert_close(stored, fresh, rtol=1e-3, atol=2e-5 + 1e-3 * float(fresh.abs().max()))
        for name in ("ids", "salience"):
            if name in paradigm.reads:
                mine, theirs = getattr(tokens, name), getattr(encoded, name)
                torch.testing.assert_close(mine[tokens.mask], theirs[encoded.mask], check_dtype=False)
        size = sum(file.stat().st_size for file in index.folder.glob("*.bin"))
        assert opened.bytes_per_document == size / len(IDS)


def test_what_does_not_fit_the_store_is_named(made, tiny_bert):
    dpr, colbert, xtr = (made[name] for name in ("dpr", "colbert", "xtr"))
    pooled = xtr[0].with_alignment("pool_top_k", k=4)
    gather = Paradigm(replace(pooled.recipe, search="gather"), pooled.encoder)
    narrow = build("colbert", tiny_bert, dim=16)
    for message, refused in {
        "k must be at least 1": lambda: dpr[1].search(dpr[0], QUERIES, 0),
        "document 'd99' is not in the index": lambda: dpr[1].rerank(dpr[0], QUERIES, {"q1": {"d99": 1.0}}),
        "query 'q99', which has no text": lambda: dpr[1].rerank(dpr[0], QUERIES, {"q99": {"d1": 1.0}}),
        "128 dimensions of colbert, not of 16": lambda: colbert[1].search(narrow, QUERIES),
        "holds no ids of tokens, which coil reads": lambda: colbert[1].rerank(made["coil"][0], QUERIES, {}),
        "pool_top_k of xtr reads the whole pool": lambda: xtr[1].search(gather, QUERIES),
    }.items():
        with pytest.raises((KeyError, ValueError), match=message):
            refused()


def test_building_again_replaces_and_a_failure_keeps_what_was_there(made, tmp_path):
    paradigm = made["colbert"][0]
    ExactIndex.build(paradigm, ["a"], ["sea"], tmp_path / "index")
    with pytest.raises(TypeError):
        ExactIndex.build(paradigm, ["a", "b"], ["sea", None], tmp_path / "index")
    assert ExactIndex.open(tmp_path / "index").ids == ["a"]
    ExactIndex.build(paradigm, ["b"], ["sun"], tmp_path / "index", precision="bf16")
    assert ExactIndex.open(tmp_path / "index").ids == ["b"]
    assert [file.name for file in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "exact") for name in ("colbert", "coil", "xtr", "dpr")),
        ("xtr", "faiss"),
        ("xtr", "compressed"),
    ],
)
def test_some_documents_of_an_index_are_an_index(tiny_bert, tmp_path, name, kind):
    paradigm = build(name, tiny_bert)
    index = INDEXES[kind].build(paradigm, IDS, TEXTS, tmp_path / "all")
    chosen = ["d1", "d2", "d4", "d5", "d6"]
    places = [IDS.index(id) for id in chosen]
    own = INDEXES[kind].build(paradigm, chosen, [TEXTS[n] for n in places], tmp_path / "some")
    whole, part = index.search(paradigm, QUERIES), index.only(chosen)
    assert len(part) == 5
    if kind == "compressed":  # other centroids: the same documents are found, with the same codes of each
        assert {id for found in part.search(paradigm, QUERIES).values() for id in found} <= {*chosen}
    else:
        same_run(part.search(paradigm, QUERIES, 3), own.search(paradigm, QUERIES, 3))
    assert index.search(paradigm, QUERIES) == whole
    with pytest.raises(KeyError, match="d3"):
        part.rerank(paradigm, QUERIES, {"q1": {"d3": 0.0}})
    with pytest.raises(KeyError, match="nowhere"):
        index.only(["nowhere"])
