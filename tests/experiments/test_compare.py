"""The main job, end to end on a tiny encoder and a tiny collection."""

import csv
import json
import re
import shutil
from pathlib import Path

import compare
import pytest
from transformers import BertForSequenceClassification

from paradigms import PARADIGMS, Paradigm
from paradigms import load as load_paradigm
from paradigms.data import Collection, load, read_run, write_folder
from paradigms.evaluate import pictures
from paradigms.index import ExactIndex
from paradigms.io.settings import from_command_line
from tests.forks import fork_group
from tests.tiny import WORDS as TEXT
from tests.tiny import built, write_collection, write_headed

WORDS = TEXT.split()
SYSTEMS = [*PARADIGMS, "dsi"]
LENGTHS, DSI = {"query_length": 8, "document_length": 12}, {"steps": 2, "batch_size": 4}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents of five words; each query is three of a document's words."""
    folder = tmp_path_factory.mktemp("words")
    texts = [" ".join(WORDS[(7 * n + 3 * w) % len(WORDS)] for w in range(5)) for n in range(40)]
    queries = [" ".join(text.split()[:3]) for text in texts]
    return write_collection(folder, texts, queries, {"train": range(30), "test": range(30, 40)})


def settings(collection: Path, backbone: Path, output: Path, **changes: object) -> list[str]:
    flags = {
        "collection": collection,
        "backbone": backbone,
        "output": output,
        "steps": 2,
        "batch_size": 4,
        "negatives": 1,
        "options": json.dumps(LENGTHS),
        "depth": 20,
        "tracker": "none",
        "systems": systems(*SYSTEMS),
    } | changes
    return [f"--{name}={value}" for name, value in flags.items()]


def systems(*names: str, **more: dict) -> str:
    """The flag for these paradigms, DSI with little training, and for more systems by name."""
    own = {"dsi": {"training": DSI}, "splade": {"options": {"tied_head": True}}}
    return json.dumps({name: own.get(name, {}) for name in names} | more)


def run(flags: list[str]) -> None:
    compare.main(from_command_line(compare.Settings, compare.__doc__ or "", flags))


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time of a run this small; those of `finished` are looked at."""
    monkeypatch.setattr(pictures, "PICTURED", 0)


@pytest.fixture(scope="module")
def finished(collection: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder of the whole job, all paradigms, logged to W&B offline."""
    output = tmp_path_factory.mktemp("results") / "compare"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setattr(pictures, "PICTURED", 1)
        run(settings(collection, tiny_bert, output, tracker="wandb"))
    return output


def test_every_system_has_runs_costs_and_checkpoint(finished: Path):
    for name in ["bm25", *SYSTEMS]:
        assert set(read_run(finished / "runs" / f"{name}.retrieve.run")) <= {f"q{n}" for n in range(30, 40)}
        costs = json.loads((finished / name / "costs.json").read_text())
        assert costs["bytes/document"] > 0
    for name in SYSTEMS:
        assert load_paradigm(finished / name / "checkpoint").name == name
        assert len(read_run(finished / "runs" / f"{name}.rerank.run")) == 10


def test_reranking_keeps_the_candidates_and_holds_the_gold(finished: Path):
    pool = read_run(finished / "runs" / "candidates.run")
    for name in SYSTEMS:
        reranked = read_run(finished / "runs" / f"{name}.rerank.run")
        assert {q: set(d) for q, d in reranked.items()} == {q: set(d) for q, d in pool.items()}
    assert all(f"d{q[1:]}" in documents for q, documents in pool.items())


