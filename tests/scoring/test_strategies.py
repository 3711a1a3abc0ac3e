"""One pass over S gives what each alignment strategy gives alone: in scores, in rankings, whatever Z."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.core import Tokens
from paradigms.index import ExactIndex, strategies
from paradigms.index.strategies import STRATEGIES, aligned, rerank_strategies, strategy_scores
from tests.tiny import WORDS

# Beyond the paper's nine: more tokens than a document has, and shares that differ from them on short texts.
WIDE = dict(STRATEGIES) | {
    "k=50": ("top_k", {"k": 50}),
    "p=29%": ("top_p", {"p": 0.29}),
    "p=100%": ("top_p", {"p": 1.0}),
}
MODELS = {
    "aligner": {},
    "aligner without salience": {"salience": "none"},
    "aligner, ReLU": {"salience": "relu"},
    "colbert": {},
    "xtr": {},
}


def build(name: str, backbone: Path) -> Paradigm:
    torch.manual_seed(0)
    paradigm = PARADIGMS[name.split()[0].strip(",")](
        backbone, dim=16, query_length=16, document_length=64, **MODELS[name]
    )
    if paradigm.encoder.salience_heads is not None:
        for head in paradigm.encoder.salience_heads.values():  # zeros would give every token the same
            torch.nn.init.normal_(head.weight)
    return paradigm


def random_tokens(
    x: int, n: int, lengths: list[int], salience: bool, generator: torch.Generator, sign: float = 0.0
) -> Tokens:
    """Unit vectors; `sign` pulls them towards one direction (+) or its opposite (−). Padding is no zero."""
    longest = max(lengths)
    vectors = torch.randn(x, n, longest, 16, generator=generator)
    vectors[..., 0] += sign
    u = torch.rand(x, n, longest, generator=generator)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).view(x, n, longest)
    return Tokens(
        torch.nn.functional.normalize(vectors, dim=-1),
        mask,
        salience=u.where(u > 0.3, 0) if salience else None,
    )


@pytest.mark.parametrize("sign", [0.0, 9.0], ids=["mixed", "negative"])
@pytest.mark.parametrize("name", MODELS)
def test_every_strategy_equals_its_own_scoring(name: str, sign: float, tiny_bert: Path) -> None:
    """Where every similarity is negative, padding that counted would win."""
    paradigm = build(name, tiny_bert)
    random = torch.Generator().manual_seed(1)
    salience = "salience" in paradigm.reads
    documents = random_tokens(1, 5, [70, 3, 0, 140, 11], salience, random, sign)
    queries = random_tokens(4, 1, [5, 0, 7, 1], salience, random, -sign)
    if salience:
        assert documents.salience is not None
        documents.salience[0, 4] = 0  # a text that nothing may align with
    found = strategy_scores(paradigm, documents, queries, WIDE)
    assert found.shape == (len(WIDE), 4, 5)
    for scores, (align, knobs) in zip(found, WIDE.values(), strict=True):
        expected = paradigm.with_alignment(align, **knobs).score(documents, queries)
        assert torch.allclose(scores, expected, rtol=1e-5, atol=1e-6), (align, knobs)
    different = [
        not torch.allclose(a, b, atol=1e-4) for n, a in enumerate(found) for b in found[:n] if len(found)
    ]
    assert sum(different) > len(different) / 2  # else equality says little


@pytest.mark.parametrize("p", [0.005, 0.01, 0.015, 0.02, 0.29])
def test_a_share_is_that_of_the_alignment(p: float, tiny_bert: Path) -> None:
    lengths = torch.arange(1, 601)
    mask = torch.arange(600) < lengths[:, None]
    documents = Tokens(torch.zeros(1, 600, 600, 1), mask[None])
    queries = Tokens(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool))
    paradigm = build("aligner without salience", tiny_bert).with_alignment("top_p", "one", p=p)
    A = paradigm.interact(documents, queries).alignment
    assert torch.equal(A.sum((-2, -1))[0].long(), aligned(lengths, "top_p", {"p": p}))


def test_a_share_differs_from_the_best_token_only_in_long_documents() -> None:
    """The shortest document in which top-p aligns a second token: 400, 200, 134 and 100 tokens."""
    lengths = torch.arange(1, 601)
    first = {p: int(lengths[aligned(lengths, "top_p", {"p": p / 100}) > 1][0]) for p in (0.5, 1, 1.5, 2)}
    assert first == {0.5: 400, 1: 200, 1.5: 134, 2: 100}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    words = WORDS.split()
    return [
        " ".join(words[(7 * n + 11 * w) % len(words)] for w in range(1 + 5 * n % 58)) for n in range(20)
    ] + [""]


@pytest.mark.parametrize("name", ["aligner", "aligner without salience", "colbert"])
def test_reranking_equals_one_rerank_per_strategy(
    name: str, tiny_bert: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paradigm = build(name, tiny_bert)
    ids = [f"d{n}" for n in range(len(texts))]
    index = ExactIndex.build(paradigm, ids, texts, tmp_path / "index")
    queries = {"q1": "bird over the sea", "q2": "", "q3": "a stone house in the town by the river"}
    run = {"q3": dict.fromkeys(ids, 1.0), "q1": dict.fromkeys(ids[3:9], 0.0), "q2": {"d4": 1.0, "d1": 2.0}}
    run |= {"q4": {}}
    queries |= {"q4": "nothing found"}
    monkeypatch.setattr(strategies, "BLOCK", 128)  # several blocks, of several documents and of one
    encoded: list[int] = []
    encode = Paradigm.encode_queries
    monkeypatch.setattr(
        Paradigm, "encode_queries", lambda self, texts: encoded.append(len(texts)) or encode(self, texts)
    )
    found = rerank_strategies(index, paradigm, queries, run, WIDE)
    assert sum(encoded) == len(queries)
    assert list(found) == list(WIDE)
    for name, (align, knobs) in WIDE.items():
        expected = index.rerank(paradigm.with_alignment(align, **knobs), queries, run)
        assert list(found[name]) == list(run)
        for query, scores in expected.items():
            assert found[name][query] == pytest.approx(scores, rel=1e-5, abs=1e-6)
            mine = found[name][query]
            assert list(mine) == sorted(mine, key=lambda d: (-mine[d], d))


def test_places_ride_along_with_the_similarities() -> None:
    """Against torch.topk; also where zeros of both signs and equal numbers stand side by side."""
    random = torch.Generator().manual_seed(2)
    S = torch.randn(3, 40, 97, generator=random)
    S[0, 0, :4] = torch.tensor([0.0, -0.0, 0.0, 1.0])
    S[1, 1] = S[1, 1].round()
    values, places = strategies._sorted_places(S, 8)
    assert torch.equal(values, S.topk(8).values)
    assert torch.equal(S.gather(-1, places), values)
    assert (places.sort().values.diff() > 0).all()  # each token once
    assert torch.equal(strategies._sorted(S, 8), values)


def test_wrong_input_is_named(tiny_bert: Path, texts: list[str], tmp_path: Path) -> None:
    paradigm = build("aligner", tiny_bert)
    index = ExactIndex.build(paradigm, ["a", "b"], texts[:2], tmp_path / "index")
    with pytest.raises(KeyError, match="'q9', which has no text"):
        rerank_strategies(index, paradigm, {}, {"q9": {"a": 1.0}})
    with pytest.raises(KeyError, match="document 'c' is not in the index"):
        rerank_strategies(index, paradigm, {"q": "bird"}, {"q": {"c": 1.0}})
    for wrong in (("entropic", {"k": 1, "eps": 0.1}), ("top_k", {"k": 0}), ("top_p", {"p": 1.5})):
        with pytest.raises(ValueError, match="a strategy is top_k with k >= 1 or top_p"):
            rerank_strategies(index, paradigm, {"q": "bird"}, {"q": {"a": 1.0}}, {"wrong": wrong})
