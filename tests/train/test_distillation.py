"""A teacher's scores are learned: losses by hand and in every objective."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.baselines.cross_attention import cross_attention
from paradigms.core import rel
from paradigms.train.contrastive import Contrastive, Listwise
from paradigms.train.losses import Distillation, LossSettings, contrastive, kl, margin_mse
from tests.near import assert_same
from tests.tiny import built
from tests.train.test_distributed import CORPUS, EXAMPLES

PLACES = [[0, 4, 5], [1, 6, 7], [2, 8, 9], [3, 10, 11]]  # of each query's documents; positives come first
TEACHER = torch.tensor([example.teacher for example in EXAMPLES], dtype=torch.float64)


def build(name: str, backbone: Path) -> Paradigm:
    torch.manual_seed(0)
    options = {"xtr": {"k_train": 12}, "splade": {"query_sparsity": 0.0, "document_sparsity": 0.0}}
    paradigm = built(name, backbone, query_length=16, document_length=32, **options.get(name, {}))
    return paradigm.double().eval()


@pytest.mark.parametrize("loss", [kl, margin_mse])
def test_losses_are_their_formulas_with_exact_gradients(loss) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(5, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    results, expected = loss(student, teacher).item(), 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        if loss is kl:
            p, q = ([math.exp(x) / sum(map(math.exp, scores)) for x in scores] for scores in (t, s))
            expected += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 5
        else:
            expected += sum((s[0] - s[m] - t[0] + t[m]) ** 2 for m in (1, 2, 3)) / 15
    assert_same(results, expected)
    assert_same(loss(teacher - 2, teacher), 0.0, scale=1)
    assert torch.autograd.gradcheck(loss, (student.requires_grad_(), teacher))
    if loss is kl:
        (gradient,) = torch.autograd.grad(kl(student, teacher), student)
        assert_same(gradient, (student.softmax(-1) - teacher.softmax(-1)) / 5)


@pytest.mark.parametrize("name", [name for name in PARADIGMS if name != "bge_m3"])  # its parts learn, too
def test_every_paradigm_learns_from_the_rel_of_its_own_candidates(tiny_bert: Path, name: str) -> None:
    paradigm = build(name, tiny_bert)
    settings = Distillation("kl", 0.3, 2.0)
    plain = Contrastive(paradigm, CORPUS, EXAMPLES).configure(LossSettings(temperature=0.1))
    objective = Contrastive(paradigm, CORPUS, EXAMPLES)
    objective.configure(LossSettings(temperature=0.1, distillation=settings))
    batch = objective.collate(EXAMPLES)
    queries, documents = paradigm(batch.queries, batch.documents)
    positions, row = batch.positions, list(range(len(batch.positions)))
    if "pool" in paradigm.reads:  # which holds a document once
        row = [positions.tolist().index(position) for position in positions.tolist()]
    different = sorted(set(row))
    pool = documents.map(lambda t: t[:, different])
    scores = rel(pool, queries, paradigm.align, paradigm.normalise) / 0.1
    scores = scores[:, [different.index(first) for first in row]]
    candidates = torch.stack([scores[row, at] for row, at in enumerate(PLACES)])
    labels = contrastive(scores, torch.arange(4), batch.excluded(batch.positions), 1.0)
    expected = 0.7 * labels + 0.3 * kl(candidates, TEACHER / 2)
    results = objective.loss(paradigm, batch)
    assert_same(results, expected)
    assert results.item() != pytest.approx(plain.loss(paradigm, batch).item())
    weights = list(paradigm.parameters())
    ours, theirs = (
        torch.autograd.grad(each, weights, materialize_grads=True) for each in (results, expected)
    )
    assert max(gradient.abs().max() for gradient in theirs) > 1e-3
    assert_same(ours, theirs)


def test_pairs_leave_the_documents_of_other_queries_out(tiny_bert: Path) -> None:
    paradigm = build("colbert", tiny_bert)
    apart = LossSettings(temperature=0.1, in_batch=False)
    objective = Contrastive(paradigm, CORPUS, EXAMPLES).configure(apart)
    batch = objective.collate(EXAMPLES)
    queries, documents = paradigm(batch.queries, batch.documents)
    scores = rel(documents, queries, paradigm.align, paradigm.normalise) / 0.1
    log_p = torch.stack([scores[row, at].log_softmax(0)[0] for row, at in enumerate(PLACES)])
    assert_same(objective.loss(paradigm, batch), -log_p.mean())


def test_a_reranker_learns_from_a_teacher_too(tiny_bert: Path) -> None:
    torch.manual_seed(0)
    model = cross_attention(tiny_bert).double().eval()
    distillation = Distillation("margin_mse", 0.25, 3.0)
    objective = Listwise(model, CORPUS, EXAMPLES)
    objective.configure(LossSettings(temperature=0.5, distillation=distillation))
    batch = objective.collate(EXAMPLES)
    scores = model(batch[0]).view(4, 3) / 0.5
    labels = (scores.logsumexp(1) - scores[:, 0]).mean()
    expected = 0.75 * labels + 0.25 * margin_mse(scores, TEACHER / 3)
    assert_same(objective.loss(model, batch), expected)


def test_examples_without_scores_to_compare_are_refused(tiny_bert: Path) -> None:
    bare = [replace(example, teacher=()) for example in EXAMPLES]
    alone = [replace(example, negatives=(), teacher=(1.0,)) for example in EXAMPLES]
    uneven = [*EXAMPLES, replace(EXAMPLES[0], negatives=(0,), teacher=(1.0, 2.0))]
    taught = LossSettings(distillation=Distillation())
    few, none = "the same number of hard negatives for every query", "build the examples with a teacher"
    for examples, message in ((bare, none), (alone, few), (uneven, few), ([*EXAMPLES, bare[0]], none)):
        with pytest.raises(ValueError, match=message):
            Contrastive(build("dpr", tiny_bert), CORPUS, examples).configure(taught)
    with pytest.raises(ValueError, match="has 1 or 2: set negatives"):
        Contrastive(build("dpr", tiny_bert), CORPUS, uneven).configure(LossSettings(in_batch=False))
    with pytest.raises(ValueError, match="build the examples with a teacher"):
        Listwise(cross_attention(tiny_bert), CORPUS, bare).configure(taught)
