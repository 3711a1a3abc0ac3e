"""A comparison's values as a dataset: parquet, its card, and what the hub gets."""

import json
from pathlib import Path

import datasets
import pytest
import yaml

from tests.experiments.scripts import run

CSV = 'system,stage,query,measure,value\nbm25,retrieve,null,nDCG@10,0.5\n"a,b",rerank,1,R@1,1.0\n'


def test_a_dataset_of_every_query_is_written_and_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class HfApi:
        def create_repo(self, *arguments: str, **named: object) -> None:
            calls.append((arguments, named))

        def upload_folder(self, **named: object) -> None:
            calls.append(((), named))

    monkeypatch.setattr("huggingface_hub.HfApi", HfApi)
    (tmp_path / "per_query.csv").write_text(CSV)
    (tmp_path / "config.json").write_text(json.dumps({"collection": "hf:BeIR/scifact"}))
    (tmp_path / "table.md").write_text("| system | nDCG@10 |\n")
    run("share_results", results=tmp_path, push="me/mine", license="mit")
    created, uploaded = calls
    assert created == (("me/mine",), {"private": True, "exist_ok": True, "repo_type": "dataset"})
    assert (uploaded[1]["repo_id"], uploaded[1]["repo_type"]) == ("me/mine", "dataset")
    folder = tmp_path / "dataset"
    assert {file.name for file in folder.iterdir()} == {"per_query.parquet", "README.md"}
    rows = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["train"].to_list()
    first = {"stage": "retrieve", "system": "bm25", "query": "null", "measure": "nDCG@10", "value": 0.5}
    assert rows[0].items() >= first.items()  # a query whose id is null is no missing value
    assert rows[1]["system"] == "a,b"
    metadata = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert (metadata["source_datasets"], metadata["license"]) == (["BeIR/scifact"], "mit")
