"""Exact search and reranking equal the readable twins on the stored vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.core import similarity
from paradigms.impute import imputed_rel
from paradigms.index import ExactIndex, base, exact
from paradigms.index.strategies import STRATEGIES, rerank_strategies
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
Made = dict[str, tuple[Paradigm, ExactIndex]]
SMALL = {"query_length": 16, "document_length": 32}
OPTIONS: dict[str, dict] = {"xtr": {"search_tokens": 12, "k_train": 8}, "aligner": {"align_knobs": {"k": 2}}}


def build(name: str, backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    return built(name, backbone, **(SMALL | OPTIONS.get(name, {}) | options))


@pytest.fixture(scope="module")
def made(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
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


@pytest.mark.parametrize("name", PARADIGMS)
def test_search_equals_the_twin_over_the_whole_corpus(made: Made, name: str) -> None:
    paradigm, index = made[name]
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
def test_rerank_equals_the_twin_over_the_candidates(made: Made, name: str) -> None:
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


@pytest.mark.parametrize("name", ["aligner", "colbert"])
def test_strategies_rerank_as_each_alone(made: Made, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("name", PARADIGMS)
def test_block_and_slice_sizes_change_no_result(
    made: Made, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paradigm, index = made[name]
    expected = index.search(paradigm, QUERIES, 8)
    for sizes, block in (((1, 1), 5), ((40, 300), 20), ((10**6, 10**8), 10**6)):
        monkeypatch.setattr(base, "SIZES", {"cpu": sizes})
        monkeypatch.setattr(exact, "TOKEN_BLOCK", block)
        monkeypatch.setattr(base, "QUERIES", 1 + sizes[0] % 2)
        found = index.search(paradigm, QUERIES, 8)
        for query, scores in expected.items():
            assert found[query] == pytest.approx(scores, rel=1e-5, abs=1e-5)


def test_every_paradigm_is_scored_where_its_vectors_lie(made: Made) -> None:
    cpu = torch.device("cpu")
    assert all(index._scanned(paradigm.recipe, cpu) for paradigm, index in made.values())
    colbert, index = made["colbert"]
    backward = colbert.with_alignment("document_to_query")
    assert index._scanned(backward.recipe, cpu) is None
    query, text = next(iter(QUERIES.items()))
    expected = twin(backward, index, IDS, text)
    assert index.search(backward, {query: text}, 3)[query] == pytest.approx(
        {d: expected[d] for d in ranked(expected)[:3]}, rel=1e-5
    )


def test_no_index_takes_the_place_of_a_folder_of_the_users(made: Made, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"holds settings\.json, and no manifest\.json"):
        ExactIndex.build(made["dpr"][0], IDS, TEXTS, tmp_path)
    bm25 = BM25.build(["the sea"], ["d"])
    with pytest.raises(FileExistsError, match=r"holds settings.json, and no params.index.json"):
        bm25.save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("name", ["colbert", "coil", "aligner"])
def test_queries_may_be_their_first_vectors(tiny_bert: Path, tmp_path: Path, name: str) -> None:
    """A slice of the encoder's output: its tensors do not lie in one piece."""
    options = {"dim": None, "pooled_dim": 0, "normalize": False}
    if name == "aligner":
        options["align_knobs"] = {"k": 1}
    paradigm = build(name, tiny_bert, query_vectors="first", first=3, **options)
    index = ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "index")
    found = index.search(paradigm, QUERIES, len(IDS))
    same_run({query: index.rerank(paradigm, QUERIES, found)[query] for query in found}, found)
    for query in ("q1", "q2"):
        expected = twin(paradigm, index, [id for id in IDS if id != "d1"], QUERIES[query])
        assert found[query] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_grouped_top_k_is_the_top_k() -> None:
    random = torch.Generator().manual_seed(0)
    for n, k in ((7, 3), (64, 3), (83, 5), (400, 50), (400, 49), (1000, 124)):
        S = torch.randint(-50, 50, (4, n), generator=random).float()
        values, places = exact._largest(S, k)
        assert torch.equal(values.sort(descending=True).values, S.topk(k).values)
        assert torch.equal(S.gather(1, places), values)
        assert all(len(set(row)) == k for row in places.tolist())


def test_scores_order_as_their_keys_and_come_back_exactly(made: Made) -> None:
    index = made["dpr"][1]
    scores = [0.0, -0.0, 1.5, -1.5, 1e-30, -1e-30, 3e38, 1.5]
    keys = index._keys(torch.tensor([scores]), np.arange(8))[0]
    found = index._decode_keys(keys.sort(descending=True).values)
    assert list(found) == ranked(dict(zip(index.ids, scores, strict=True)))
    assert found == {id: float(np.float32(s)) for id, s in zip(index.ids, scores, strict=True)}


