"""experiments/alignment_adaptation.py end to end on a tiny encoder; its claims about planted numbers."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import alignment_adaptation
import numpy as np
import pytest
from studies import adaptation_claims
from studies.adaptation_claims import Task, claim, claims
from studies.adaptation_report import describe

from paradigms.data import load, read_run
from paradigms.evaluate import Interval, per_query
from paradigms.evaluate.adaptation import adapt, best, best_if_significant
from paradigms.index import ExactIndex
from paradigms.index.strategies import STRATEGIES
from paradigms.io.settings import from_command_line
from tests.tiny import WORDS

NAMES = list(STRATEGIES)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of 5 to 120 words; a query is four words of one."""
    folder, words = tmp_path_factory.mktemp("words"), WORDS.split()
    random = np.random.default_rng(0)
    texts = [list(random.choice(words, 5 + 2 * n)) for n in range(58)]
    documents = [{"_id": f"d{n}", "title": "", "text": " ".join(text)} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(random.choice(t, 4))} for n, t in enumerate(texts)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    for split, chosen in (("train", range(30)), ("test", range(30, 58))):
        lines = "".join(f"q{n}\td{n}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


def run(collection: Path, backbone: Path, output: Path, **changes: object) -> None:
    flags = {
        "collections": f'["{collection}"]',
        "backbone": backbone,
        "output": output,
        "steps": 2,
        "batch_size": 4,
        "evaluate_every": 2,
        "query_length": 8,
        "document_length": 16,
        "indexed_length": 128,
        "depth": 12,
        "queries": 20,
        "shots": "[1, 4, 8, 64]",
        "levels": "[0.5]",
        "seeds": "[0]",
        "precision": "no",
        "tracker": "none",
    } | changes
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    alignment_adaptation.main(from_command_line(alignment_adaptation.Settings, "", arguments))


@pytest.fixture(scope="module")
def results(collection: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "adaptation"
    run(collection, tiny_bert, output, trained_with='["k=1", "k=4"]')
    return output


def measures(results: Path, collection: Path, own: str = "k=1", seed: int = 0) -> dict[str, Any]:
    return json.loads((results / collection.name / own / f"seed-{seed}" / "measures.json").read_text())


def test_the_measures_are_those_of_separate_reranks(results: Path, collection: Path, tmp_path: Path) -> None:
    folder = results / collection.name / "k=4" / "seed-0"
    paradigm = alignment_adaptation.with_document_length(folder / "checkpoint", 128)
    assert paradigm.recipe.align_knobs == {"k": 4}
    assert paradigm.encoder.settings.document_length == 128
    data = load(collection)
    index = ExactIndex.build(paradigm, data.corpus.ids, data.corpus, tmp_path / "index")
    test, pool = data.split("test"), read_run(folder / "candidates.run")
    found = measures(results, collection, "k=4")
    assert len(pool) == len(found["queries"]) == 20
    assert set(found["queries"]) < set(test.queries)
    queries = {query: test.queries[query] for query in found["queries"]}
    searched = index.search(paradigm, queries, 12)
    assert {q: set(scores) for q, scores in searched.items()} == {q: set(s) for q, s in pool.items()}
    judgements = {query: test.judgements[query] for query in found["queries"]}
    for name in ("k=1", "k=8", "p=2%"):
        align, knobs = STRATEGIES[name]
        reranked = index.rerank(paradigm.with_alignment(align, **knobs), queries, pool)
        expected = per_query(reranked, judgements, ("nDCG@10",)).values["nDCG@10"]
        assert found["values"][name] == pytest.approx(expected.tolist())
    lengths = np.diff(index.offsets)
    assert found["several"]["p=2%"] == pytest.approx((lengths >= 100).mean())
    assert 0 < found["several"]["p=2%"] < 1
    assert found["several"]["k=1"] == 0
    assert not (folder / "index").exists()


def test_the_tables_hold_every_fold(results: Path, collection: Path) -> None:
    with (results / "adaptation.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    wanted = [row for row in rows if (row["trained_with"], row["rule"], row["shots"]) == ("k=4", "best", "8")]
    values = np.array(list(measures(results, collection, "k=4")["values"].values()))
    expected = adapt(values, 8, best, default=NAMES.index("k=4"))
    assert [row["chosen"] for row in wanted] == [NAMES[n] for n in expected.chosen]
    assert [float(row["adapted"]) for row in wanted] == pytest.approx(expected.adapted.tolist())
    assert [float(row["default"]) for row in wanted] == pytest.approx(expected.default.tolist())
    assert not np.allclose(values[0], values[NAMES.index("k=4")])  # else it might be another default
    assert {row["shots"] for row in rows} == {"1", "4", "8"}  # 64 shots leave no query of 20
    with (results / "strategies.csv").open() as stream:
        means = {
            (row["trained_with"], row["strategy"]): float(row["nDCG@10"]) for row in csv.DictReader(stream)
        }
    assert len(means) == 2 * len(NAMES)
    assert means["k=4", "k=2"] == pytest.approx(values[NAMES.index("k=2")].mean())
    page = (results / "report.html").read_text()
    assert all(
        word in page
        for word in ("Few-shot adaptation", "The same from k=8", "out of reach", "p ≤ 0.5", "image/png")
    )
    assert all((results / name).stat().st_size > 10_000 for name in ("figure4.png", "figure5.png"))


def test_an_interrupted_run_goes_on_and_seeds_may_be_added(
    results: Path, collection: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "again"
    shutil.copytree(results, output)
    folder = output / collection.name / "k=1" / "seed-0"
    before = measures(output, collection)
    (folder / "measures.json").unlink()
    candidates = (folder / "candidates.run").read_bytes()
    monkeypatch.setattr(alignment_adaptation, "fit", lambda *_: pytest.fail("the checkpoint was there"))
    monkeypatch.setattr(ExactIndex, "search", lambda *_: pytest.fail("the candidates were there"))
    run(collection, tiny_bert, output)
    assert (folder / "candidates.run").read_bytes() == candidates
    assert measures(output, collection)["values"] == before["values"]
    monkeypatch.undo()
    run(collection, tiny_bert, output, seeds="[1]")
    assert measures(output, collection)["values"] == before["values"]
    assert measures(output, collection, seed=1)["queries"] == before["queries"]
    assert "2 training seed(s)" in (output / "report.html").read_text()  # what was there stays in the report
    with pytest.raises(SystemExit, match=r"other settings \(depth: 12 then, 13 now\)"):
        run(collection, tiny_bert, output, depth=13)


def test_a_checkpoint_is_taken_as_it_is(
    results: Path, collection: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    saved = results / collection.name / "k=4" / "seed-0" / "checkpoint"
    run(collection, tiny_bert, tmp_path / "out", checkpoint=saved)
    found = measures(tmp_path / "out", collection, "k=4")
    assert found["values"] == measures(results, collection, "k=4")["values"]
    assert not (tmp_path / "out" / collection.name / "k=4" / "seed-0" / "training").exists()


def test_wrong_settings_are_named(collection: Path, tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="unknown alignment k=3; there are k=1, k=2"):
        run(collection, tiny_bert, tmp_path / "a", trained_with='["k=3"]')
    for name in ("collections", "trained_with", "seeds"):
        with pytest.raises(SystemExit, match=f"{name} must name at least one"):
            run(collection, tiny_bert, tmp_path / "a", **{name: "[]"})
    with pytest.raises(SystemExit, match="a level must lie in"):
        run(collection, tiny_bert, tmp_path / "a", levels="[0.0]")
    with pytest.raises(SystemExit, match="--checkpoint: "):
        run(collection, tiny_bert, tmp_path / "a", checkpoint=tmp_path)
    untrained = shutil.copytree(collection, tmp_path / "untrained")
    (untrained / "qrels" / "train.tsv").unlink()
    with pytest.raises(SystemExit, match="untrained, k=1, seed 0: there are no training queries: take --ch"):
        run(untrained, tiny_bert, tmp_path / "b")


def planted(name: str, own: str, means: list[float], noise: float = 0.05, queries: int = 200) -> Task:
    """One model whose strategies differ by `means`."""
    random = np.random.default_rng(len(name))
    base = random.random(queries) * 0.2
    values = np.array([base + mean + random.normal(0, noise, queries) for mean in means])
    default = NAMES.index(own)
    adapted, from_wrong = (
        {
            (rule, shots): [adapt(values, shots, function, start)]
            for rule, function in (("best", best), ("p ≤ 0.05", best_if_significant))
            for shots in (8, 16)
        }
        for start in (default, 4)
    )
    several = dict.fromkeys(NAMES, 0.5)
    return Task(name, own, NAMES, values[None], default, several, adapted, 4, from_wrong)


LIKE_THE_PAPER = [0.70, 0.69, 0.65, 0.61, 0.56, 0.71, 0.69, 0.67, 0.63]


def test_claims_read_the_sign_of_the_interval() -> None:
    assert claim("x", -1.6, Interval(-0.02, -0.03, -0.01))["verdict"] == "holds"
    assert claim("x", -1.6, Interval(0.02, 0.01, 0.03))["verdict"] == "contrary"
    assert claim("x", 0.7, Interval(0.02, 0.01, 0.03)) == {
        "claim": "x",
        "the paper": "+0.007",
        "measured": "+0.020 [+0.010, +0.030]",
        "verdict": "holds",
    }
    assert claim("x", 0.7, Interval(0.02, -0.01, 0.03))["verdict"] == "undecided"
    assert claim("x", 0.0, Interval(0.02, -0.01, 0.03))["verdict"] == "holds"
    assert claim("x", 0.0, Interval(0.02, 0.01, 0.03))["verdict"] == "contrary"


def test_planted_effects_get_their_verdicts() -> None:
    like = planted("scifact", "k=1", LIKE_THE_PAPER)
    unlike = planted("nfcorpus", "k=1", [0.3, 0.4, 0.5, 0.6, 0.7, 0.3, 0.3, 0.3, 0.3])
    steep = planted("squad_v1_dev", "k=1", [0.5, 0.45, 0.2, 0.15, 0.1, 0.5, 0.4, 0.3, 0.2])
    four = planted("scifact", "k=4", [0.70, 0.71, 0.70, 0.69, 0.68, 0.70, 0.67, 0.66, 0.65])
    rows = claims([like, unlike, steep, four])
    verdicts = {row["claim"]: row["verdict"] for row in rows}
    assert verdicts["scifact, k=1: k=8 against k=1"] == "holds"
    assert (
        verdicts["scifact, k=1: 8 examples against the default"] == "contrary"
    )  # p=.5% is better, and found
    assert verdicts["nfcorpus, k=1: k=8 against k=1"] == "contrary"
    assert verdicts["squad_v1_dev, k=1 (paper: NQ): k=8 against k=1"] == "holds"
    more = [row for row in rows if "a larger share" in row["claim"]]
    assert [row["verdict"] for row in more] == ["holds", "holds"]
    means = steep.values[0].mean(axis=1)
    assert more[0]["measured"].startswith(f"{means[NAMES.index('k=4')] / means[0] - 1:+.1%} [")
    assert verdicts["scifact: training with k = 4 in place of k = 1 moves k = 8 − k = 1 by"] == "holds"
    assert sum(verdict == "out of reach" for verdict in verdicts.values()) == 4
    careful = next(row for row in rows if "adapting only when" in row["claim"])
    assert careful["the paper"] == "not in the paper"


def test_the_careful_rule_is_said_to_lose_where_it_does() -> None:
    task = planted("scifact", "k=1", LIKE_THE_PAPER)
    lost = task.adapted["p ≤ 0.05", 8][0]
    task.adapted["p ≤ 0.05", 8] = [type(lost)(8, lost.chosen, lost.default - 0.01, lost.default, lost.oracle)]
    (row,) = adaptation_claims.careful([task])
    assert row["verdict"] == "contrary"
    means = task.values[0].mean(axis=1)
    assert "no loss in 1 of 2" in row["measured"]
    assert "worst -0.0100 [-0.0100, -0.0100] (scifact, k=1, 8 shots)" in row["measured"]
    assert row["measured"].endswith(f"{0.05 * (means[0] - means.min()):.4f}")


def test_sixteen_examples_are_compared_with_eight() -> None:
    """A strategy that is better on most queries by little: found more often with more examples."""
    task = planted("scifact", "k=1", LIKE_THE_PAPER)
    (row,) = adaptation_claims.sixteen([task])
    eight, more = (task.adapted["best", shots][0].gain for shots in (8, 16))
    assert row["measured"].startswith(f"{more.mean() - eight.mean():+.4f} ± ")
    assert row["measured"].endswith(f"deviation {eight.std():.4f}, then {more.std():.4f}")
    found = type(task.adapted["best", 8][0])
    flat = np.full(12, 0.5)
    for gains, verdict in (([0.0, 0.1], "holds"), ([0.1, 0.0], "contrary"), ([0.05, 0.05], "undecided")):
        for shots, gain, spread in zip((8, 16), gains, (0.02, 0.01), strict=True):
            noise = np.resize([-spread, spread], 12)
            task.adapted["best", shots] = [found(shots, np.zeros(12, int), flat + gain + noise, flat, flat)]
        (row,) = adaptation_claims.sixteen([task])
        assert row["verdict"] == verdict


def test_rows_of_a_section_have_the_same_keys() -> None:
    tasks = [planted("scifact", "k=1", LIKE_THE_PAPER), planted("other", "p=1%", LIKE_THE_PAPER)]
    for section in describe(tasks):
        assert len({tuple(row) for row in section.rows}) == 1, section.heading
        assert section.rows
    (kept,) = [
        section for section in describe(tasks) if section.heading.startswith("The same from k=8, as if sci")
    ]
    row = next(row for row in kept.rows if (row["shots"], row["rule"]) == (16, "p ≤ 0.05"))
    (found,) = tasks[0].from_wrong["p ≤ 0.05", 16]
    (plain,) = tasks[0].from_wrong["best", 16]
    assert row["changed"] == f"{np.mean(found.chosen != 4):.0%}"
    assert row["gains kept"] == f"{found.gain.clip(min=0).sum() / plain.gain.clip(min=0).sum():.0%}"
    assert plain.gain.mean() > 0.1
