"""A setting of an encoder changes the loss from which it learns, or is refused."""

import zlib
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from paradigms.bge_m3 import BgeM3Settings
from paradigms.encoder.settings import EncoderSettings
from paradigms.splade import SpladeSettings
from paradigms.train.contrastive import Contrastive
from paradigms.train.losses import LossSettings
from tests.tiny import built
from tests.train.test_settings import CORPUS, EXAMPLES

SALIENT = {"salience": "entropic", "dim": 16}
# Other settings with which a setting acts, and values other than the default where `other` finds none.
BESIDE: dict[str, dict[str, Any]] = {
    "vectors": {"document_vectors": "spans"},
    "pooling": {"query_vectors": "pooled", "document_vectors": "pooled"},
    **{name: {"dim": 16} for name in ("projection_bias", "activation", "layer_norm", "pooled_dim")},
    **dict.fromkeys(("query_ratio", "document_ratio", "eps", "iterations"), SALIENT),
    "salience_l1": SALIENT | {"salience": "relu"},
    "attend_augmentation": {"query_augmentation": True},
    **{name: {"lora_rank": 2} for name in ("lora_targets", "dora")},
}
VALUES: dict[str, Any] = {
    "dim": 16,
    "document_length": 4,
    "document_vectors": "pooled",
    "iterations": 1,
    "lora_rank": 2,
    "lora_targets": ".*query",
    "most_terms": 2,
    "pooled_dim": 32,
    "query_length": 4,
    "query_vectors": "pooled",
    "skip": "a",
    "skip_tokens": "about after",
    "truncate": 8,
    "vectors": 2,
}
# encoder names the class; tied_head is how SPLADE's head begins, which a backbone with a head has no use for.
APART = {"encoder", "tied_head"}
KINDS = {"colbert": EncoderSettings, "splade": SpladeSettings, "bge_m3": BgeM3Settings}
COMMON = {field.name for field in fields(EncoderSettings)}
CASES = [
    (name, field.name)
    for name, kind in KINDS.items()
    for field in fields(kind)
    if field.name not in APART and (kind is EncoderSettings or field.name not in COMMON)
]


def other(name: str, hint: Any, now: Any) -> Any:
    """A value of a setting that is not the present one."""
    if name in VALUES:
        return VALUES[name]
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) is Literal:
        return next(value for value in reversed(get_args(hint)) if value != now)
    if hint is bool:
        return not now
    return "sea" if hint is str else 0.7 * now + 0.01


def loss(name: str, backbone: Path, settings: dict[str, Any]) -> float:
    """The first loss of a paradigm whose heads have learned: at first, gates and pooling are neutral."""
    torch.manual_seed(0)
    model = built(name, backbone, **settings).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            weight += 0.1 * torch.randn(weight.shape, generator=noise)
    objective = Contrastive(model, CORPUS, EXAMPLES).configure(LossSettings(temperature=1.0))
    return float(objective.loss(model, objective.collate(EXAMPLES)))


@pytest.mark.parametrize(("name", "field"), CASES)
def test_each_setting_acts_or_is_refused(name: str, field: str, tiny_bert: Path) -> None:
    beside = BESIDE.get(field, {})
    now = getattr(built(name, tiny_bert, **beside).encoder.settings, field)
    hint = get_type_hints(KINDS[name], include_extras=True)[field]
    before = loss(name, tiny_bert, beside)
    try:
        after = loss(name, tiny_bert, beside | {field: other(field, hint, now)})
    except ValueError as error:
        refused = str(error)
        after = before + 1 if field in refused else before
    assert after != before
