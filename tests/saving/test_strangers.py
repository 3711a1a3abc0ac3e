"""Files that no checkpoint has are refused by name, before a reader waits for them or follows them."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import paradigms
from paradigms.encoder.text import EncoderSettings, TextEncoder


@pytest.fixture
def saved(tiny_bert: Path, tmp_path: Path) -> Path:
    paradigms.PARADIGMS["colbert"](tiny_bert, dim=8).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def fifo(backbone: Path) -> None:
    os.mkfifo(backbone / "z.safetensors")


def device(backbone: Path) -> None:
    (backbone / "z.safetensors").symlink_to("/dev/zero")


def many_tensors(backbone: Path) -> None:
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor{n}": tensor for n in range(120_000)}).encode()
    (backbone / "z.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def outside(backbone: Path) -> None:
    shutil.move(backbone / "model.safetensors", backbone.parents[1] / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"x": "../../outside.safetensors"}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))


def many_labels(backbone: Path) -> None:
    """transformers would make a list of them."""
    config = json.loads((backbone / "config.json").read_text())
    (backbone / "config.json").write_text(json.dumps(config | {"num_labels": 10**9}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (fifo, r"z\.safetensors is a pipe, socket or device"),
        (device, r"z\.safetensors is a pipe, socket or device"),
        (many_tensors, r"z\.safetensors is damaged, or names too many tensors"),
        (many_labels, r"config\.json: num_labels is 1,000,000,000, more than"),
        (outside, r"model\.safetensors\.index\.json names '\.\./\.\./outside\.safetensors'"),
    ],
)
def test_files_that_no_checkpoint_has(saved: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(saved / "backbone")
    with pytest.raises(ValueError, match=message):
        paradigms.load(saved)
    with pytest.raises(ValueError, match=message):
        TextEncoder(saved / "backbone", EncoderSettings())
