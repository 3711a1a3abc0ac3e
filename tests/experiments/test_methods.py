"""experiments/methods.py: each method against a slow twin, and a run on tiny encoders."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from methods import PAIRS, Attention, early_exit
from studies.token_methods import (
    FIRST,
    Candidates,
    Example,
    cell_worths,
    largest,
    learn,
    needed_products,
    soft,
)

from paradigms import PARADIGMS
from paradigms.find import Store, kinds
from tests.experiments import scripts
from tests.near import assert_same, assert_within_rounding
from tests.tiny import TERMS, WORDS


@pytest.fixture
def candidates() -> Candidates:
    """Forty documents of 1 to 5 tokens, and a query of 6."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 40)
    starts = np.cumsum(lengths) - lengths
    S = random.uniform(-1, 1, (6, lengths.sum()))
    return Candidates(np.arange(40), np.arange(6), np.arange(lengths.sum()), starts, S)


def documents(each: Candidates) -> list[np.ndarray]:
    return np.split(each.S, each.starts[1:], axis=1)


def test_the_soft_maximum_is_a_softmax_within_each_document(candidates: Candidates) -> None:
    weights = [np.exp(S / 0.1) / np.exp(S / 0.1).sum(1, keepdims=True) for S in documents(candidates)]
    expected = [(w * S).sum(1).mean() for w, S in zip(weights, documents(candidates), strict=True)]
    assert_same(soft(candidates, 0.1), np.array(expected))
    assert_same(soft(candidates, 1e-6), candidates.maxima().mean(0))


def test_the_largest_tokens_of_each_document_stay() -> None:
    offsets = np.array([0, 3, 3, 4, 8])
    stays = largest(np.array([0.1, 0.9, 0.5, 0.0, 4.0, 1.0, 3.0, 2.0]), offsets, 2)
    assert stays.tolist() == [False, True, True, True, True, False, True, False]


def test_an_early_exit_finds_the_first_documents(candidates: Candidates) -> None:
    """A document is left only where no value within the bounds of its remaining maxima lifts it again."""
    maxima = candidates.maxima()
    bounds = np.ones(len(maxima))
    share = needed_products(maxima, candidates.lengths, bounds)
    total = maxima.sum(0)
    ahead = [np.sort(total[:n])[-FIRST:] for n in range(len(total))]
    products = 0
    for n, best in enumerate(ahead):
        left = [j for j in range(6) if len(best) == FIRST and maxima[: j + 1, n].sum() + 5 - j < best[0]]
        products += candidates.lengths[n] * (left[0] + 1 if left else 6)
    assert 0 < share < 1
    assert_same(share, products / (candidates.lengths.sum() * 6))
    assert needed_products(maxima, candidates.lengths, maxima.max(1)) < share


def test_cells_are_what_query_tokens_lose(tiny_bert: Path) -> None:
    model = PARADIGMS["colbert"](tiny_bert, dim=8).eval()
    words = WORDS.split()
    texts = [" ".join(words[n : n + 4]) for n in range(5)]
    store = Store.build(kinds.exact(), model, list("abcde"), texts, precision="no")
    tokens = model.encode_queries(texts).to("cpu")
    sample = tokens.vectors[tokens.mask].float()
    worths = cell_worths(store, sample)
    vectors = np.asarray(store.columns["vectors"], dtype=np.float32)
    start, end = store.offsets[2:4]
    S = vectors[start:end] @ sample.numpy().T
    for n in range(end - start):
        lost = S.max(0) - np.delete(S, n, axis=0).max(0)
        assert_within_rounding(worths[start + n], lost.sum(), torch.float32, len(lost) + 8, len(lost))


def test_learned_weights_grow_for_tokens_that_tell_documents_apart() -> None:
    ids = np.array([3, 7])
    maxima = np.array([[0.9, 0.1, 0.2], [0.5, 0.6, 0.5]], dtype=np.float32)
    examples = [Example(ids, maxima, np.array([True, False, False]))] * 4
    learned = learn(np.ones(10), examples, [1, 20], seed=0)
    assert learned[20][3] > learned[1][3] > 1 > learned[1][7] > learned[20][7]
    assert (np.delete(learned[20], ids) == 1).all()


def test_an_early_exit_gives_the_first_documents_of_maxsim() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 40)
    D = random.normal(size=(lengths.sum(), 4))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    Q = D[:6] + 0.01
    Q /= np.linalg.norm(Q, axis=1, keepdims=True)
    starts = np.cumsum(lengths) - lengths
    scores = np.maximum.reduceat(Q @ D.T, starts, axis=1).sum(0)
    for block in (1, 2, 4, 6):
        (best, found), products = early_exit(Q, D, lengths, block)
        assert_within_rounding(found, -np.sort(-scores)[:FIRST], torch.float32, 8 + len(Q), len(Q))
        assert_within_rounding(found, scores[best], torch.float32, 8 + len(Q), len(Q))
        assert products <= 1


def test_attention_is_1_for_the_mean_token_and_ignores_padding(tiny_bert: Path) -> None:
    attention = Attention(PARADIGMS["colbert"](tiny_bert, dim=8).eval(), str(tiny_bert), "no")
    texts = [" ".join(WORDS[7:9]), " ".join(WORDS[7:14])]
    together = attention.of(texts, "document")
    for text, received in zip(texts, together, strict=True):
        assert_within_rounding(received.mean(), np.ones(()), torch.float32, len(received))
        assert_within_rounding(received, attention.of([text], "document")[0], torch.float32, TERMS)


@pytest.mark.slow
def test_the_script_measures_every_method(tiny_bert: Path, tmp_path: Path) -> None:
    words = scripts.write_words(tmp_path)
    options = {"backbone": tiny_bert, "output": tmp_path / "out", "collections": f"[{words}]"}
    scripts.run("methods", **options, precision="no", tracker="none", epochs="[1]", depth=20)
    table, _ = sorted(scripts.published(tmp_path / "out"), key=len)
    rows = json.loads((tmp_path / "out" / f"{table}.json").read_text())
    assert [row["method"] for row in rows] == [method for method, _ in PAIRS]
    assert {row["vectors/document"] for row in rows[:5]} == {rows[0]["vectors/document"]}
    half = next(row for row in rows if row["method"] == "half of the tokens, cells")
    assert half["vectors/document"] < rows[0]["vectors/document"]
