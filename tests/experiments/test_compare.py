"""The main job, end to end on a tiny encoder and a tiny collection."""

import csv
import json
import re
import shutil
from pathlib import Path

import compare
import pytest
import yaml
from studies import model_runs
from studies.system_runs import write_runs
from transformers import BertForSequenceClassification

from paradigms import PARADIGMS
from paradigms import load as load_paradigm
from paradigms.align import DocumentToQuery
from paradigms.data import load_collection, read_run
from paradigms.retrieve import Indexed
from paradigms.train.checkpoints import dev_values
from tests.experiments import scripts
from tests.experiments.scripts import SMALL
from tests.forks import fork_group
from tests.serve.served import needed
from tests.tiny import write_headed

SYSTEMS = [*PARADIGMS, "dsi"]
SEEN = "dsi (unseen documents)"
LENGTHS, DSI = {"query_length": 8, "document_length": 12}, {"steps": 2, "batch_size": 4}


def settings(collection: Path, backbone: Path, output: Path, **changes: object) -> dict[str, object]:
    flags = {"collection": collection, "backbone": backbone, "output": output, "negatives": 1, "depth": 20}
    flags |= {"options": json.dumps(LENGTHS), "systems": systems(*SYSTEMS)}
    more = {name: value for name, value in SMALL.items() if name != "precision"}
    return more | flags | changes


def systems(*names: str, **more: dict) -> str:
    """The flag for these paradigms, DSI with little training, and for more systems by name."""
    own = {"dsi": {"training": DSI}, "splade": {"options": {"tied_head": True}}}
    return json.dumps({name: own.get(name, {}) for name in names} | more)


def run(flags: dict[str, object]) -> None:
    scripts.run("compare", **flags)


