"""Options of the comparison that users of BEIR ask for: identical ids, passages and fused systems."""

import json
import shutil
from pathlib import Path

import compare
import numpy as np
import pytest
import torch
from compare import Settings
from studies.learning import Learning, choices

from paradigms import load
from paradigms.data import load_collection, read_run
from paradigms.data.identical import own_documents
from paradigms.evaluate.table import Cell, ResultTable
from paradigms.retrieve import fuse, retriever_of
from tests.experiments.scripts import SMALL, run
from tests.near import assert_within_rounding
from tests.tiny import WORDS as TEXT

WORDS = TEXT.split()
PASSAGES = ["--passages", "5", "--best_passages", "2"]


@pytest.fixture(scope="module")
def arguana(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen documents of twenty words; every second one is also a query, whose answer is the next one."""
    folder = tmp_path_factory.mktemp("data") / "arguana"
    (folder / "qrels").mkdir(parents=True)
    texts = [" ".join(WORDS[(7 * n + 3 * w) % len(WORDS)] for w in range(20)) for n in range(16)]
    lines = [json.dumps({"_id": f"d{n}", "title": "", "text": text}) + "\n" for n, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    (folder / "queries.jsonl").write_text("".join(lines[::2]))
    for split, chosen in (("dev", range(0, 8, 2)), ("test", range(8, 16, 2))):
        judged = "".join(f"d{n}\td{n + 1}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


@pytest.fixture(scope="module")
def results(arguana: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "compare"
    options = {"query_length": 8, "document_length": 12}
    flags = {"collection": arguana, "backbone": tiny_bert, "output": output, "steps": 0, "tracker": "none"}
    fused = {"rrf": {"fuse": ["bm25", "colbert"]}, "sum": {"fuse": ["bm25", "dpr"], "fusion": "sum"}}
    systems = json.dumps(fused | {"colbert": {}, "dpr": {}})  # fused ones wait for the others
    flags |= {"options": json.dumps(options), "systems": systems, "depth": 6}
    run("compare", *PASSAGES, **flags)
    return output


def test_a_query_never_finds_itself_and_all_find_as_many(results: Path, arguana: Path):
    split = load_collection(arguana).split("test")
    assert own_documents(load_collection(arguana).corpus, split) == set(split.queries)
    for name in ("colbert.retrieve", "dpr.retrieve", "colbert.rerank", "candidates"):
        found = read_run(results / "runs" / f"{name}.run")
        assert all(query not in scores for query, scores in found.items())
        assert "retrieve" not in name or {len(scores) for scores in found.values()} == {6}
    assert "4 queries are documents themselves" in (results / "report.html").read_text()
    assert len(read_run(results / "runs" / "bm25.retrieve.run")) == 4
    assert json.loads((results / "dpr" / "costs.json").read_text())["documents cut"] == 0


def test_fused_systems_are_fusions_of_the_runs(results: Path):
    runs = results / "runs"
    for stage in ("retrieve", "rerank"):
        parts = [read_run(runs / f"{name}.{stage}.run") for name in ("bm25", "colbert")]
        fused = fuse(parts, k=6 if stage == "retrieve" else None)  # written scores differ where scores tie
        written = read_run(runs / f"rrf.{stage}.run")
        assert {query: [*row] for query, row in written.items()} == {q: [*row] for q, row in fused.items()}
    told = json.loads((results / "sum" / "fusion.json").read_text())
    assert sum(told["weights"].values()) == pytest.approx(1)
    assert "sum: fusion (sum)" in (results / "report.html").read_text()
    assert "chosen on 4 dev queries" in told["chosen"]


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ({"fuse": ["bm25", "dpr"]}, r"fuse: \['bm25', 'dpr'\]; it fuses two or more of bm25, colbert"),
        ({"fuse": ["bm25", "colbert"], "weights": [1]}, "system mixed: 2 runs need as many weights"),
        ({"fuse": ["bm25", "colbert"], "fusion": "max"}, "fusion='max'; there are rrf, sum"),
        ({"fuse": ["bm25", "colbert"], "training": {}}, "training cannot be set for a fused system"),
        ({"paradigm": "dpr", "distil": {"loss": "kl"}}, "distil needs a teacher, one of bm25, colbert"),
        ({"paradigm": "dpr", "teacher": "mixed"}, "one of bm25, colbert; got 'mixed'"),
        ({"paradigm": "dpr", "teacher": "bm25"}, "a teacher scores hard negatives"),
        ({"paradigm": "dpr", "training": {"negatives": -1}}, "negatives"),
        ({"paradigm": "dsi", "teacher": "bm25"}, "only encoders that are trained here"),
    ],
)
def test_systems_that_cannot_be_are_refused(system: dict, message: str):
    with pytest.raises(SystemExit, match=message):
        compare.Settings(systems={"colbert": {}, "mixed": system})


@pytest.mark.slow
def test_a_system_learns_from_another_one(arguana: Path, tiny_bert: Path, tmp_path: Path):
    """The teacher scores each query's relevant document and hard negatives; other losses, other weights."""
    copy = shutil.copytree(arguana, tmp_path / "arguana")
    (copy / "qrels" / "dev.tsv").rename(copy / "qrels" / "train.tsv")
    taught = {"paradigm": "dpr", "teacher": "colbert", "distil": {"loss": "margin_mse", "weight": 1}}
    named = {"taught": taught, "colbert": {}, "dpr": {}}
    run(
        "compare",
        collection=copy,
        backbone=tiny_bert,
        negatives=2,
        options='{"document_length": 12}',
        output=tmp_path / "out",
        depth=6,
        systems=json.dumps(named),
        **SMALL,
    )
    collection = load_collection(copy)
    scores = read_run(tmp_path / "out" / "taught" / "training" / "teacher.run")
    assert scores
    assert all(len(row) == 3 for row in scores.values())
    teacher = load(tmp_path / "out" / "colbert" / "checkpoint")
    queries = collection.split("train").queries
    expected = retriever_of(teacher, collection.corpus, precision="no").rerank(queries, scores)
    assert_within_rounding(scores, expected, torch.float16, 1, scale=1)  # in which vectors are stored
    histories = [tmp_path / "out" / name / "training" / "history.jsonl" for name in ("taught", "dpr")]
    assert histories[0].read_text() != histories[1].read_text()


def test_dev_queries_choose_among_trainings_within_equal_seconds():
    """The limit is the encoder's own, and the untrained state is no training."""
    named = {name: {"paradigm": "dpr"} for name in ("dpr", "hard", "slow", "late")}
    named |= {"colbert": {}, "layers": {"paradigm": "colbert", "training": {"trained_layers": 2}}, "coil": {}}
    dev = {"dpr": {0: 0.5, 960: 0.6}, "hard": {0: 0.5, 960: 0.7}, "slow": {0: 0.5, 100: 0.55, 960: 0.9}}
    dev |= {"late": {0: 0.99, 960: 0.9}, "colbert": {0: 0.7, 960: 0.8}, "layers": {0: 0.7, 960: 0.9}}
    dev["coil"] = {0: 0.1, 960: 0.2}
    points = {name: {at: [np.array([y, y])] for at, y in curve.items()} for name, curve in dev.items()}
    seconds = {"dpr": 10, "hard": 12, "slow": 100, "late": 16, "colbert": 40, "layers": 50, "coil": 1}
    labels = {name: f"{name} here" for name in named}
    rows = {label: {"RR@10": Cell(0.5, 0.4, 0.6)} for label in labels.values()}
    table = ResultTable("", ["RR@10"], rows, [], "")
    (section,) = choices(Learning(points, seconds), table, labels, Settings(systems=named))
    columns = ("system", "nDCG@10, dev", "dev − chosen")
    assert [[row[column].split(" [")[0] for column in columns] for row in section.rows] == [
        ["dpr here", "0.600", "-0.100"],
        ["hard here", "0.700", "chosen"],
        ["slow here", "0.550", "-0.150"],
        ["late here", "–", "–"],
        ["colbert here", "0.800", "-0.100"],
        ["layers here", "0.900", "chosen"],
    ]


def test_an_index_of_passages_reranks_as_the_comparison_does(results: Path, arguana: Path, tmp_path: Path):
    common = {"checkpoint": results / "colbert" / "checkpoint", "collection": arguana}
    run("encode", **common, output=tmp_path / "encoded", passages=5, parts=3, part=1)
    run("encode", **common, output=tmp_path / "encoded", passages=5, parts=3)
    assert len(list((tmp_path / "encoded").glob("index-*-of-3"))) == 3
    before = results / "runs" / "candidates.run"
    again = common | {"run": before, "index": tmp_path / "encoded", "output": tmp_path / "out"}
    run("rerank", *PASSAGES, **again)
    expected = read_run(results / "runs" / "colbert.rerank.run")
    found = read_run(tmp_path / "out" / "reranked.run")
    assert_within_rounding({query: found[query] for query in expected}, expected, torch.float16, 1, scale=1)
    (tmp_path / "dev.run").write_text("d0 Q0 d1 1 2.0 x\nd0 Q0 d2 2 1.0 x\nd2 Q0 d3 1 1.0 x\n")
    run("rerank", *PASSAGES, **again, fuse="sum", dev_run=tmp_path / "dev.run")
    assert "fused (sum of 0.5 and 0.5)" in (tmp_path / "out" / "table.md").read_text()
    assert read_run(tmp_path / "out" / "fused.run") == fuse([read_run(before), found], [0.5, 0.5], "sum")
    with pytest.raises(SystemExit, match="fuse sum chooses its weights on dev"):
        run("rerank", **again, fuse="sum")
    with pytest.raises(SystemExit, match="holds passages of 5 words, not 0"):
        run("rerank", **again)
