"""Files that no checkpoint has are refused by name, before a reader waits for them or follows them."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import paradigms
from paradigms.encoder.text import EncoderSettings, TextEncoder
from tests.attack.strangers import absurd_header, device, many_tensors, pipe, shards_outside


def many_labels(draw: random.Random, backbone: Path) -> None:
    """transformers would make a list of them."""
    config = json.loads((backbone / "config.json").read_text())
    (backbone / "config.json").write_text(json.dumps(config | {"num_labels": 10**9}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (pipe, r"backbone.* is a pipe, socket or device"),
        (device, r"backbone.* is a pipe, socket or device"),
        (absurd_header, r"model\.safetensors is damaged"),
        (many_tensors, r"z\.safetensors is damaged, or names too many tensors"),
        (many_labels, r"config\.json: num_labels is 1,000,000,000, more than"),
        (
            shards_outside,
            r"model\.safetensors\.index\.json names '.*outside\.safetensors', which is not in its folder",
        ),
    ],
)
def test_files_that_no_checkpoint_has(
    tiny_bert: Path, tmp_path: Path, harm: Callable[[random.Random, Path], None], message: str
) -> None:
    saved = tmp_path / "saved"
    paradigms.PARADIGMS["colbert"](tiny_bert, dim=8).save_pretrained(saved)
    harm(random.Random(0), saved / "backbone")
    with pytest.raises(ValueError, match=message):
        paradigms.load(saved)
    with pytest.raises(ValueError, match=message):
        TextEncoder(saved / "backbone", EncoderSettings())
