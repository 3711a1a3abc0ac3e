"""The serving costs script end to end on a tiny collection, and the quantities it counts."""

import json

import pytest
import serving_costs

LENGTHS = {"query_length": 8, "document_length": 16}


def test_every_paradigm_is_measured_once_on_every_index(words, tiny_bert, tmp_path, monkeypatch):
    settings = serving_costs.Settings(
        collection=str(words), documents=0, queries=4, backbone=str(tiny_bert), bits=[8, 1],
        rounds=1, threads=1, clock="cpu", output=str(tmp_path / "out"),
        paradigms=["dpr", "coil", "xtr", "bm25"], **LENGTHS,
    )  # fmt: skip
    serving_costs.main(settings)
    file = tmp_path / "out" / "costs.json"
    rows = json.loads(file.read_text())
    assert all(row["nDCG@10"].count(".") == 3 for row in rows)  # a mean and its interval
    results = {(row["paradigm"], row["engine"]): row for row in rows}
    for name in ("dpr", "coil", "xtr"):
        for index in ("exact", "FAISS", "compressed, 8 bits", "compressed, 1 bit"):
            row = results.pop((name, index))
            assert row["build s"] > 0
            assert 0 < row["10%"] <= row["ms"] <= row["90%"]
            assert row["recall@10"] == 1 if index == "exact" else 0 < row["recall@10"] <= 1
            values = row["vectors"] * row["h"]
            least = {"exact": 2, "FAISS": 4, "compressed, 8 bits": 1, "compressed, 1 bit": 1 / 8}[index]
            assert row["bytes/document"] > least * values
    for bits in (8, 16):
        row = results.pop(("bm25", f"inverted, {bits} bits"))
        assert row["recall@10"] > 0.9
        assert row["h"] == 1
    assert 0 < results.pop(("xtr", "lemur"))["recall@10"] <= 1
    clickhouse = {names: row for names, row in results.items() if names[1].startswith("ClickHouse")}
    others = results.keys() - clickhouse
    assert {engine for _, engine in others} <= set(serving_costs.ENGINES)  # those that are installed
    assert not any(paradigm == "coil" for paradigm, _ in others)  # whose rel other engines do not compute
    assert all(0 < row["recall@10"] <= 1 for row in clickhouse.values())
    if clickhouse:
        assert clickhouse["coil", "ClickHouse"]["recall@10"] > 0.9
        assert clickhouse["coil", "ClickHouse, 100 by means"]["recall@10"] > 0.9
    monkeypatch.setattr(serving_costs, "measure_index", lambda *_, **__: pytest.fail("measured again"))
    serving_costs.main(settings)
    assert json.loads(file.read_text()) == rows


def test_an_engine_that_fails_is_named_and_the_others_continue(words, tiny_bert, tmp_path, monkeypatch):
    def fail(name: str, *_: object) -> None:
        raise OSError(f"{name} is full\nof data")

    monkeypatch.setattr(serving_costs, "engines", lambda model: ["LanceDB", "Qdrant"])
    monkeypatch.setattr(serving_costs, "measure_engine", fail)
    settings = serving_costs.Settings(
        collection=str(words), documents=5, queries=2, backbone=str(tiny_bert), bits=[], rounds=1,
        threads=1, output=str(tmp_path / "out"), paradigms=["dpr"], **LENGTHS,
    )  # fmt: skip
    with pytest.raises(SystemExit, match=r"failed: dpr, LanceDB: LanceDB is full; dpr, Qdrant: .* full$"):
        serving_costs.main(settings)
    rows = json.loads((tmp_path / "out" / "costs.json").read_text())
    assert [row["engine"] for row in rows] == ["exact", "FAISS"]
