"""experiments/salience_pruning.py and ALIGNER's full-scale configuration, end to end on tiny encoders."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from paradigms import Paradigm
from paradigms.data import load
from paradigms.evaluate import Interval, per_query
from paradigms.index import ExactIndex
from paradigms.io.settings import from_command_line
from tests.tiny import WORDS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def scripts() -> Iterator[None]:
    """Scripts find each other as when they are launched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS))
        yield


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_script", EXPERIMENTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str, **flags: object) -> None:
    module = script(name)
    given = [*arguments, *(f"--{k}={v}" for k, v in flags.items())]
    module.main(from_command_line(module.Settings, module.__doc__, given))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty documents of ten words; each query is three of a document's words."""
    folder, words = tmp_path_factory.mktemp("words"), WORDS.split()
    texts = [" ".join(words[(11 * n + 5 * w) % len(words)] for w in range(10)) for n in range(30)]
    documents = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(text.split()[4:7])} for n, text in enumerate(texts)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    for split, chosen in (("train", range(20)), ("test", range(20, 30))):
        lines = "".join(f"q{n}\td{n}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


def flags(collection: Path, backbone: Path, output: Path, **changes: object) -> dict[str, object]:
    return {
        "collection": collection,
        "backbone": backbone,
        "output": output,
        "methods": '["entropic", "relu", "hard", "l1", "first"]',
        "seeds": "[0]",
        "steps": 2,
        "batch_size": 4,
        "negatives": 1,
        "depth": 8,
        "query_length": 8,
        "document_length": 12,
        "precision": "no",
        "tracker": "none",
    } | changes


@pytest.fixture(scope="module")
def finished(
    scripts: None, collection: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    output = tmp_path_factory.mktemp("results") / "pruning"
    run("salience_pruning", **flags(collection, tiny_bert, output))
    return output


def test_every_model_and_pair_is_measured(finished: Path) -> None:
    with (finished / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    methods = ["entropic", "relu", "hard", "l1", "first"]
    pairs = {(row["query_keep"], row["document_keep"]) for row in rows}
    assert len(pairs) == 11
    assert len(rows) == len(methods) * len(pairs) * 2
    for method in methods:
        result = json.loads((finished / f"{method}-0" / "points.json").read_text())
        size = {point["document_keep"]: point["bytes/document"] for point in result["points"]}
        assert [size[d] for d in sorted(size)] == sorted(size.values())
        assert size[1.0] == result["bytes/document"]
        assert 0 < result["salient"] <= 1
        saved = Paradigm.from_pretrained(finished / f"{method}-0" / "checkpoint").encoder.settings
        assert saved.salience_l1 == (1.0 if method == "l1" else 0.0)
    page = (finished / "report.html").read_text()
    assert page.count("data:image/png") == 2
    claims = json.loads((finished / "claims.json").read_text())
    assert len(claims) == 12
    assert all(
        {"the paper says", "we measured", "verdict", "index alone"} == claim.keys() for claim in claims
    )
    assert {claim["verdict"] for claim in claims} <= {"holds", "does not hold", "undecided", "counted"}


def test_a_point_is_what_searching_and_reranking_give(
    finished: Path, collection: Path, tmp_path: Path
) -> None:
    """And its multiply-adds are those of the tokens that are there."""
    paradigm, data = Paradigm.from_pretrained(finished / "entropic-0" / "checkpoint"), load(collection)
    test = data.split("test")
    index = ExactIndex.build(paradigm, data.corpus.ids, data.corpus, tmp_path / "all")
    pruned = index.prune(0.2, tmp_path / "pruned")
    found = pruned.search(paradigm, test.queries, 8, keep=0.3)
    refined = index.rerank(paradigm, test.queries, found)
    result = json.loads((finished / "entropic-0" / "points.json").read_text())
    (point,) = (p for p in result["points"] if (p["query_keep"], p["document_keep"]) == (0.3, 0.2))
    for stage, of_stage in (("pruned", found), ("refined", refined)):
        measured = per_query(of_stage, test.judgements, ("nDCG@10", "R@100")).values
        assert {name: value.tolist() for name, value in measured.items()} == point[stage]
    lengths = [int(paradigm.encode_queries([q]).mask.sum()) for q in test.queries.values()]
    searching = sum(-(-3 * length // 10) for length in lengths) / len(lengths)
    expected = searching * int(pruned.offsets[-1]) * paradigm.encoder.dim
    assert point["search multiply-adds/query"] == pytest.approx(expected)
    whole = np.mean(lengths) * 8 * int(index.offsets[-1]) / len(index.ids) * paradigm.encoder.dim
    assert result["refine multiply-adds/query"] == pytest.approx(whole)


def test_finished_models_are_kept_and_seeds_may_be_added(
    finished: Path, collection: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "relu-0" / "points.json").stat().st_mtime_ns
    changed = flags(collection, tiny_bert, finished, methods='["relu", "eq5"]', seeds="[0, 1]")
    run("salience_pruning", **changed)
    assert "2 training seed(s)" in capsys.readouterr().out
    assert (finished / "relu-0" / "points.json").stat().st_mtime_ns == before
    assert (finished / "eq5-1" / "points.json").is_file()
    with pytest.raises(SystemExit, match=r"other settings \(steps: 2 then, 3 now\)"):
        run("salience_pruning", **(changed | {"steps": 3}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": '["soft"]'}, "unknown method soft; there are entropic"),
        ({"collection": "nowhere"}, "no collection 'nowhere'"),
        ({"batch_size": 64}, "entropic, seed 0: a batch of 64"),
        ({"document_keeps": "[0.0]"}, r"must lie in \(0, 1\]"),
        ({"seeds": "[]"}, "seeds must name at least one"),
    ],
)
def test_what_cannot_be_run_ends_with_a_line(
    scripts: None, collection: Path, tiny_bert: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        run("salience_pruning", **(flags(collection, tiny_bert, tmp_path / "out") | changes))


def test_verdicts_follow_the_intervals(scripts: None) -> None:
    report = script("salience_report")
    cases = {
        (-0.01, 0.01): ("holds", "undecided", "undecided", "holds"),
        (-0.05, -0.03): ("does not hold", "does not hold", "holds", "does not hold"),
        (-0.03, 0.01): ("undecided", "undecided", "undecided", "undecided"),
        (0.001, 0.019): ("holds", "holds", "does not hold", "holds"),
        (0.01, 0.05): ("holds", "holds", "does not hold", "undecided"),
        (0.03, 0.05): ("holds", "holds", "does not hold", "does not hold"),
    }
    judges = [report.similar, report.above, report.below, report.equal]
    for (low, high), expected in cases.items():
        interval = Interval((low + high) / 2, low, high)
        assert tuple(judge(interval) for judge in judges) == expected


def test_the_full_scale_configuration_trains_a_tiny_t5(
    collection: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Everything as in the file but for the backbone, the data and their amount."""
    config = EXPERIMENTS / "configs" / "aligner_full.yaml"
    less = {"collection": collection, "backbone": checkpoints["t5"], "output": tmp_path / "out", "steps": 2}
    less |= {"batch_size": 4, "evaluate_every": 1, "dev_queries": 2, "workers": 0, "precision": "no"}
    less |= {"tracker": "none"}
    run("train", "--config", str(config), **less)
    paradigm = Paradigm.from_pretrained(tmp_path / "out" / "checkpoint")
    settings = paradigm.encoder.settings
    assert (paradigm.recipe.name, paradigm.recipe.align) == ("aligner", "top_k")
    assert (settings.dim, settings.query_length, settings.document_length) == (128, 64, 256)
    assert (settings.query_ratio, settings.document_ratio, settings.eps) == (0.5, 0.4, 0.002)
    kept = json.loads((tmp_path / "out" / "config.json").read_text())
    assert kept["negatives"] == 1
