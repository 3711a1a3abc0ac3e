"""The script of fewer bytes, end to end on a tiny collection, and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fewer_bytes
import pytest
import torch

from paradigms import PARADIGMS
from paradigms.io.command_line import folder_name
from tests.experiments.scripts import published


@pytest.fixture
def settings(words: Path, tiny_bert: Path, tmp_path: Path) -> fewer_bytes.Settings:
    torch.manual_seed(0)
    PARADIGMS["colbert"](tiny_bert, query_length=8, document_length=16).save_pretrained(tmp_path / "model")
    return fewer_bytes.Settings(
        collections=[str(words)], documents=30, queries=5, model=str(tmp_path / "model"),
        output=str(tmp_path / "out"),
    )  # fmt: skip


@pytest.mark.slow
def test_every_way_is_measured_certified_and_drawn(
    settings: fewer_bytes.Settings, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewer_bytes, "DOCUMENTS", 15)
    monkeypatch.setattr(fewer_bytes, "QUERIES", 2)
    fewer_bytes.main(settings)
    out = Path(settings.output)
    own = out / folder_name(settings.collections[0])
    rows = json.loads((own / "fewer.json").read_text())["answer"]
    whole = rows[0]
    assert (whole["certified"], whole["unchanged"]) == (5, 5)
    assert whole["error"] < 1e-4  # what sums are rounded by
    for row in rows:
        assert row["violations"] == 0
        assert len(row["nDCG@10"]) == row["queries"] == 5
        assert row["documents"] == 30
        assert row["bytes/document"] < whole["bytes/document"] or row["kind"] in ("all tokens", "bits")
    law = json.loads((own / "law.json").read_text())["answer"]
    assert len(law) == 27
    for raw, centred in zip(law[:9], law[18:], strict=True):  # the added mean is gone, and all that it did
        assert abs(raw["predicted"] - centred["predicted"]) < 0.2
    before = {file: file.stat().st_mtime_ns for file in own.rglob("*.json")}
    fewer_bytes.main(settings)
    assert before == {file: file.stat().st_mtime_ns for file in own.rglob("*.json")}
    shutil.rmtree(own / "exact")
    PARADIGMS["colbert"](tiny_bert, query_length=8, document_length=9).save_pretrained(settings.model)
    fewer_bytes.main(settings)  # the folder holds another model
    assert json.loads((own / "fewer.json").read_text())["answer"] != rows
    assert published(out) >= {"fewer", "law"}
    means = {name: json.loads((out / f"{name}.json").read_text()) for name in ("ways", "recalls")}
    assert len(means["ways"]) == len(rows)
    assert len(means["recalls"]) == 9
