"""Texts in one row, for flash attention: the loss and gradients of padded texts, without padding."""

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv

from paradigms import Paradigm
from paradigms.encoder import batches
from paradigms.encoder.settings import SIDES
from paradigms.train.loop import attend
from tests.encoder.test_batches import build, step
from tests.near import assert_same
from tests.tiny import write_roberta
from tests.train.test_loop import without_dropout

FAMILIES = ["bert", "modernbert", "llama", "qwen3", "roberta", "roberta with a head"]
FLASH = "flash_attention_2"


def flash(module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **more):
    """Flash attention's results on a CPU, where it does not run; `mask` tells which keys are padding."""
    causal = more["is_causal"] if more.get("is_causal") is not None else module.is_causal
    window = more.get("sliding_window")
    key, value = (repeat_kv(t, query.shape[1] // t.shape[1]) for t in (key, value))
    length = query.shape[2]
    place = torch.arange(length)
    if "cu_seq_lens_q" in more:
        text = torch.bucketize(place, more["cu_seq_lens_q"][1:], right=True)
        sees = text[:, None] == text[None]
    else:
        sees = torch.ones(length, length, dtype=torch.bool)
    if causal:
        sees = sees & (place[:, None] >= place[None])
    if window is not None:
        sees = sees & ((place[:, None] - place[None]).abs() < window)
    if mask is not None:
        sees = sees & mask[:, None, None, :].bool()
    scores = (query @ key.transpose(-1, -2) * scaling).masked_fill(~sees, -1e30)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The name stands for `flash`, and models do not look for the package."""
    monkeypatch.setitem(AttentionInterface._global_mapping, FLASH, flash)
    monkeypatch.setattr(
        "transformers.PreTrainedModel._check_and_adjust_attn_implementation", lambda self, name, **_: name
    )
    monkeypatch.setattr(
        "transformers.PreTrainedModel.get_correct_attn_implementation", lambda self, name: name
    )


@pytest.fixture(scope="module")
def folders(checkpoints, tmp_path_factory):
    headed = write_roberta(tmp_path_factory.mktemp("headed"), "bytes", head="ForMaskedLM")
    plain = write_roberta(tmp_path_factory.mktemp("roberta"), "bytes")
    return checkpoints | {"roberta": plain, "roberta with a head": headed}


def trained(folder, attention: str, name: str = "colbert") -> Paradigm:
    paradigm = without_dropout(build(name, folder, dropout=True).double())
    attend(paradigm, attention)
    return paradigm


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_padded_texts(folders, family, chunk):
    name = "splade" if "head" in family else "colbert"
    padded = step(trained(folders[family], "sdpa", name), chunk)
    assert_same(step(trained(folders[family], FLASH, name), chunk), padded)


@pytest.mark.parametrize("augmented", [False, True])
def test_padding_is_not_computed(tiny_bert, augmented):
    """But for queries with [MASK] tokens to which no other token attends."""
    paradigm = without_dropout(build("colbert", tiny_bert, dropout=True, query_augmentation=augmented))
    attend(paradigm, FLASH)
    paradigm.encoder.unpadded = True  # or the check would compute padding
    counts = []
    paradigm.encoder.backbone.pooler = None
    layer = next(part for part in paradigm.encoder.backbone.modules() if isinstance(part, nn.Linear))
    layer.register_forward_hook(lambda _, given, __: counts.append(given[0].shape[:-1].numel()))
    for side in SIDES:
        batch = paradigm.encoder.tokenize(["red", "a lazy brown dog in the garden"], side)
        tokens = paradigm.encoder(batch, side)
        used = int(batch.attention_mask.sum())
        assert counts.pop() == (batch.input_ids.numel() if augmented and side == "query" else used)
        assert tokens.mask.sum() == batch.counts.sum()


def test_a_backbone_that_computes_something_else_is_refused(tiny_bert, monkeypatch):
    monkeypatch.setattr(batches, "pad", lambda offsets, _: offsets[[0, -1]])  # no boundaries between texts
    with pytest.raises(ValueError, match="attention='flash_attention_2': BertModel computes other vectors"):
        step(trained(tiny_bert, FLASH))


def test_a_choice_that_transformers_does_not_take_is_refused(tiny_bert, monkeypatch):
    """It only logs that."""
    monkeypatch.setattr(PreTrainedModel, "_can_set_attn_implementation", lambda *_: False)
    with pytest.raises(ValueError, match="attention='eager': BertModel has no choice of attention"):
        attend(build("colbert", tiny_bert), "eager")
