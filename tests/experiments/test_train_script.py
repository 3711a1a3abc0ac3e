"""experiments/train.py and experiments/rerank.py, end to end on a tiny encoder and a tiny collection."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch
import train

from paradigms import Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.data import load_collection, read_run, write_run
from paradigms.encoder.precision import VARIABLE
from paradigms.train.script import keep_settings
from tests.experiments.scripts import run, settings, training


@pytest.fixture(scope="module")
def trained(words, tiny_bert, tmp_path_factory):
    output = tmp_path_factory.mktemp("results") / "train"
    run("train", **training(words, tiny_bert, output))
    return output


@pytest.fixture(scope="module")
def first_run(words, tmp_path_factory):
    """BM25's run of the test queries, and of one that the split does not hold."""
    file = tmp_path_factory.mktemp("runs") / "bm25.run"
    data = load_collection(words)
    results = BM25(data.corpus).search(data.split("test").queries, 20)
    write_run(file, results | {"q0": {"d0": 1.0}})
    return file


def test_training_leaves_a_paradigm_its_curve_and_its_settings(trained):
    paradigm = Paradigm.from_pretrained(trained / "checkpoint")
    assert paradigm.recipe.name == "colbert"
    assert paradigm.encoder.dim == 16
    lines = [json.loads(line) for line in (trained / "training" / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "dev" in line] == [0, 2, 4]
    assert (trained / "training/checkpoints/step-4/progress.json").is_file()


def test_wandb_resumes_its_run_and_leaves_the_home_folder_empty(words, tiny_bert, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", "")
        monkeypatch.delenv(f"WANDB_{name}_DIR")
    flags = training(words, tiny_bert, tmp_path / "out", tracker="wandb")
    for _ in range(2):
        run("train", **flags)
    assert not list(home.iterdir())
    first, again = (tmp_path / "out" / "wandb").glob("offline-run-*")
    assert first.name.split("-")[3] == again.name.split("-")[3]


def test_a_finished_run_is_only_loaded_and_other_settings_are_refused(trained, words, tiny_bert):
    before = (trained / "training" / "history.jsonl").read_text()
    weights = Paradigm.from_pretrained(trained / "checkpoint").state_dict()
    run("train", **training(words, tiny_bert, trained))
    assert (trained / "training" / "history.jsonl").read_text() == before
    again = Paradigm.from_pretrained(trained / "checkpoint").state_dict()
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    with pytest.raises(SystemExit, match=r"other settings \(learning_rate: .* then, 0.5 now\)"):
        run("train", **training(words, tiny_bert, trained, learning_rate=0.5))


def test_a_training_pauses_with_the_status_of_a_pause(words, tiny_bert, tmp_path, capsys):
    given = settings("train", **training(words, tiny_bert, tmp_path, minutes=1e-9))
    assert train.main(given) == 75
    assert "colbert after 1 of 4 steps. The same command resumes" in capsys.readouterr().out
    assert train.main(replace(given, minutes=0.0, keep=1)) == 0
    assert [file.name for file in (tmp_path / "training" / "checkpoints").iterdir()] == ["step-4"]


def test_a_folder_is_bound_to_what_its_settings_name(words, tiny_bert, trained, tmp_path):
    """Other content under the same name is another training: of a run, of a model, of the collection."""
    own, run_file, miner = (tmp_path / name for name in ("collection", "first.run", "miner"))
    shutil.copytree(words, own)
    shutil.copytree(trained / "checkpoint", miner)
    write_run(run_file, {"q0": {"d1": 1.0}})
    flags = training(own, tiny_bert, tmp_path / "out", steps=1, dev_queries=0, run=miner, filter=run_file)
    given = settings("train", **flags | {"filter_margin": 0.0})
    first = train.bound(given, load_collection(own))
    keep_settings(first, tmp_path / "out", train.FREE)
    (tmp_path / "out" / "training").mkdir()
    for file, name in (
        (run_file, "content of filter"),
        (miner / "heads.safetensors", "content of run"),
        (own / "queries.jsonl", "fingerprint"),
    ):
        before = file.read_bytes()
        file.write_bytes(before.replace(b"q0", b"q1") if b"q0" in before else before[:-1] + b"!")
        with pytest.raises(SystemExit, match=rf"other settings \({name}\)"):
            keep_settings(train.bound(given, load_collection(own)), tmp_path / "out", train.FREE)
        file.write_bytes(before)


def test_reranking_writes_the_run_and_its_measures(trained, first_run, words, tmp_path):
    output = tmp_path / "rerank"
    run("rerank", checkpoint=trained / "checkpoint", run=first_run, collection=words, output=output, depth=1)
    results, given = read_run(output / "reranked.run"), read_run(first_run)
    queries = load_collection(words).split("test").queries
    assert list(results) == list(queries)
    for query, scores in results.items():
        assert set(scores) == set(sorted(given[query], key=lambda d: (-given[query][d], d))[:1])
    with (output / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["system"] for row in rows} == {"run bm25.run", "colbert"}


def test_queries_of_an_index_are_encoded_in_the_precision_of_the_settings(
    trained, first_run, words, tmp_path, monkeypatch
):
    """auto is the processor's own, although launchers say "no" for what they leave to the script."""
    given = {"checkpoint": trained / "checkpoint", "collection": words}
    run("encode", **given, output=tmp_path / "index")
    monkeypatch.setattr("rerank.native_precision", lambda device: "bf16")
    scores = {}
    for precision in ("no", "bf16", "auto"):
        monkeypatch.setenv(VARIABLE, "no")
        output = tmp_path / precision
        run("rerank", **given, run=first_run, index=tmp_path / "index", output=output, precision=precision)
        scores[precision] = read_run(output / "reranked.run")
    assert scores["no"] != scores["bf16"] == scores["auto"]