def test_ties_at_the_cut_go_to_the_smaller_id_whatever_the_blocks(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paradigm = build("colbert", tiny_bert)
    ones = replace(paradigm.encode_queries(["sea"]), salience=None)
    ones = replace(ones, vectors=torch.ones_like(ones.vectors))
    ids = [f"{n:02}" for n in np.random.default_rng(0).permutation(20)]
    index = ExactIndex.build(paradigm, ids, [TEXTS[0]] * 20, tmp_path / "index")
    for tokens in (1, 60, 10**6):
        monkeypatch.setattr(base, "SIZES", {"cpu": (tokens, 1 << 20)})
        index.fields["vectors"] = np.ones_like(index.fields["vectors"])  # sums without rounding
        assert list(index.search_tokens(paradigm.recipe, ones, 4)[0]) == ["00", "01", "02", "03"]


def test_small_and_empty_cases(tiny_bert: Path, tmp_path: Path, made: Made) -> None:
    for name in ("colbert", "xtr"):
        paradigm = made[name][0]
        assert made[name][1].search(paradigm, {}, 3) == {}
        assert made[name][1].rerank(paradigm, QUERIES, {}) == {}
        one = ExactIndex.build(paradigm, ["only"], [TEXTS[0]], tmp_path / f"{name}-one")
        assert list(one.search(paradigm, {"q": "old man"}, 10)["q"]) == ["only"]
        empty = ExactIndex.build(paradigm, ["a", "b"], ["", ""], tmp_path / f"{name}-empty")
        assert empty.search(paradigm, {"q": "old man"}, 10)["q"] == {}
        none = ExactIndex.build(paradigm, [], [], tmp_path / f"{name}-none")
        assert none.search(paradigm, {"q": "old man"}, 10) == {"q": {}}
        assert none.bytes_per_document == 0
    with pytest.raises(ValueError, match="k must be at least 1"):
        made["dpr"][1].search(made["dpr"][0], QUERIES, 0)


def test_the_store_is_float16_memory_mapped_and_gives_the_encoded_tokens_back(made: Made) -> None:
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


def test_unknown_names_are_named(made: Made) -> None:
    paradigm, index = made["dpr"]
    with pytest.raises(KeyError, match="document 'd99' is not in the index"):
        index.rerank(paradigm, QUERIES, {"q1": {"d99": 1.0}})
    with pytest.raises(KeyError, match="query 'q99', which has no text"):
        index.rerank(paradigm, QUERIES, {"q99": {"d1": 1.0}})
    with pytest.raises(ValueError, match="as many different ids, not 1 among 2"):
        ExactIndex.build(paradigm, ["a", "a"], ["x", "y"], index.folder.parent / "never")
    assert not (index.folder.parent / "never").exists()


def test_a_paradigm_that_the_store_does_not_fit_is_refused(made: Made, tiny_bert: Path) -> None:
    index = made["colbert"][1]
    with pytest.raises(ValueError, match="128 dimensions of colbert, not of 16"):
        index.search(build("colbert", tiny_bert, dim=16), QUERIES)
    with pytest.raises(ValueError, match=r"made by colbert, holds no ids of tokens, which coil reads"):
        index.rerank(made["coil"][0], QUERIES, {})
    pooled = made["xtr"][0].with_alignment("pool_top_k", k=4)
    gather = Paradigm(type(pooled.recipe)(**(vars(pooled.recipe) | {"search": "gather"})), pooled.encoder)
    with pytest.raises(ValueError, match="pool_top_k of xtr reads the whole pool"):
        made["xtr"][1].search(gather, QUERIES)


def test_vectors_that_float16_cannot_hold_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    paradigm = build("coil", tiny_bert)
    with torch.no_grad():
        for weight in paradigm.encoder.backbone.encoder.layer[-1].output.LayerNorm.parameters():
            weight.mul_(1e6)
    with pytest.raises(ValueError, match=r"vectors of document 'd\d' do not fit float16: .* coil"):
        ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "index")
    assert not list(tmp_path.iterdir())


def test_building_again_replaces_and_a_failure_keeps_what_was_there(made: Made, tmp_path: Path) -> None:
    paradigm = made["colbert"][0]
    ExactIndex.build(paradigm, ["a"], ["sea"], tmp_path / "index")
    with pytest.raises(TypeError):
        ExactIndex.build(paradigm, ["a", "b"], ["sea", None], tmp_path / "index")  # type: ignore[list-item]
    assert ExactIndex.open(tmp_path / "index").ids == ["a"]
    ExactIndex.build(paradigm, ["b"], ["sun"], tmp_path / "index", precision="bf16")
    assert ExactIndex.open(tmp_path / "index").ids == ["b"]
    assert [file.name for file in tmp_path.iterdir()] == ["index"]
