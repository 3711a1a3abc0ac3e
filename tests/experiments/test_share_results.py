"""A comparison's values as a dataset: parquet, its card, and what the hub gets."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from tests.experiments.scripts import run

CSV = 'system,stage,query,measure,value\nbm25,retrieve,null,nDCG@10,0.5\n"a,b",rerank,1,R@1,1.0\n'


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "per_query.csv").write_text(CSV)
    (folder / "config.json").write_text(json.dumps({"collection": "hf:BeIR/scifact"}))
    (folder / "table.md").write_text("| system | nDCG@10 |\n")
    return folder


def test_a_dataset_of_every_query(results: Path) -> None:
    import datasets

    run("share_results", results=results)
    folder = results / "dataset"
    assert {file.name for file in folder.iterdir()} == {"per_query.parquet", "README.md"}
    rows = pyarrow.parquet.read_table(folder / "per_query.parquet").to_pylist()
    collection = rows[0]["collection"]
    assert "scifact" in collection
    first = {"stage": "retrieve", "system": "bm25", "query": "null", "measure": "nDCG@10", "value": 0.5}
    assert rows[0] == {"collection": collection} | first  # a query whose id is null is no missing value
    assert rows[1]["system"] == "a,b"
    metadata = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert metadata["source_datasets"] == ["BeIR/scifact"]
    assert "license" not in metadata
    loaded = datasets.load_dataset(str(folder), cache_dir=str(results / "cache"))["train"]  # by the card
    assert loaded.to_list() == rows


def test_what_the_hub_gets(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class HfApi:
        def create_repo(self, *arguments: str, **named: object) -> None:
            calls.append((arguments, named))

        def upload_folder(self, **named: object) -> None:
            calls.append(((), named))

    monkeypatch.setattr("huggingface_hub.HfApi", HfApi)
    run("share_results", results=results, push="me/mine", license="mit")
    created, uploaded = calls
    assert created == (("me/mine",), {"private": True, "exist_ok": True, "repo_type": "dataset"})
    assert (uploaded[1]["repo_id"], uploaded[1]["repo_type"]) == ("me/mine", "dataset")
    assert "license: mit" in (results / "dataset/README.md").read_text()
