"""The study of models trained for fewer numbers, end to end on a tiny collection, and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import fewer_numbers
import pytest
from studies.model_runs import some_queries

from paradigms import load
from paradigms.data import load_collection
from paradigms.evaluate import per_query
from paradigms.retrieve import Indexed


@pytest.mark.slow
def test_every_model_is_stored_in_every_way(words: Path, tiny_bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = fewer_numbers.Settings(
        collection=str(words), backbone=str(tiny_bert), dims=[8, 4], seeds=[3],
        steps=2, batch_size=4, dev_queries=4, query_length=12, document_length=16, tracker="none",
        # Rounding decides near ties: float32, no stored states, and a seed without near ties.
        output=str(out), precision="no", trained_layers=0,
    )  # fmt: skip
    fewer_numbers.main(settings)
    kept = {file: file.stat().st_mtime_ns for file in out.rglob("values.json")}
    assert len(kept) == 6
    rows = json.loads((out / "bytes.json").read_text())
    count = {name: sum(row["model"] == name for row in rows) for name in settings.models}
    assert count == {"untrained": 9, "control": 11, "matryoshka": 9, "coded": 9, "both": 9, "spans": 6}
    by_way = {row["stored"]: row["bytes/document"] for row in rows if row["model"] == "control"}
    assert by_way["4 coordinates"] < by_way["8 coordinates"] < by_way["all"]
    assert by_way["8 coordinates, 2 bits, pool = 2"] <= by_way["8 coordinates, 2 bits"]
    compared = [row for row in rows if row["minus the control"] != "–"]
    assert len(compared) == 4 * 9 + 6
    assert all(0 <= row["p (Holm)"] <= 1 for row in compared)
    fewer_numbers.main(settings)
    assert kept == {file: file.stat().st_mtime_ns for file in out.rglob("values.json")}

    # The first coordinates are those of a truncated model.
    collection, model = load_collection(str(words)), load(out / "control-3/checkpoint")
    test = some_queries(collection.split("test"), 0)
    run = Indexed.build(model, collection.corpus, dim=8, precision="no").search(test.queries, 10)
    found = json.loads((out / "control-3/values.json").read_text())["ways"]["8 coordinates"]["values"]
    assert found == pytest.approx(per_query(run, test.judgements, ["nDCG@10"]).values["nDCG@10"].tolist())
