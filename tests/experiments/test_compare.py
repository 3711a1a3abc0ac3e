"""The main job, end to end on a tiny encoder and a tiny collection."""

import csv
import json
import shutil
from pathlib import Path

import compare
import pytest
import torch
from studies import model_runs
from studies.system_runs import write_runs
from studies.system_settings import SystemSettings
from studies.systems import open_model
from transformers import BertForSequenceClassification

from paradigms import PARADIGMS, Paradigm, load
from paradigms.align import NORMALISERS, as_alignment
from paradigms.core import rel
from paradigms.data import load_collection, read_run
from paradigms.retrieve import Indexed, retriever_of
from tests.experiments import scripts
from tests.experiments.scripts import SMALL
from tests.forks import fork_group
from tests.near import assert_same, assert_within_rounding
from tests.serve.served import needed
from tests.tiny import write_headed
from tests.train.test_loop import history

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
def finished(words, tiny_bert, tmp_path_factory):
    """A results folder of the whole job, all paradigms, logged to W&B offline."""
    output = tmp_path_factory.mktemp("results") / "compare"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        run(settings(words, tiny_bert, output, tracker="wandb"))
    return output


@needed
def test_explore_serves_the_finished_systems(finished, monkeypatch):
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


@needed
def test_oracle_measures_finished_systems_before_and_after_training(finished, tmp_path, monkeypatch):
    """Fewer axes never make more queries answerable, and what is reached is possible."""
    chosen = {"results": [str(finished)], "systems": ["colbert", "dsi"], "queries": 4}
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


def test_every_system_has_runs_costs_and_checkpoint(finished):
    pool = read_run(finished / "runs" / "candidates.run")
    assert len(pool) == 10
    assert all(f"d{query[1:]}" in documents for query, documents in pool.items())
    for name in ["bm25", *SYSTEMS]:
        assert set(read_run(finished / "runs" / f"{name}.retrieve.run")) <= {f"q{n}" for n in range(30, 40)}
        reranked = read_run(finished / "runs" / f"{name}.rerank.run")
        assert {q: set(d) for q, d in reranked.items()} == {q: set(d) for q, d in pool.items()}
        if name != "bm25":
            # What only an interrupted training needs is gone.
            left = {entry.name for entry in (finished / name / "training").iterdir()}
            assert left == {"history.jsonl", "cost.json"}


def test_results_are_files(finished):
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
    (logged,) = (finished / "wandb").glob("offline-run-*")
    media = {file.name.rsplit("_", 2)[0] for file in (logged / "files" / "media").rglob("*.*")}
    assert {"recall", "cost", "retrieve"} <= media


def test_a_finished_run_only_renews_its_report(finished, words, tiny_bert):
    before = {name: (finished / name / "costs.json").stat().st_mtime_ns for name in SYSTEMS}
    (finished / "report.html").unlink()
    run(settings(words, tiny_bert, finished))
    assert {name: (finished / name / "costs.json").stat().st_mtime_ns for name in SYSTEMS} == before
    assert (finished / "report.html").is_file()
    with pytest.raises(SystemExit, match="steps: 2 then, 3 now"):
        run(settings(words, tiny_bert, finished, steps=3))
    file = finished / "runs" / "xtr.retrieve.run"
    complete = file.read_text()
    file.write_text("")
    with pytest.raises(SystemExit, match=r"xtr\.retrieve\.run is damaged: it has 0 rows"):
        run(settings(words, tiny_bert, finished))
    file.write_text(complete)


def test_an_interrupted_run_ends_as_one_that_was_not(finished, words, tiny_bert, tmp_path, monkeypatch):
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


@pytest.fixture
def no_report(monkeypatch):
    """Spare the report, which takes most of a small run's time."""
    monkeypatch.setattr(compare, "make_report", lambda *_: None)
    monkeypatch.setattr(compare, "show", lambda *_: None)


def test_a_run_of_few_minutes_pauses_and_ends_as_one_that_did_not(
    finished, words, tiny_bert, tmp_path, no_report, capsys
):
    """Each call does the least that it can: measure an untrained system, take a step, take another step."""
    flags = settings(words, tiny_bert, tmp_path, systems="[dpr]", minutes=1e-9)
    for place, status in (("before dpr", 75), ("dpr after 1 of 2 steps", 75), ("", 0)):
        assert compare.main(scripts.settings("compare", **flags)) == status
        output = capsys.readouterr().out
        assert ("Paused: " in output) == (status == 75)
        assert not place or f"{place}. The same command resumes." in output
    same_runs(tmp_path, finished, "dpr", "dpr.untrained")


