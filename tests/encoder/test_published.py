"""Settings that a builder reads from its backbone's folder, and arguments that override them."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from paradigms import PARADIGMS
from tests.tiny import built


def published(backbone: Path, folder: Path, pooling: dict[str, Any] | None = None) -> Path:
    """A copy of the backbone as sentence-transformers would publish it: mean pooling, prompts, a length."""
    shutil.copytree(backbone, folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    rows = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "1_Pooling").mkdir()
    files: dict[str, Any] = {
        "modules.json": rows,
        "1_Pooling/config.json": pooling or {"pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 40},
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": "passage: "}},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("name", PARADIGMS)
def test_the_backbones_own_settings_beat_defaults_and_explicit_ones_beat_both(
    tiny_bert, tmp_path, caplog, name
):
    folder, pools = published(tiny_bert, tmp_path / "own"), name in ("dpr", "me_bert", "coil", "bge_m3")
    with caplog.at_level(logging.INFO, "paradigms"):
        own = built(name, folder).encoder.settings
    (told,) = (record.getMessage() for record in caplog.records)
    assert own.pooling == ("mean" if pools else "cls")
    assert ("pooling='mean'" in told) == pools
    assert (own.query_prompt, own.document_prompt) == ("query: ", "passage: ")
    assert (own.query_length, own.document_length) == (40, 40)
    explicit = {"pooling": "max", "query_prompt": "", "query_length": 44, "document_length": 60}
    chosen = built(name, folder, **explicit).encoder.settings
    assert {field: getattr(chosen, field) for field in explicit} == explicit
    assert (f"{name}: pooling='max' has no effect" in caplog.messages) == (not pools)
    plain = built(name, tiny_bert).encoder.settings
    assert (plain.pooling, plain.query_prompt, plain.query_length) == ("cls", "", 48)
