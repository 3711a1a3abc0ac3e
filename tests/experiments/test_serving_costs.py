"""The serving costs script end to end on a tiny collection, and the quantities it counts."""

from pathlib import Path

import pytest
import serving_costs

from paradigms.io.command_line import folder_name
from tests.experiments.scripts import read

LENGTHS = {"query_length": 8, "document_length": 16}


def test_every_paradigm_is_measured_on_every_index_and_once(
    words: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = serving_costs.Settings(
        collection=str(words), documents=0, queries=0, backbone=str(tiny_bert), bits=[8, 1], rounds=1,
        threads=1, output=str(tmp_path), paradigms=["dpr", "coil", "xtr", "bm25"], **LENGTHS,
    )  # fmt: skip
    serving_costs.main(settings)
    rows = read(tmp_path, "costs")
    assert all(row["nDCG@10"].count(".") == 3 for row in rows if row["engine"] != "lemur")
    found = {(row["paradigm"], row["engine"]): row for row in rows}
    for name in ("dpr", "coil", "xtr"):
        for index in ("exact", "FAISS", "compressed, 8 bits", "compressed, 1 bit"):
            row = found.pop((name, index))
            assert row["build s"] > 0
            assert 0 < row["10%"] <= row["ms"] <= row["90%"]
            assert row["recall@10"] == 1 if index == "exact" else 0 < row["recall@10"] <= 1
            least = {"exact": 2, "FAISS": 4, "compressed, 8 bits": 1, "compressed, 1 bit": 1 / 8}[index]
            assert row["bytes/document"] > least * row["vectors"] * row["h"]
    assert all(found.pop(("bm25", f"inverted, {bits} bits"))["recall@10"] > 0.9 for bits in (8, 16))
    assert 0 < found.pop(("xtr", "lemur"))["recall@10"] <= 1
    assert {engine for _, engine in found} <= set(serving_costs.PACKAGES)  # those that are installed
    assert not any(paradigm == "coil" for paradigm, _ in found)  # whose rel no engine computes
    (tmp_path / "measured" / "dpr" / f"{folder_name('compressed, 8 bits')}.json").unlink()  # interrupted
    serving_costs.main(settings)
    again = read(tmp_path, "costs")
    assert again[:2] == rows[:2]
    assert [row["engine"] for row in again] == [row["engine"] for row in rows]
    monkeypatch.setattr(serving_costs, "measure_index", lambda *_, **__: pytest.fail("measured again"))
    serving_costs.main(settings)
    assert read(tmp_path, "costs") == again
