"""The script of fewer bytes, end to end on a tiny collection, and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import fewer_bytes
import numpy as np
import pytest
import torch

from paradigms import PARADIGMS
from tests.tiny import WORDS, write_collection


@pytest.fixture
def settings(tiny_bert: Path, tmp_path: Path) -> fewer_bytes.Settings:
    words, draw = WORDS.split(), np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, draw.integers(4, 16))) for _ in range(40)]
    torch.manual_seed(0)
    (tmp_path / "tiny").mkdir()
    write_collection(tmp_path / "tiny", texts, [text[:20] for text in texts[:12]], {"test": range(12)})
    PARADIGMS["colbert"](tiny_bert, query_length=8, document_length=16).save_pretrained(tmp_path / "model")
    return fewer_bytes.Settings(
        [str(tmp_path / "tiny")], documents=30, queries=5, model=str(tmp_path / "model"), law_documents=15,
        law_queries=2, output=str(tmp_path / "out"),
    )  # fmt: skip


def test_every_way_is_measured_certified_and_drawn(
    settings: fewer_bytes.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewer_bytes, "ROUNDS", 1)
    threads = torch.get_num_threads()
    fewer_bytes.main(settings)
    out = Path(settings.output)
    rows = json.loads((out / "tiny" / "fewer.json").read_text())["rows"]
    whole = rows[0]
    assert (whole["certified"], whole["unchanged"]) == (5, 5)
    assert whole["error"] < 1e-4  # what sums are rounded by
    for row in rows:
        assert row["violations"] == 0
        assert len(row["nDCG@10"]) == row["queries"] == 5
        assert row["documents"] == 30
        assert row["bytes/document"] < whole["bytes/document"] or row["kind"] in ("all tokens", "bits")
    law = json.loads((out / "tiny" / "law.json").read_text())["rows"]
    assert len(law) == 27
    for raw, centred in zip(law[:9], law[18:], strict=True):  # the added mean is gone, and all that it did
        assert abs(raw["predicted"] - centred["predicted"]) < 0.2
    before = {file: file.stat().st_mtime_ns for file in (out / "tiny").rglob("*.json")}
    fewer_bytes.main(settings)
    assert before == {file: file.stat().st_mtime_ns for file in (out / "tiny").rglob("*.json")}
    assert {file.name for file in out.glob("*.png")} == {"fewer.png", "law.png"}
    assert {"fewer.csv", "fewer.md", "fixed.csv", "law.csv", "report.html"} <= {f.name for f in out.iterdir()}
    torch.set_num_threads(threads)