def test_results_are_files(finished: Path):
    with (finished / "per_query.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["system"] for row in rows} == {"bm25", *SYSTEMS}
    assert {row["stage"] for row in rows} == {"retrieve", "rerank"}
    page = (finished / "report.html").read_text()
    assert all(name in page for name in SYSTEMS)
    assert "nDCG@10" in (finished / "table.md").read_text()
    assert json.loads((finished / "config.json").read_text())["seed"] == 0
    assert {p.name for p in (finished / "pictures").iterdir()} >= {"recall.png", "alignment_0_colbert.png"}
    assert "torch" in json.loads((finished / "environment.json").read_text())


def test_pictures_tables_and_curves_are_logged(finished: Path):
    (run_folder,) = (finished / "wandb").glob("offline-run-*")
    media = {file.name.rsplit("_", 2)[0] for file in (run_folder / "files" / "media").rglob("*.*")}
    assert {"recall", "alignment_0_xtr", "retrieve"} <= media


def test_a_finished_run_only_renews_its_report(
    finished: Path, collection: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
):
    before = {name: (finished / name / "costs.json").stat().st_mtime_ns for name in SYSTEMS}
    (finished / "report.html").unlink()
    run(settings(collection, tiny_bert, finished))
    assert {name: (finished / name / "costs.json").stat().st_mtime_ns for name in SYSTEMS} == before
    assert (finished / "report.html").is_file()
    assert "finished before" in capsys.readouterr().out


def test_an_interrupted_run_ends_as_one_that_was_not(
    finished: Path, collection: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flags = settings(collection, tiny_bert, tmp_path, systems="[dpr,xtr]")
    for owner, name in ((ExactIndex, "search"), (Paradigm, "save_pretrained"), (compare, "make_report")):
        with monkeypatch.context() as patch:

            def interrupt(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(owner, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(flags)
        assert not (tmp_path / "report.html").exists()
    run(flags)
    for name in ("bm25", "dpr", "xtr"):
        for stage in ("retrieve", "rerank"):
            file = f"runs/{name}.{stage}.run"
            assert (tmp_path / file).read_bytes() == (finished / file).read_bytes()


def test_checkpoints_widths_and_alignments_stand_side_by_side(
    finished: Path, collection: Path, tiny_bert: Path, tmp_path: Path
):
    """Two checkpoints, two widths of one paradigm and two alignments of one encoder, each by its own name."""
    dpr, colbert = ({"checkpoint": str(finished / name / "checkpoint")} for name in ("dpr", "colbert"))
    named = {
        "saved-dpr": dpr,
        "saved": colbert | {"paradigm": "colbert"},
        "reversed": colbert | {"options": {"align": "document_to_query", "normalise": "document_tokens"}},
        "wide": {"paradigm": "colbert", "options": {"dim": 16}},
        "narrow": {"paradigm": "colbert", "options": {"dim": 8}, "training": {"steps": 0}},
    }
    run(settings(collection, tiny_bert, tmp_path, systems=systems(**named), baseline="saved"))
    for name, same in (("saved-dpr", "dpr"), ("saved", "colbert")):
        for stage in ("retrieve", "rerank"):
            found = read_run(tmp_path / "runs" / f"{name}.{stage}.run")
            trained = read_run(finished / "runs" / f"{same}.{stage}.run")
            for query, scores in found.items():  # with frozen layers kept in float16 in one of them
                both = scores.keys() & trained[query].keys()
                assert len(both) >= 0.9 * len(scores)
                assert [scores[id] for id in both] == pytest.approx(
                    [trained[query][id] for id in both], abs=2e-3
                )
        assert json.loads((tmp_path / name / "costs.json").read_text())["train s"] is None
    models = {name: load_paradigm(tmp_path / name / "checkpoint") for name in named}
    assert models["reversed"].recipe.align == "document_to_query"
    assert [models[name].encoder.dim for name in ("wide", "narrow")] == [16, 8]
    assert (tmp_path / "wide" / "training").is_dir() > (tmp_path / "narrow" / "training").is_dir()
    page = (tmp_path / "report.html").read_text()
    assert "saved-dpr loaded from" in page
    assert set(re.findall(r'"system":\s*"([^"]+)"', page)) >= named.keys()
    seeds = settings(collection, tiny_bert, tmp_path, systems=systems(**named), baseline="saved", seeds=2)
    run(seeds)  # trains what training changes once more, and takes the rest from before
    assert [path.name for path in sorted(tmp_path.glob("*.seed-*"))] == ["wide.seed-1"]
    assert "2 training seeds" in (tmp_path / "table.md").read_text()
    with (tmp_path / "per_query.csv").open() as lines:
        values = [
            float(row["value"])
            for row in csv.DictReader(lines)
            if row["system"].startswith("wide") and (row["stage"], row["measure"]) == ("retrieve", "nDCG@10")
        ]
    with (tmp_path / "retrieve.csv").open() as lines:
        cells = {(row["system"], row["measure"]): float(row["mean"]) for row in csv.DictReader(lines)}
    assert cells["wide", "nDCG@10"] == pytest.approx(sum(values) / len(values))
    changed = systems(**named | {"wide": named["narrow"]})
    with pytest.raises(SystemExit, match=r"wide holds results with other settings \(options: .*16.* then"):
        run(settings(collection, tiny_bert, tmp_path, systems=changed, baseline="saved"))


def test_a_paradigm_is_the_same_by_its_name_and_in_the_comparison(finished: Path, tiny_bert: Path):
    for name in PARADIGMS:
        compared = load_paradigm(finished / name / "checkpoint")
        assert compared.description() == built(name, tiny_bert, **LENGTHS).description()


def test_a_reranker_searches_what_bm25_finds(collection: Path, tiny_bert: Path, tmp_path: Path):
    reranker = write_headed(BertForSequenceClassification, tmp_path / "reranker", num_labels=1)
    second = systems(second={"checkpoint": str(reranker)})
    run(settings(collection, tiny_bert, tmp_path / "out", systems=second))
    found, bm25 = (read_run(tmp_path / "out" / "runs" / f"{n}.retrieve.run") for n in ("second", "bm25"))
    assert {q: set(of) for q, of in found.items()} == {q: set(of) for q, of in bm25.items()}
    assert found != bm25
    assert "second (of BM25's top 20)" in (tmp_path / "out" / "table.md").read_text()


def test_two_processes_end_together(collection: Path, tiny_bert: Path, tmp_path: Path):
    """The main one alone searches and reports; the other neither writes nor leaves early."""
    flags = settings(collection, tiny_bert, tmp_path / "out", systems=systems("dpr", "dsi"))
    group = fork_group(tmp_path / "log", 2, run, flags, ACCELERATE_USE_CPU="true")
    ended = [process.ended() for process in group]
    assert [code for code, _ in ended] == [0, 0], ended
    assert ["Report: " in said for _, said in ended] == [True, False]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["processes"] == 2
    assert "steps of 8 queries" in (tmp_path / "out" / "report.html").read_text()


def test_other_settings_are_not_mixed_into_a_results_folder(
    finished: Path, collection: Path, tiny_bert: Path
):
    with pytest.raises(SystemExit, match="steps: 2 then, 3 now"):
        run(settings(collection, tiny_bert, finished, steps=3))


def test_a_folder_is_bound_to_the_checkpoint_and_by_no_mistyped_split(
    finished: Path, collection: Path, tiny_bert: Path, tmp_path: Path
):
    checkpoint = tmp_path / "mine"
    shutil.copytree(finished / "dpr" / "checkpoint", checkpoint)
    flags = settings(
        collection, tiny_bert, tmp_path / "out", systems=systems(mine={"checkpoint": str(checkpoint)})
    )
    with pytest.raises(SystemExit, match=r"has no split 'nosuch'.*--also"):
        run([*flags, "--also=[nosuch]"])
    run(flags)
    shutil.rmtree(checkpoint)
    shutil.copytree(finished / "colbert" / "checkpoint", checkpoint)
    with pytest.raises(SystemExit, match="mine holds results with other settings"):
        run(flags)


def test_test_queries_choose_nothing(collection: Path):
    """Without a dev split it is held out of the training queries."""
    loaded: Collection = load(collection)
    flags = settings(collection, Path("unused"), collection.parent / "unused")
    given = from_command_line(compare.Settings, "", flags)
    data = compare.prepare(loaded, compare.divided(loaded, given), given)
    assert len(data.dev.queries) == 3
    assert not data.dev.queries.keys() & data.test.queries.keys()
    assert not data.dev.queries.keys() & data.train.queries.keys()
    assert len(data.train.queries) == 27


def test_no_training_queries_is_said(collection: Path, tmp_path: Path, tiny_bert: Path):
    loaded = load(collection)
    only_test = Collection(
        loaded.name, loaded.corpus, {"test": loaded.split("test")}, loaded.problems, loaded.fingerprint
    )
    write_folder(only_test, tmp_path / "only-test")
    with pytest.raises(SystemExit, match="no training queries"):
        run(settings(tmp_path / "only-test", tiny_bert, tmp_path / "out"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--systems=[dpr,splade]"], "system splade: unknown paradigm splade; there are dpr"),
        (
            ['--systems={"a": {"paradigm": "dpr", "dim": 3}}'],
            "system a: unknown settings: 'dim'; there are paradigm, options",
        ),
        (['--systems={"a": {"paradigm": "dpr", "training": {"stepz": 3}}}'], "system a, training: "),
        (
            ['--systems={"a": {"paradigm": "dpr", "index": "i"}}'],
            "system a: an index goes with the checkpoint",
        ),
        (['--systems={"a/b": {"paradigm": "dpr"}}'], "system 'a/b': its name is that of a folder"),
        (['--systems={"runs": {"paradigm": "dpr"}}'], "system 'runs': its name"),
        (["--size=huge"], "small or full"),
        (["--baseline=splade"], "not among the compared systems"),
        (["--stepz=3"], "stepz"),
        (["--collection=nowhere", "--tracker=none"], "no collection 'nowhere'"),
    ],
)
def test_wrong_arguments_end_with_a_message(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(flags)
    assert message in f"{ended.value.code} {capsys.readouterr().err}"
