"""Texts in parts by length, and gradient caching: the plain step's losses and gradients, in less memory."""

from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from paradigms import PARADIGMS, Paradigm
from paradigms.data import Corpus
from paradigms.encoder import batches
from paradigms.encoder.batches import by_length
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.loop import freeze
from paradigms.train.losses import LossSettings
from tests.near import assert_same, assert_within_rounding
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


def step(
    paradigm: Paradigm,
    chunk: int = 0,
    tokens: int | None = None,
    parts: int = 1,
    examples: Sequence[Example] = EXAMPLES,
) -> dict[str, Tensor]:
    """The loss of one batch and its gradients. tokens: at once, None = all."""
    objective = Contrastive(paradigm, CORPUS, examples).configure(LossSettings(chunk=chunk))
    paradigm.zero_grad()
    freeze(paradigm, 0, parts)
    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paradigm.encoder, "tokens", {} if tokens is None else {"cpu": tokens})
        loss = objective.loss(paradigm, objective.collate(list(examples)))
        loss.backward()
    gradients = {n: p.grad.clone() for n, p in paradigm.named_parameters() if p.grad is not None}
    return gradients | {"loss": loss.detach()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 12),
)
def test_parts_hold_every_text_once_longest_first_within_both_limits(lengths, tokens, rows):
    parts = by_length(lengths, tokens, rows)
    order = [place for part in parts for place in part]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[place] for place in order] == sorted(lengths, reverse=True)
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        longest = max(lengths[place] for place in part)
        assert rows is None or len(part) <= rows
        assert tokens is None or len(part) == 1 or len(part) * longest <= tokens
        assert tokens is not None or rows is None or after is None or len(part) == rows


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.integers(1, 600), st.integers(1, 8))
def test_parts_have_the_fewest_tokens_and_passes(lengths, tokens, rows):
    def cost(parts: list[list[int]]) -> int:
        return sum(batches.PASS + len(part) * max(part) for part in parts)

    longest_first = sorted(lengths, reverse=True)
    possible = []
    for cuts in product([False, True], repeat=len(lengths) - 1):
        places = [0, *(n for n, cut in enumerate(cuts, 1) if cut), len(lengths)]
        parts = [longest_first[start:stop] for start, stop in pairwise(places)]
        if all(len(part) <= rows and (len(part) == 1 or len(part) * part[0] <= tokens) for part in parts):
            possible.append(cost(parts))
    found = by_length(lengths, tokens, rows)
    assert cost([[lengths[place] for place in part] for part in found]) == min(possible)


def test_the_next_batch_is_tokenised_while_one_is_encoded():
    """In order, at most one batch ahead; an error arrives with its batch."""
    ready = [Event() for _ in range(4)]

    def compute(n: int) -> int:
        ready[n].set()
        return 1 // (3 - n)

    found = batches.ahead(compute, range(4))
    assert next(found) == 0
    assert ready[1].wait(10)
    assert not ready[2].is_set()
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(batches.ahead(compute, [])) == []


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("name", ["dpr", "colbert", "coil"])
def test_arrays_hold_the_vectors_that_count(tiny_bert, name, side):
    paradigm = build(name, tiny_bert).double()
    texts = [CORPUS[n] for n in (2, 0, 1)] + [" ".join(CORPUS[n] for n in range(3)), ""]
    arrays = paradigm.encode(texts, side, batch_size=2, device="cpu")
    assert len(arrays) == 5
    for text, array in zip(texts, arrays, strict=True):
        alone = paradigm.tokens([text], side)
        assert array.dtype == np.float32
        blank = name == "dpr" and not text  # a pooled vector of 0
        expected = torch.zeros(array.shape) if blank else alone.vectors[alone.mask]
        assert_within_rounding(array, expected, torch.float32, 1)
    assert paradigm.encode([], side) == []
    with pytest.raises(TypeError, match="texts must be a list of strings, got the string"):
        paradigm.encode("a text", side)


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
