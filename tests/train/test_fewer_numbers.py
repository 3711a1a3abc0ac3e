"""Matryoshka training and training with codes: which loss is minimised, and what an index then stores."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paradigms import PARADIGMS, load
from paradigms.core import rel
from paradigms.encoder.text import first_coordinates
from paradigms.find import Store, kinds
from paradigms.retrieve import Indexed
from paradigms.store.pruning import TokenReduction
from paradigms.store.residuals import Codec
from paradigms.train.contrastive import Contrastive, straight_through
from paradigms.train.losses import LossSettings, contrastive
from tests.near import assert_same, assert_same_run, assert_within_rounding
from tests.train.test_loop import CORPUS, EXAMPLES, WORDS, build

TEXTS = dict(zip(CORPUS.ids, CORPUS, strict=True))
QUERIES = {word: f"the {word}" for word in WORDS[:4]}


def test_the_losses_of_first_coordinates_are_added(tiny_bert: Path) -> None:
    model = build(tiny_bert).double()
    objective = Contrastive(model, CORPUS, EXAMPLES)
    batch = objective.collate(EXAMPLES[:6])
    expected = sum(Contrastive(model.truncated(h), CORPUS, EXAMPLES).loss(m, batch) for h, m in (
        (None, model), (16, model.truncated(16)), (4, model.truncated(4))
    ))  # fmt: skip
    assert_same(objective.configure(LossSettings(matryoshka=[16, 4])).loss(model, batch), expected)
    for wrong in ([32], [40]):
        with pytest.raises(ValueError, match="below the 32 dimensions"):
            objective.configure(LossSettings(matryoshka=wrong))


def test_the_losses_of_fewer_tokens_are_added(tiny_bert: Path) -> None:
    reductions = [TokenReduction(pool=2, pooling="sequential"), TokenReduction(keep=0.25)]
    model = build(tiny_bert, "me_bert").double()
    objective = Contrastive(model, CORPUS, EXAMPLES)
    batch = objective.collate(EXAMPLES[:6])
    Q, D = model(batch.queries, batch.documents)
    expected = objective.loss(model, batch)
    for reduction in reductions:
        scores = rel(reduction(D), Q, model.align, model.normalise)
        target, excluded = torch.arange(6), batch.excluded(batch.positions)
        expected = expected + contrastive(scores, target, excluded, model.recipe.temperature)
    loss = objective.configure(LossSettings(reductions=reductions)).loss(model, batch)
    assert_same(loss, expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(one, parameters, allow_unused=True) for one in (loss, expected)]
    assert_same(*([g for g in row if g is not None] for row in gradients))


def test_an_index_of_first_coordinates(tiny_bert: Path, tmp_path: Path) -> None:
    model = build(tiny_bert)
    built = Indexed.build(model, TEXTS, tmp_path / "index", dim=8)
    assert built.index.store.dim == 8
    found = built.search(QUERIES, 5)
    D, Q = model.encode_documents(list(TEXTS.values())), model.encode_queries(list(QUERIES.values()))
    scores = rel(first_coordinates(D, 8, True), first_coordinates(Q, 8, True), model.align, model.normalise)
    for query, row in zip(QUERIES, scores, strict=True):
        expected = dict(zip(TEXTS, row.tolist(), strict=True))
        for id, score in found[query].items():
            assert score == pytest.approx(expected[id], abs=2e-3)  # float16
    reopened = Indexed.open(tmp_path / "index", model)  # which truncates
    assert_same_run(reopened.search(QUERIES, 5), found)
    with pytest.raises(ValueError, match=r"search with the model's truncated\(8\)"):
        built.index.store.check(model)
    with pytest.raises(ValueError, match="holds vectors of 8 dimensions"):
        Indexed.open(tmp_path / "index", build(tiny_bert, dim=16))  # other weights
    model.truncated(8).save_pretrained(tmp_path / "short")
    assert_same_run(Indexed.open(tmp_path / "index", load(tmp_path / "short")).search(QUERIES, 5), found)
    with pytest.raises(ValueError, match="no first 33"):
        model.truncated(33)
    with pytest.raises(ValueError, match="beyond the 32"):
        PARADIGMS["colbert"](tiny_bert, truncate=40)


def test_codes_are_those_of_an_index_and_pass_the_gradient(tiny_bert: Path) -> None:
    model = build(tiny_bert)
    documents = model.encode_documents(list(TEXTS.values())).map(torch.clone)
    vectors = documents.vectors.clone().requires_grad_()
    coded = straight_through(replace(documents, vectors=vectors), 2)
    real = documents.vectors[documents.mask]
    codec = Codec.fit(real, max(1, len(real) // 32), 2, seed=0)
    decoded = codec.decode_vectors(**codec.encode_vectors(real))
    assert_within_rounding(coded.vectors[coded.mask].detach(), decoded, torch.float32, 4)
    assert float((decoded - real).norm(dim=-1).mean()) > 0.01  # 2 bits lose something
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    (coded.vectors * weights).sum().backward()
    assert torch.equal(vectors.grad, weights)
    store = Store.build(
        kinds.compressed(bits=2, lists=codec.centroids.shape[0]), model, TEXTS, TEXTS.values()
    )
    stored = store.tokens_of(CORPUS.ids)
    far = (stored.vectors[stored.mask] - real).norm(dim=-1).mean()
    assert far == pytest.approx(float((decoded - real).norm(dim=-1).mean()), rel=0.5)  # as an index loses
