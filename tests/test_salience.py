"""ALIGNER in training and at test time: every alignment, and every gate of salience, on either side."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paradigms import Paradigm
from paradigms.align import Alignment, Entropic, TopK
from paradigms.aligner import aligner
from paradigms.core import Tokens
from paradigms.encoder.text import SIDES
from paradigms.relax import entropic_topk, hard_topk, token_budget
from paradigms.retrieve import Indexed
from paradigms.train.contrastive import Contrastive, mean_salience
from tests.near import assert_same, assert_same_scores
from tests.train.test_loop import CORPUS, EXAMPLES

VARIANTS: dict[str, dict[str, Any]] = {
    "entropic": {"salience": "entropic"},
    "Eq. 5": {"salience": "entropic", "iterations": 5},
    "hard": {"salience": "hard"},
    "L1": {"salience": "relu", "salience_l1": 1.0},
}
EVERY = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def build(backbone: Path, align: Alignment = TopK(k=1), **settings: Any) -> Paradigm:
    torch.manual_seed(0)
    defaults = {"query_length": 12, "document_length": 16, "dim": 16}
    return aligner(backbone, align=align, **defaults | settings)


def scatter_heads(paradigm: Paradigm) -> None:
    """Saliences that differ from token to token."""
    heads: Any = paradigm.encoder.salience_heads
    for head in heads.values():
        torch.nn.init.normal_(head.weight, std=1.0)
        torch.nn.init.constant_(head.bias, 0.5)


def batch_gradients(paradigm: Paradigm) -> tuple[float, dict[str, torch.Tensor | None]]:
    """The loss of one batch without dropout, and the gradient of every parameter."""
    paradigm.eval().zero_grad()
    objective = Contrastive(paradigm, CORPUS, EXAMPLES)
    loss = objective.loss(paradigm, objective.collate(EXAMPLES))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in paradigm.named_parameters()}


@EVERY
def test_salience_is_the_gated_score(tiny_bert, variant):
    paradigm = build(tiny_bert, **variant, query_ratio=0.5, document_ratio=0.3, eps=0.1).double()
    scatter_heads(paradigm)
    for side, ratio in zip(SIDES, (0.5, 0.3), strict=True):
        tokens = paradigm.tokens([CORPUS[0], "bird", "the queen"], side)
        with torch.no_grad():
            scores = paradigm.encoder.salience_heads[side](tokens.vectors)[..., 0].relu()
        budget = token_budget(ratio, tokens.mask)
        gate = {
            "relu": lambda s, k, m: m.double(),
            "hard": hard_topk,
            "entropic": lambda s, k, m: entropic_topk(s, k, 0.1, m, variant.get("iterations")),
        }[variant["salience"]](scores, budget, tokens.mask)
        assert_same(tokens.salience, scores * gate)
        if variant["salience"] == "hard":
            assert ((tokens.salience > 0).sum(-1) <= budget).all()


@EVERY
def test_training_starts_from_the_unweighted_alignment(tiny_bert, variant):
    """Equal scores are treated equally by every gate: rel is that without salience."""
    scores = []
    for settings in (variant, {"salience": "none"}):
        paradigm = build(tiny_bert, **settings).double()
        documents, queries = paradigm.encode_documents(list(CORPUS)), paradigm.encode_queries(["a bird"])
        scores.append(paradigm.score(documents, queries))
    assert_same(*scores)


@EVERY
@pytest.mark.parametrize("align", [TopK(k=1), Entropic(k=1, eps=0.05)])
@pytest.mark.parametrize("silent", ["some documents", "query", "document"])
def test_texts_without_salience_train_and_search(tiny_bert, tmp_path, variant, align, silent):
    """Z = 0: rel is 0, every gradient is finite, and what is silent gets none."""
    paradigm = build(tiny_bert, align, **variant)
    scatter_heads(paradigm)
    heads: Any = paradigm.encoder.salience_heads
    if silent in heads:
        torch.nn.init.constant_(heads[silent].bias, -100.0)
        dead = list(CORPUS.ids)  # of a query, or of documents: rel is 0 for all
    else:  # about half of the documents lie below 0 altogether
        tokens = paradigm.encode_documents(list(CORPUS))
        with torch.no_grad():
            best = heads["document"](tokens.vectors)[0, ..., 0].masked_fill(~tokens.mask[0], -1e9).amax(-1)
            heads["document"].bias.sub_(best.median() + 1e-3)
        dead = [CORPUS.ids[n] for n in (best <= best.median()).nonzero()]
        assert 4 < len(dead) < 12
    loss, gradients = batch_gradients(paradigm)
    assert torch.tensor(loss).isfinite()
    assert all(g is not None and g.isfinite().all() for g in gradients.values())
    for side in SIDES if silent == "some documents" else [silent]:
        assert gradients[f"encoder.salience_heads.{side}.weight"].any() == (side != silent)
    index = Indexed.build(paradigm, CORPUS)
    results = index.search({"q": "the sea"}, 16)["q"]
    documents, queries = index.index.store.tokens_of(CORPUS.ids), paradigm.encode_queries(["the sea"])
    scores = paradigm.score(documents, queries)[0].tolist()
    assert_same_scores([results], [dict(zip(CORPUS.ids, scores, strict=True))])
    assert {d for d, score in results.items() if score == 0} >= set(dead)


def test_the_l1_term_is_the_mean_salience_of_texts_of_any_length(tiny_bert):
    mask = torch.tensor([[[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]]).bool()
    salience = torch.tensor([[[1.0, 3, 9, 9], [1, 1, 1, 1], [5, 5, 5, 5]]])
    tokens = Tokens(torch.zeros(1, 3, 4, 2), mask, None, salience)
    assert mean_salience(tokens).item() == pytest.approx((2 + 1 + 0) / 3)
    assert mean_salience(Tokens(tokens.vectors, mask)).item() == 0
    paradigms = [build(tiny_bert, salience="relu", salience_l1=gamma).double() for gamma in (0.0, 0.5)]
    for paradigm in paradigms:
        torch.manual_seed(1)
        scatter_heads(paradigm)
    (without, _), (with_l1, _) = map(batch_gradients, paradigms)
    batch = Contrastive(paradigms[0], CORPUS, EXAMPLES).collate(EXAMPLES)
    terms = [mean_salience(tokens).item() for tokens in paradigms[0](batch.queries, batch.documents)]
    assert_same(with_l1, without + 0.5 * sum(terms))
