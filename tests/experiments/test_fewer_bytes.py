"""The script of fewer bytes, end to end on a tiny collection, and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import fewer_bytes
import pytest
import torch
from studies import byte_tables

from paradigms import PARADIGMS
from paradigms.io.command_line import folder_name


@pytest.fixture
def settings(words: Path, tiny_bert: Path, tmp_path: Path) -> fewer_bytes.Settings:
    torch.manual_seed(0)
    PARADIGMS["colbert"](tiny_bert, query_length=8, document_length=16).save_pretrained(tmp_path / "model")
    return fewer_bytes.Settings(
        [str(words)], documents=30, queries=5, model=str(tmp_path / "model"), law_documents=15,
        law_queries=2, output=str(tmp_path / "out"),
    )  # fmt: skip


@pytest.mark.slow
def test_every_way_is_measured_certified_and_drawn(
    settings: fewer_bytes.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewer_bytes, "ROUNDS", 1)
    fewer_bytes.main(settings)
    out = Path(settings.output)
    own = out / folder_name(settings.collections[0])
    rows = json.loads((own / "fewer.json").read_text())["rows"]
    whole = rows[0]
    assert (whole["certified"], whole["unchanged"]) == (5, 5)
    assert whole["error"] < 1e-4  # what sums are rounded by
    for row in rows:
        assert row["violations"] == 0
        assert len(row["nDCG@10"]) == row["queries"] == 5
        assert row["documents"] == 30
        assert row["bytes/document"] < whole["bytes/document"] or row["kind"] in ("all tokens", "bits")
    law = json.loads((own / "law.json").read_text())["rows"]
    assert len(law) == 27
    for raw, centred in zip(law[:9], law[18:], strict=True):  # the added mean is gone, and all that it did
        assert abs(raw["predicted"] - centred["predicted"]) < 0.2
    before = {file: file.stat().st_mtime_ns for file in own.rglob("*.json")}
    fewer_bytes.main(settings)
    assert before == {file: file.stat().st_mtime_ns for file in own.rglob("*.json")}
    assert {file.name for file in out.glob("*.svg")} == {"fewer.svg", "law.svg"}
    assert {"fewer.csv", "fewer.md", "law.csv", "report.html"} <= {f.name for f in out.iterdir()}
    means = {name: json.loads((out / f"{name}.json").read_text()) for name in ("ways", "recalls")}
    assert len(means["ways"]) == len(rows)
    assert len(means["recalls"]) == 9


def test_tables_average_collections_that_differ_in_their_numbers_of_queries() -> None:
    whole, coded = [[1.0, 1.0, 1.0], [0.5]], [[0.5, 0.5, 0.5], [0.4]]
    rows = [
        {"collection": str(n), "kind": kind, "way": way, "queries": len(values[n]), "bytes/document": size}
        | {"nDCG@10": values[n], "error": 0.0, "unchanged": 1, "certified": 0, "violations": 0}
        for kind, way, size, values in (
            ("all tokens", "float16", 100, whole),
            ("bits", "bits=8", 52, whole),
            ("pooled, ward", "pool=2", 50, coded),
            ("pooled, sequential", "pool=2", 20, coded),
        )
        for n in (0, 1)
    ]
    table = byte_tables.ways(rows).rows
    assert [row["nDCG@10"][:5] for row in table] == ["0.750", "0.750", "0.450", "0.450"]
    assert table[2]["minus all tokens"] == "-0.300 [-0.300, -0.300]"  # equal weights, not 4 equal queries
    assert (table[2]["bytes, of all"], table[2]["unchanged"]) == ("50%", 2)
    [pair] = byte_tables.same_bytes(rows).rows  # not the pair with 50% and 20%
    assert (pair["bytes, of all"], pair["difference of nDCG@10"]) == (
        "52% and 50%",
        "+0.300 [+0.300, +0.300]",
    )
    assert pair["p (Holm)"] == 2 / 2**4  # all four differences have one sign
