"""How a text becomes m vectors: the first states, the means of equal spans, and learned pooling."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paradigms import PARADIGMS, Paradigm, load
from paradigms.encoder.layers import LearnedPooling, mean_of_spans
from paradigms.encoder.settings import Side
from tests.near import assert_same

LENGTHS = torch.tensor([0, 1, 2, 5, 7, 40])
COUNTS = torch.arange(41) < LENGTHS[:, None]
HIDDEN = torch.randn(len(LENGTHS), 41, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TEXTS = ["the quick brown fox, and the lazy dog: a bird", "fox", "", "a zebra in the garden"]
SEVERAL = pytest.mark.parametrize("kind", ["first", "spans", "learned"])


def build(folder: Path, kind: str, **settings: Any) -> Any:
    """ColBERT with at most 4 vectors of a document and of a query; every weight differs from its start."""
    torch.manual_seed(0)
    sides = {"query_vectors": kind, "document_vectors": kind}
    settings = sides | {"vectors": 4, "dim": 8, "skip": ""} | settings
    paradigm = PARADIGMS["colbert"](folder, **settings).double().eval()
    for head in paradigm.encoder.learned_pooling.values():
        torch.nn.init.normal_(head.weight)
    return paradigm


def vectors(paradigm: Paradigm, texts: list[str], side: Side) -> list[torch.Tensor]:
    """Each text's vectors, without padding."""
    tokens = paradigm.tokens(texts, side)
    rows = tokens.vectors.flatten(0, 1), tokens.mask.flatten(0, 1)
    return [of_text[mask] for of_text, mask in zip(*rows, strict=True)]


@pytest.mark.parametrize("m", [1, 3, 8, 64])
def test_means_of_spans_by_hand(m):
    means, mask = mean_of_spans(HIDDEN, COUNTS, m)
    for x, n in enumerate(LENGTHS.tolist()):
        k = min(m, n)
        assert mask[x].tolist() == [True] * k + [False] * (min(m, 41) - k)
        groups: list[list[int]] = [[] for _ in range(k)]
        for r in range(n):
            groups[int((r + 0.5) * k / n)].append(r)
        for c, group in enumerate(groups):
            assert_same(means[x, c], HIDDEN[x, group].mean(0))


@pytest.mark.parametrize("m", [1, 4, 64])
def test_learned_pooling_by_hand_starts_as_spans(m):
    pooling = LearnedPooling(m).double()
    pooled, mask = pooling(HIDDEN, COUNTS)
    means, expected = mean_of_spans(HIDDEN, COUNTS, m)
    assert torch.equal(mask, expected)
    along = torch.nn.functional.cosine_similarity(pooled, means, -1)
    assert_same(along[mask], torch.ones(int(mask.sum()), dtype=torch.float64))
    torch.nn.init.normal_(pooling.weight.requires_grad_(False))
    pooled, _ = pooling(HIDDEN, COUNTS)
    for x, n in enumerate(LENGTHS.tolist()):
        for c in range(min(m, n)):
            weights = [float(pooling.weight[c, int((r + 0.5) * 8 * m / n)]) * m / n for r in range(n)]
            weights = [float(r == c) for r in range(n)] if n <= m else weights
            by_hand = sum(w * HIDDEN[x, r] for r, w in enumerate(weights))
            assert_same(pooled[x, c], by_hand, scale=float(HIDDEN.abs().sum()))


@SEVERAL
@pytest.mark.parametrize("side", ["query", "document"])
def test_padding_changes_nothing_and_short_texts_have_fewer_vectors(tiny_bert, kind, side):
    paradigm = build(tiny_bert, kind)
    together = vectors(paradigm, TEXTS, side)
    assert [len(rows) for rows in together] == [4, 3, 0, 4]  # fox has [CLS] and [SEP] besides
    for text, rows in zip(TEXTS, together, strict=True):
        assert_same(vectors(paradigm, [text], side)[0], rows)


def test_tokens_that_do_not_count_are_not_pooled(tiny_bert):
    settings: dict[str, Any] = {"skip": ",", "special_tokens": False, "normalize": False, "dim": None}
    pooled = vectors(build(tiny_bert, "spans", **settings), TEXTS, "document")
    plain = vectors(PARADIGMS["colbert"](tiny_bert, **settings).double().eval(), TEXTS, "document")
    for rows, states in zip(pooled, plain, strict=True):
        counts = torch.ones(1, len(states), dtype=torch.bool)
        means, mask = mean_of_spans(states[None], counts, 4)
        assert_same(rows, means[mask], scale=float(HIDDEN.abs().max()))


@SEVERAL
def test_every_form_is_saved_and_explained(tiny_bert, tmp_path, kind):
    paradigm = build(tiny_bert, kind).float()
    paradigm.save_pretrained(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert loaded.description() == paradigm.description()
    assert torch.equal(loaded.encode_documents(TEXTS).vectors, paradigm.encode_documents(TEXTS).vectors)
    explained = loaded.explain("the lazy dog and a fox", TEXTS[0])
    assert len(explained.document_tokens) == len(explained.query_tokens) == 4