def test_a_system_learns_from_another_one(finished, words, tiny_bert, tmp_path, no_report):
    """The teacher scores each query's relevant document and hard negative, and the loss grows by a term."""
    output = shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns("wandb"))
    taught = {"paradigm": "dpr", "teacher": "colbert", "distil": {"loss": "margin_mse", "weight": 1}}
    run(settings(words, tiny_bert, output, systems=systems("dpr", "colbert", taught=taught)))
    scores = read_run(output / "taught" / "training" / "teacher.run")
    assert {len(documents) for documents in scores.values()} == {2}
    collection = load_collection(words)
    teacher = retriever_of(load(output / "colbert" / "checkpoint"), collection.corpus, precision="no")
    expected = teacher.rerank(collection.split("train").queries, scores)
    assert_within_rounding(scores, expected, torch.float16, 1, scale=1)  # in which vectors are stored
    alone, both = (history(output / name / "training")[0]["loss"] for name in ("dpr", "taught"))
    assert both > alone


OTHERS = [("colbert", "DocumentToQuery", "document_tokens"), ("colbert", "TopK(k=2)", "total")]


@pytest.mark.parametrize(
    ("name", "align", "normalise"), [*OTHERS, ("xtr", "QueryToDocument", "query_tokens")]
)
def test_a_checkpoint_opens_with_another_alignment(finished, name, align, normalise):
    """Its scores are rel of the saved model's tokens with this A and Z, and no search imputes."""
    checkpoint = str(finished / name / "checkpoint")
    other = open_model(
        SystemSettings(checkpoint=checkpoint, options={"align": align, "normalise": normalise})
    )
    saved = Paradigm.from_pretrained(checkpoint).double()
    tokens = saved.encode_documents(["the sea", "a bird over the river"]), saved.encode_queries(["sea bird"])
    expected = rel(*tokens, as_alignment(align), NORMALISERS[normalise])
    assert_same(other.double().score(*tokens), expected)
    assert not torch.equal(expected, saved.score(*tokens))
    assert other.recipe.search == "gather"


@pytest.mark.parametrize(
    ("name", "system", "message"),
    [
        ("colbert", {"paradigm": "dpr"}, "holds colbert, not dpr"),
        ("colbert", {"options": {"dim": 8}}, "unknown settings: 'dim'"),
        ("xtr", {"options": {"align": "TopK(k=2)", "search": "impute"}}, "search of xtr is 'impute'"),
        ("dsi", {"options": {"align": "TopK(k=2)"}}, "its options are fixed by training"),
    ],
)
def test_a_checkpoint_that_cannot_be_opened_so_is_refused(finished, name, system, message):
    with pytest.raises(ValueError, match=message):
        open_model(SystemSettings(checkpoint=str(finished / name / "checkpoint"), **system))


def test_a_reranker_searches_what_bm25_finds(words, tiny_bert, tmp_path):
    reranker = write_headed(BertForSequenceClassification, tmp_path / "reranker", num_labels=1)
    second = systems(second={"checkpoint": str(reranker)})
    run(settings(words, tiny_bert, tmp_path / "out", systems=second))
    results, bm25 = (read_run(tmp_path / "out" / "runs" / f"{n}.retrieve.run") for n in ("second", "bm25"))
    assert {q: set(of) for q, of in results.items()} == {q: set(of) for q, of in bm25.items()}
    assert results != bm25


@pytest.mark.slow
def test_two_processes_end_together(words, tiny_bert, tmp_path):
    """Both encode and search. The main process alone reports; the other writes nothing and waits for it."""
    flags = settings(words, tiny_bert, tmp_path / "out", systems=systems("dpr", "dsi"))
    group = fork_group(tmp_path / "log", 2, run, flags, ACCELERATE_USE_CPU="true")
    ended = [process.ended() for process in group]
    assert [code for code, _ in ended] == [0, 0], ended
    assert ["Report: " in said for _, said in ended] == [True, False]


def test_a_run_without_one_of_its_queries_is_not_written(tmp_path):
    runs = {"retrieve": {"q": {"d": 1.0}, "none": {}}}
    assert write_runs(tmp_path, "x", runs, {"retrieve": ["q", "none"]}) == {"retrieve": 1}
    with pytest.raises(ValueError, match=r"y, retrieve: 1 of 3 queries have no answer, such as 'lost'"):
        write_runs(tmp_path, "y", runs, {"retrieve": ["q", "lost", "none"]})
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["x.retrieve.run"]
