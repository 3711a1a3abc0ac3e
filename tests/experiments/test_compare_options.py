"""Options of the comparison that users of BEIR ask for: identical ids, passages and fused systems."""

import json

import numpy as np
import pytest
import torch
from compare import Settings
from studies.learning import Learning, choices

from paradigms.cli.arguments import main
from paradigms.data import load_collection, read_run
from paradigms.data.identical import own_documents
from paradigms.evaluate.table import Cell, ResultTable
from paradigms.retrieve import fuse
from tests import needs
from tests.experiments.scripts import run
from tests.near import assert_within_rounding
from tests.tiny import WORDS as TEXT

WORDS = TEXT.split()
PASSAGES = ["--passages", "5", "--best_passages", "2"]


@pytest.fixture(scope="module")
def arguana(tmp_path_factory):
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
def results(arguana, tiny_bert, tmp_path_factory):
    output = tmp_path_factory.mktemp("results") / "compare"
    options = {"query_length": 8, "document_length": 12}
    flags = {"collection": arguana, "backbone": tiny_bert, "output": output, "steps": 0, "tracker": "none"}
    fused = {"rrf": {"fuse": ["bm25", "colbert"]}, "sum": {"fuse": ["bm25", "dpr"], "fusion": "sum"}}
    systems = json.dumps(fused | {"colbert": {}, "dpr": {}})  # fused ones wait for the others
    flags |= {"options": json.dumps(options), "systems": systems, "depth": 6}
    run("compare", *PASSAGES, **flags)
    return output


def test_a_query_never_finds_itself_and_all_find_as_many(results, arguana):
    split = load_collection(arguana).split("test")
    assert own_documents(load_collection(arguana).corpus, split) == set(split.queries)
    for name in ("colbert.retrieve", "dpr.retrieve", "colbert.rerank", "candidates"):
        hits = read_run(results / "runs" / f"{name}.run")
        assert all(query not in scores for query, scores in hits.items())
        assert "retrieve" not in name or {len(scores) for scores in hits.values()} == {6}
    assert "4 queries are documents themselves" in (results / "report.html").read_text()
    assert len(read_run(results / "runs" / "bm25.retrieve.run")) == 4


def test_fused_systems_are_fusions_of_the_runs(results):
    runs = results / "runs"
    for stage in ("retrieve", "rerank"):
        parts = [read_run(runs / f"{name}.{stage}.run") for name in ("bm25", "colbert")]
        fused = fuse(parts, k=6 if stage == "retrieve" else None)  # written scores differ where scores tie
        written = read_run(runs / f"rrf.{stage}.run")
        assert {query: [*row] for query, row in written.items()} == {q: [*row] for q, row in fused.items()}
    told = json.loads((results / "sum" / "fusion.json").read_text())
    assert sum(told["weights"].values()) == pytest.approx(1)


def test_dev_queries_choose_among_trainings_within_equal_seconds():
    """The limit is the encoder's own, and the untrained state is no training."""
    named = {name: {"paradigm": "dpr"} for name in ("dpr", "hard", "slow", "late")}
    named |= {"colbert": {}, "layers": {"paradigm": "colbert", "training": {"trained_layers": 2}}}
    dev = {"dpr": {0: 0.5, 960: 0.6}, "hard": {0: 0.5, 960: 0.7}, "slow": {0: 0.5, 100: 0.55, 960: 0.9}}
    dev |= {"late": {0: 0.99, 960: 0.9}, "colbert": {0: 0.7, 960: 0.8}, "layers": {0: 0.7, 960: 0.9}}
    points = {name: {at: [np.array([y, y])] for at, y in curve.items()} for name, curve in dev.items()}
    seconds = {"dpr": 10, "hard": 12, "slow": 100, "late": 16, "colbert": 40, "layers": 50}
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


def test_an_index_of_passages_reranks_as_the_comparison_does(results, arguana, tmp_path):
    common = {"checkpoint": results / "colbert" / "checkpoint", "collection": arguana}
    run("encode", **common, output=tmp_path / "encoded", passages=5, parts=3, part=1)
    run("encode", **common, output=tmp_path / "encoded", passages=5, parts=3)
    assert len(list((tmp_path / "encoded").glob("index-*-of-3"))) == 3
    before = results / "runs" / "candidates.run"
    again = common | {"run": before, "index": tmp_path / "encoded", "output": tmp_path / "out"}
    run("rerank", *PASSAGES, **again, fuse="rrf")
    expected = read_run(results / "runs" / "colbert.rerank.run")
    hits = read_run(tmp_path / "out" / "reranked.run")
    assert_within_rounding({query: hits[query] for query in expected}, expected, torch.float16, 1, scale=1)
    fused = read_run(tmp_path / "out" / "fused.run")  # written scores differ where scores tie
    expected = fuse([read_run(before), hits])
    assert {query: [*row] for query, row in fused.items()} == {q: [*row] for q, row in expected.items()}
    with pytest.raises(SystemExit, match="holds passages of 5 words, not 0"):
        run("rerank", **again)


@needs.clickhouse
def test_an_engines_index_is_compared_with_its_first_stage(results, arguana, tmp_path_factory, tmp_path):
    checkpoint = results / "colbert" / "checkpoint"
    engine = f"clickhouse:{tmp_path_factory.getbasetemp() / 'clickhouse'}"
    options = json.dumps({"database": "compared", "first": "bm25", "candidates": 6})
    built = ["index", str(arguana), "--output", str(tmp_path / "index"), "--model", str(checkpoint)]
    main([*built, "--engine", engine, "--engine-options", options])
    mine = {"checkpoint": str(checkpoint), "index": str(tmp_path / "index")}
    systems = json.dumps({"mine": mine, "both": {"fuse": ["bm25", "mine"]}})
    flags = {"collection": arguana, "output": tmp_path / "out", "systems": systems, "depth": 6, "steps": 0}
    run("compare", **flags, tracker="none")
    for name in ("mine", "both"):
        assert json.loads((tmp_path / "out" / name / "costs.json").read_text())["bytes/document"] is None
    hits, first = (read_run(tmp_path / "out" / "runs" / f"{name}.retrieve.run") for name in ("mine", "bm25"))
    assert {query: set(scores) for query, scores in hits.items()} == {q: set(s) for q, s in first.items()}
    with pytest.raises(SystemExit, match="other documents, or passages of other words"):
        run("compare", *PASSAGES, **flags | {"output": tmp_path / "other"}, tracker="none")
