"""The serving costs script end to end on a tiny collection, and the quantities it counts."""

import json
from pathlib import Path

import pytest
import serving_costs

from paradigms.io.command_line import folder_name


def test_all_documents_are_measured_with_quality_and_once(
    words: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = serving_costs.Settings(
        collection=str(words), documents=0, queries=0, backbone=str(tiny_bert), bits=[8], rounds=1,
        threads=1, clock="cpu", engines=False, output=str(tmp_path / "out"),
        paradigms=["dpr", "coil", "xtr", "bm25"], query_length=8, document_length=16,
    )  # fmt: skip
    serving_costs.main(settings)
    rows = json.loads((tmp_path / "out" / "costs.json").read_text())
    dense = {"exact": 2, "FAISS": 4, "compressed, 8 bits": 1}  # least bytes of a number
    expected = {(name, index) for name in ("dpr", "coil", "xtr") for index in dense}
    expected |= {("bm25", "inverted, 8 bits"), ("bm25", "inverted, 16 bits"), ("xtr", "lemur")}
    assert {(row["paradigm"], row["engine"]) for row in rows} == expected
    for row in rows:
        assert 0 < row["10%"] <= row["ms"] <= row["90%"]
        assert row["recall@10"] == 1 if row["engine"] == "exact" else 0 < row["recall@10"] <= 1
        assert row["bytes/document"] > dense.get(row["engine"], 0) * row["vectors"] * row["h"]
        assert row["nDCG@10"].count(".") == 3  # a mean and its interval
    (tmp_path / "out" / "measured" / "dpr" / f"{folder_name('compressed, 8 bits')}.json").unlink()
    serving_costs.main(settings)
    again = json.loads((tmp_path / "out" / "costs.json").read_text())
    assert again[:2] == rows[:2]
    monkeypatch.setattr(serving_costs, "measure_index", lambda *_, **__: pytest.fail("measured again"))
    serving_costs.main(settings)
    assert json.loads((tmp_path / "out" / "costs.json").read_text()) == again