@pytest.fixture(scope="module")
def finished(words: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder of the whole job, all paradigms, logged to W&B offline."""
    output = tmp_path_factory.mktemp("results") / "compare"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        run(settings(words, tiny_bert, output, tracker="wandb"))
    return output


@needed
def test_explore_serves_the_finished_systems(finished: Path, monkeypatch: pytest.MonkeyPatch):
    """The page shows the runs' rankings and the judged queries."""
    import explore

    served: list[tuple[dict, int]] = []
    monkeypatch.setattr(
        explore, "serve", lambda systems, corpus, judged, port: served.append((systems, len(judged.queries)))
    )
    scripts.run("explore", results=finished)
    (retrievers, queries), *_ = served
    assert list(retrievers) == ["bm25", *SYSTEMS]
    assert queries == 10
    for name in ("bm25", "colbert"):
        expected = read_run(finished / "runs" / f"{name}.retrieve.run")
        query = next(iter(expected))
        text = load_collection(json.loads((finished / "config.json").read_text())["collection"])
        ranked = retrievers[name].search({query: text.split("test").queries[query]}, 20)
        assert next(iter(ranked[query])) == next(iter(expected[query]))  # scores are those of bf16
    with pytest.raises(SystemExit, match="holds no results"):
        scripts.run("explore", results=finished / "runs")


@needed
def test_oracle_measures_finished_systems_before_and_after_training(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Fewer axes never make more queries answerable, and what is reached is possible."""
    chosen = {"results": [str(finished)], "systems": ["colbert", "dsi"], "queries": 4}
    with pytest.raises(SystemExit, match="no finished system"):
        scripts.run("oracle", output=tmp_path, **chosen)  # each query has one relevant document
    monkeypatch.setattr("oracle.FEWEST", 1)
    monkeypatch.setattr("oracle.DIMS", [2])
    scripts.run("oracle", output=tmp_path, **chosen)
    rows = [json.loads(file.read_text())["answer"] for file in sorted(tmp_path.glob("*/colbert*.json"))]
    assert len(rows) == 2  # untrained and trained; DSI has no index
    for few, full in rows:
        assert (few["h"], few["queries"]) == (2, 4)
        assert few["bytes"] < full["bytes"]
        for row in (few, full):
            assert row["reached"][0] <= row["possible"][0] <= 1 - row["neither found"]
        assert few["possible"][0] <= full["possible"][0] + full["neither found"]
    retrained = tmp_path / "copy"  # the same settings, and other weights
    shutil.copytree(finished, retrained / finished.name)
    (retrained / finished.name / "colbert" / "checkpoint" / "README.md").write_text("other")
    (file,) = tmp_path.glob(f"{finished.name}/colbert.json")
    before = file.read_text()
    scripts.run("oracle", output=tmp_path, **chosen | {"results": [str(retrained / finished.name)]})
    assert json.loads(file.read_text())["question"] != json.loads(before)["question"]
    with pytest.raises(SystemExit, match="no finished system has an index"):
        scripts.run("oracle", output=tmp_path, **chosen | {"systems": ["dsi"]})


def test_every_system_has_runs_costs_and_checkpoint(finished: Path):
    pool = read_run(finished / "runs" / "candidates.run")
    assert len(pool) == 10
    assert all(f"d{query[1:]}" in documents for query, documents in pool.items())
    for name in ["bm25", *SYSTEMS]:
        assert set(read_run(finished / "runs" / f"{name}.retrieve.run")) <= {f"q{n}" for n in range(30, 40)}
        reranked = read_run(finished / "runs" / f"{name}.rerank.run")
        assert {q: set(d) for q, d in reranked.items()} == {q: set(d) for q, d in pool.items()}
        costs = json.loads((finished / name / "costs.json").read_text())
        assert costs["bytes/document"] > 0
        assert costs["search ms/query"] >= 0  # a whole query less its encoding
        assert (costs["encode ms/query"] is None) == (name in ("bm25", "dsi"))
        if name != "bm25":
            assert costs["train s"] > 0
            # What only an interrupted training needs is gone.
            left = {entry.name for entry in (finished / name / "training").iterdir()}
            assert left == {"history.jsonl", "cost.json"}
    assert load_paradigm(finished / "dsi" / "checkpoint").name == "dsi"


def test_results_are_files(finished: Path):
    with (finished / "per_query.csv").open() as file:
        rows = list(csv.DictReader(file))
    untrained = {f"{name}.untrained" for name in PARADIGMS}
    assert {row["system"] for row in rows} == {"bm25", "bm25-cut", *SYSTEMS, *untrained}
    assert {row["stage"] for row in rows} == {"retrieve", "rerank"}
    with (finished / "retrieve.csv").open() as file:
        table = {row["system"]: row for row in csv.DictReader(file) if row["measure"] == "nDCG@10"}
    key = "dpr.untrained", "retrieve", "nDCG@10"
    first = [float(row["value"]) for row in rows if (row["system"], row["stage"], row["measure"]) == key]
    assert float(table["dpr"]["untrained"]) == pytest.approx(sum(first) / len(first))
    assert [name for name, row in table.items() if not row["untrained"]] == ["bm25", "bm25-cut", SEEN]
    assert (
        "bm25-cut: BM25 on the first 12 tokens of each document, as dpr"
        in (finished / "report.html").read_text()
    )
    assert {p.name for p in (finished / "pictures").iterdir()} >= {"recall.png", "cost.png"}
    (logged,) = (finished / "wandb").glob("offline-run-*")
    media = {file.name.rsplit("_", 2)[0] for file in (logged / "files" / "media").rglob("*.*")}
    assert {"recall", "cost", "retrieve"} <= media


def test_a_finished_run_only_renews_its_report(
    finished: Path, words: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
):
    before = {name: (finished / name / "costs.json").stat().st_mtime_ns for name in SYSTEMS}
    (finished / "report.html").unlink()
    run(settings(words, tiny_bert, finished))
    assert {name: (finished / name / "costs.json").stat().st_mtime_ns for name in SYSTEMS} == before
    assert (finished / "report.html").is_file()
    said = capsys.readouterr().out
    assert said.index("retrieve") < said.index("\ndpr: finished before")  # the table of untrained encoders
    with pytest.raises(SystemExit, match="steps: 2 then, 3 now"):
        run(settings(words, tiny_bert, finished, steps=3))
    file = finished / "runs" / "xtr.retrieve.run"
    whole = file.read_text().splitlines(keepends=True)
    for kept in ([], whole[:-1]):
        file.write_text("".join(kept))
        with pytest.raises(SystemExit, match=rf"xtr\.retrieve\.run is damaged: it has {len(kept)} rows"):
            run(settings(words, tiny_bert, finished))
    file.write_text("".join(whole))


def test_a_run_without_one_of_its_queries_is_not_written(tmp_path: Path):
    runs = {"retrieve": {"q": {"d": 1.0}, "none": {}}}
    assert write_runs(tmp_path, "x", runs, {"retrieve": ["q", "none"]}) == {"retrieve": 1}
    with pytest.raises(ValueError, match=r"y, retrieve: 1 of 3 queries have no answer, such as 'lost'"):
        write_runs(tmp_path, "y", runs, {"retrieve": ["q", "lost", "none"]})
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["x.retrieve.run"]


def test_an_interrupted_run_ends_as_one_that_was_not(
    finished: Path, words: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flags = settings(words, tiny_bert, tmp_path, systems="[dpr,xtr]")
    for owner, name in ((Indexed, "search"), (model_runs, "remove_folder"), (compare, "make_report")):
        with monkeypatch.context() as patch:

            def interrupt(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(owner, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(flags)
        assert not (tmp_path / "report.html").exists()
    run(flags)
    assert not list(tmp_path.glob("*/training/checkpoints"))
    same_runs(tmp_path, finished, "bm25", "dpr", "xtr", "dpr.untrained")


def same_runs(folder: Path, finished: Path, *names: str) -> None:
    for name in names:
        for stage in ("retrieve", "rerank"):
            file = f"runs/{name}.{stage}.run"
            assert (folder / file).read_bytes() == (finished / file).read_bytes()


@pytest.mark.slow
def test_a_run_of_few_minutes_pauses_and_ends_as_one_that_did_not(
    finished: Path, words: Path, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Untrained, a step, another step: each call does one of them, and keeps the states for the next."""
    flags = settings(words, tiny_bert, tmp_path / "out", systems="[dpr]", trained_layers=1)
    for told in ("before dpr", "dpr after 1 of 2 steps", ""):
        assert compare.main(scripts.settings("compare", **flags, minutes=1e-9)) == (75 if told else 0)
        assert not told or told in capsys.readouterr().out
        assert (tmp_path / "out" / "states" / "paused.txt").is_file() == bool(told)
    assert not (tmp_path / "out" / "states").exists()
    run(settings(words, tiny_bert, tmp_path / "whole", systems="[dpr]", trained_layers=1))
    same_runs(tmp_path / "out", tmp_path / "whole", "dpr", "dpr.untrained")


@pytest.mark.slow
def test_checkpoints_widths_and_alignments_stand_side_by_side(
    finished: Path, words: Path, tiny_bert: Path, tmp_path: Path
):
    """A checkpoint as trained and under another alignment, and a width, which two seeds train."""
    colbert = {"checkpoint": str(finished / "colbert" / "checkpoint")}
    named = {
        "saved": colbert | {"paradigm": "colbert"},
        "reversed": colbert | {"options": {"align": "DocumentToQuery", "normalise": "document_tokens"}},
        "wide": {"paradigm": "colbert", "options": {"dim": 16}},
    }
    flags = settings(words, tiny_bert, tmp_path, systems=systems(**named), baseline="saved", seeds="[0,1]")
    run(flags)
    assert json.loads((tmp_path / "saved" / "costs.json").read_text())["train s"] is None
    models = {name: load_paradigm(tmp_path / name / "checkpoint") for name in named}
    assert models["reversed"].recipe.align == DocumentToQuery()
    assert models["wide"].encoder.dim == 16
    assert "saved loaded from" in (tmp_path / "report.html").read_text()
    again = ["wide.seed-1", "wide.untrained.seed-1"]
    assert [path.name for path in sorted(tmp_path.glob("*.seed-*"))] == again
    assert "2 training seeds" in (tmp_path / "table.md").read_text()
    changed = systems(**named | {"wide": {"paradigm": "colbert", "options": {"dim": 8}}})
    with pytest.raises(SystemExit, match=r"holds results with other settings \(dim: 16 then, 8 now"):
        run(flags | {"systems": changed})


def test_a_reranker_searches_what_bm25_finds(words: Path, tiny_bert: Path, tmp_path: Path):
    reranker = write_headed(BertForSequenceClassification, tmp_path / "reranker", num_labels=1)
    second = systems(second={"checkpoint": str(reranker)})
    run(settings(words, tiny_bert, tmp_path / "out", systems=second))
    found, bm25 = (read_run(tmp_path / "out" / "runs" / f"{n}.retrieve.run") for n in ("second", "bm25"))
    assert {q: set(of) for q, of in found.items()} == {q: set(of) for q, of in bm25.items()}
    assert found != bm25
    assert "second (of BM25's top 20)" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.slow
def test_two_backbones_learn_side_by_side_under_one_configuration(
    words: Path, tiny_bert: Path, seq2seq: dict[str, Path], tmp_path: Path
):
    """The configuration that ships, with tiny backbones and few steps, including DSI's generated pairs."""
    file = Path(compare.__file__).parent / "configs" / "trained_paradigms.yaml"
    config = yaml.safe_load(file.read_text())
    chosen = {name: config["systems"][name] for name in ("colbert", "dsi", "colbert-t5")}
    chosen["colbert-t5"] |= {"backbone": str(seq2seq["t5"])}
    chosen["colbert-t5"]["training"]["trained_layers"] = 1
    chosen["dsi"]["training"] = DSI | {"evaluate_at": [1], "batch_size": 3}
    changed = {"systems": json.dumps(chosen), "evaluate_at": "[1]", "batch_size": 4, "seeds": "[0]"}
    shorter = {"steps": 2, "minutes": 0, "options": json.dumps(LENGTHS)}
    folders = {"collection": words, "backbone": tiny_bert, "output": tmp_path}
    scripts.run("compare", f"--config={file}", **folders, **changed, **shorter)
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"after \d+ s of training", page)  # an equal budget for all
    study = json.loads((tmp_path / "study.json").read_text())["sections"]
    assert (
        "Training changes the mean nDCG@10 of all trained systems: whole corpus " in study["overview"]["text"]
    )
    row = {row["system"]: row for row in study["overview"]["rows"]}["colbert-t5"]
    assert re.fullmatch(r"\.\d{3} [→↗↘] \.\d{3}[†‡]? \[.+, .+\]", row["nDCG@10, whole corpus"])
    for curve in study["learning"]["rows"]:  # DSI has another batch size, so it is measured at other pairs
        assert (curve["training pairs seen = 8"] == "–") == (curve["system"] == "dsi")
    models = [load_paradigm(tmp_path / name / "checkpoint") for name in ("colbert", "colbert-t5")]
    assert [model.encoder.backbone.config.model_type for model in models] == ["bert", "t5"]
    assert [*dev_values(tmp_path / "colbert-t5" / "training")] == [0, 1, 2]


@pytest.mark.slow
def test_two_processes_end_together(words: Path, tiny_bert: Path, tmp_path: Path):
    """Both encode and search. The main process alone reports; the other writes nothing and waits for it."""
    flags = settings(words, tiny_bert, tmp_path / "out", systems=systems("dpr", "dsi"))
    group = fork_group(tmp_path / "log", 2, run, flags, ACCELERATE_USE_CPU="true")
    ended = [process.ended() for process in group]
    assert [code for code, _ in ended] == [0, 0], ended
    assert ["Report: " in said for _, said in ended] == [True, False]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["processes"] == 2
    assert "steps of 8 queries" in (tmp_path / "out" / "report.html").read_text()
