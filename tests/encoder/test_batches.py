"""Texts in parts by length, and gradient caching: the plain step's losses and gradients, in less memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from paradigms import PARADIGMS, Paradigm
from paradigms.data import Corpus
from paradigms.encoder import batches
from paradigms.encoder.towers import TwoTowers
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.loop import freeze
from paradigms.train.losses import LossSettings
from tests.near import assert_same
from tests.tiny import built
from tests.train.test_distributed import CORPUS, EXAMPLES
from tests.train.test_loop import WORDS

OPTIONS: dict[str, dict[str, Any]] = {
    "xtr": {"k_train": 30},
    "aligner": {"salience": "relu", "salience_l1": 0.1},
}
ODD = {"colbert": {"query_augmentation": True, "document_marker": "[unused1]"}, "me_bert": {"vectors": 4}}
CHUNKED = {"by texts": (2, None, 1), "by tokens": (0, 20, 1), "by both": (3, 20, 1), "three": (0, None, 3)}


def build(name: str, backbone: Path, dropout: bool = False, **options: Any) -> Paradigm:
    torch.manual_seed(0)
    lengths = {"query_length": 16, "document_length": 32}
    paradigm = built(name, backbone, **(lengths | OPTIONS.get(name, {}) | options))
    return paradigm.train(dropout)


def step(paradigm: Paradigm, chunk: int = 0, tokens: int | None = None, parts: int = 1) -> dict[str, Tensor]:
    """The loss of one batch and its gradients. tokens: at once, None = all."""
    objective = Contrastive(paradigm, CORPUS, EXAMPLES).configure(LossSettings(chunk=chunk))
    paradigm.zero_grad()
    freeze(paradigm, 0, parts)
    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paradigm.encoder, "tokens", {} if tokens is None else {"cpu": tokens}, raising=False)
        loss = objective.loss(paradigm, objective.collate(EXAMPLES))
        loss.backward()
    gradients = {n: p.grad.clone() for n, p in paradigm.named_parameters() if p.grad is not None}
    return gradients | {"loss": loss.detach()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("chunk", "tokens", "parts"), CHUNKED.values(), ids=CHUNKED)
@pytest.mark.parametrize("name", PARADIGMS)
def test_losses_and_gradients_are_those_of_the_plain_step(tiny_bert, name, chunk, tokens, parts):
    paradigm = build(name, tiny_bert, **ODD.get(name, {})).double()
    expected = step(paradigm)
    passes = []
    paradigm.encoder.backbone.register_forward_hook(lambda *_: passes.append(1))
    assert max(float(g.abs().max()) for name, g in expected.items() if name != "loss") > 1e-3
    assert_same(step(paradigm, chunk, tokens, parts), expected)
    assert len(passes) > 3


def test_two_towers_get_the_gradients_of_the_plain_step(tiny_bert):
    towers = [build("dpr", tiny_bert, query_length=length).encoder for length in (9, 30)]
    paradigm = Paradigm(build("dpr", tiny_bert).recipe, TwoTowers(*towers)).double()
    expected = step(paradigm)
    assert expected.keys() == {"loss", *(name for name, _ in paradigm.named_parameters())}
    assert_same(step(paradigm, chunk=1), expected)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("name", ["colbert", "aligner"])
def test_dropout_is_replayed(tiny_bert, monkeypatch, name, precision):
    """With the same seed, the step is bit for bit the one that keeps every chunk's activations."""
    paradigm = build(name, tiny_bert, dropout=True)
    AcceleratorState._reset_state()
    try:
        model: Any = Accelerator(cpu=True, mixed_precision=precision).prepare(paradigm)
    finally:
        AcceleratorState._reset_state()
    cached = step(model, 3)
    passed: list[Any] = []

    def keep(function: Any, *given: Any, **options: Any) -> Any:
        passed.extend(given)
        return function(*given)

    monkeypatch.setattr(batches, "checkpoint", keep)
    assert same(cached, step(model, 3))
    # checkpoint finds out from its arguments which devices' generators it has to keep.
    assert passed
    assert all(isinstance(each, Tensor) for each in passed)
    assert not same(cached, step(build(name, tiny_bert), 3))


class Activations:
    """The most bytes of a backbone's linear layers' results that were alive at once."""

    def __init__(self, paradigm: Paradigm) -> None:
        self.alive: dict[StorageWeakRef, int] = {}
        self.most = 0
        for module in paradigm.encoder.backbone.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._note)

    def _note(self, module: nn.Module, given: Any, result: Tensor) -> None:
        storage = result.untyped_storage()
        self.alive[StorageWeakRef(storage)] = storage.nbytes()
        self.alive = {ref: size for ref, size in self.alive.items() if not ref.expired()}
        self.most = max(self.most, sum(self.alive.values()))


def test_memory_is_set_by_the_chunk_and_not_by_the_batch(tiny_bert):
    words = [f"{a} {b}" for a in WORDS for b in WORDS[:4]]
    corpus = Corpus([f"d{n}" for n in range(64)], words)

    def most(chunk: int, count: int) -> int:
        paradigm = build("colbert", tiny_bert, dropout=True)
        activations = Activations(paradigm)
        examples = [Example(words[n], n, (), (n,)) for n in range(count)]
        objective = Contrastive(paradigm, corpus, examples).configure(LossSettings(chunk=chunk))
        objective.loss(paradigm, objective.collate(examples)).backward()
        return activations.most

    cached = most(4, 8)
    assert most(4, 64) == cached
    assert most(8, 64) == 2 * cached
    assert most(0, 64) > 8 * cached
    assert most(64, 64) == most(0, 64)  # a batch within the chunk is not encoded twice
