"""experiments/alignment_directions.py end to end on a tiny T5; its rankings against slow twins, its claims
about planted numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import alignment_directions
import numpy as np
import pytest
import torch
from alignment_directions import (
    BACKWARD,
    CHANCE,
    FORWARD,
    MEASURES,
    POOLINGS,
    SCORERS,
    Results,
    by_chance,
    claims,
    differences,
    generative_runs,
    rankings,
    variant,
)
from studies import trained_pairs
from studies.pages import write_rows
from studies.trained_pairs import Bench, PairSettings, open_bench, some_queries, trained_pair

from paradigms import Generative, Paradigm, load
from paradigms.evaluate import holm, paired_test, per_query
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.settings import from_command_line
from paradigms.train import checkpoint
from tests.tiny import WORDS
from tests.tiny_generative import generative, texts

SPAN = 4
Pair = tuple[Paradigm, Generative]


def write_collection(folder: Path) -> Path:
    """Forty documents of 6 to 25 words; a query is four words of one."""
    words, random = WORDS.split(), np.random.default_rng(0)
    documents = [list(random.choice(words, 6 + n // 2)) for n in range(40)]
    rows = [{"_id": f"d{n}", "title": "", "text": " ".join(text)} for n, text in enumerate(documents)]
    queries = [{"_id": f"q{n}", "text": " ".join(random.choice(t, 4))} for n, t in enumerate(documents)]
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", rows), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for split, chosen in (("train", range(30)), ("test", range(30, 40))):
        judged = "".join(f"q{n}\td{n}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def arguments(collection: Path, backbone: Path, folder: Path, **changes: object) -> list[str]:
    flags = {
        "collection": collection,
        "backbone": backbone,
        "models": folder / "models",
        "output": folder / "results",
        "seeds": "[0,1]",
        "steps": 2,
        "batch_size": 4,
        "query_length": 8,
        "document_length": 16,
        "span": SPAN,
        "depth": 6,
        "queries": 8,
        "tracker": "none",
    } | changes
    return [f"--{name}={value}" for name, value in flags.items()]


def run(experiment: Any, given: list[str]) -> None:
    experiment.main(from_command_line(experiment.Settings, "", given))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("collection") / "words")


@pytest.fixture(scope="module")
def finished(collection: Path, seq2seq: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("directions")
    run(alignment_directions, arguments(collection, seq2seq["t5"], folder))
    return folder


@pytest.fixture(scope="module")
def bench(collection: Path, finished: Path, seq2seq: dict[str, Path]) -> Bench:
    return open_bench(settings(collection, seq2seq["t5"], finished), trained_pairs.Console(quiet=True))


def settings(collection: Path, backbone: Path, folder: Path) -> Any:
    return from_command_line(alignment_directions.Settings, "", arguments(collection, backbone, folder))


@pytest.fixture(scope="module")
def pair(finished: Path) -> Pair:
    folder = finished / "models" / "seed-0"
    mvdr, model = load(folder / "colbert" / "checkpoint"), load(folder / "seal" / "checkpoint")
    assert isinstance(mvdr, Paradigm)
    assert isinstance(model, Generative)
    return mvdr.eval(), model.eval()


# --- the whole --------------------------------------------------------------------------------------


def test_it_leaves_tables_and_figures(finished: Path) -> None:
    folder = finished / "results"
    for name in ("claims", "table5", "differences"):
        rows = json.loads((folder / f"{name}.json").read_text())
        assert len((folder / f"{name}.md").read_text().splitlines()) == len(rows) + 2
        assert len((folder / f"{name}.csv").read_text().splitlines()) == len(rows) + 1
    assert {row["system"] for row in json.loads((folder / "table5.json").read_text())} == {
        *("BM25", CHANCE, FORWARD, *BACKWARD),
        *(variant(scorer, way) for scorer in SCORERS for way in POOLINGS),
    }
    verdicts = {row["verdict"] for row in json.loads((folder / "claims.json").read_text())}
    assert verdicts <= {"reproduced", "not reproduced", "out of reach at this scale"}
    assert (folder / "table5.png").read_bytes().startswith(b"\x89PNG")
    assert "Alignment directions" in (folder / "report.html").read_text()


def test_what_is_there_is_not_done_again(
    finished: Path, collection: Path, seq2seq: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained or measured again")

    for name in ("fit", "fit_generative"):
        monkeypatch.setattr(trained_pairs, name, never)
    monkeypatch.setattr(alignment_directions, "measure", never)
    run(alignment_directions, arguments(collection, seq2seq["t5"], finished))
    with pytest.raises(AssertionError, match="again"):  # another seed is trained
        run(alignment_directions, arguments(collection, seq2seq["t5"], finished, seeds="[0,1,2]"))


def test_results_of_other_settings_are_refused(
    finished: Path, collection: Path, seq2seq: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="depth: 6 then, 7 now"):
        run(alignment_directions, arguments(collection, seq2seq["t5"], finished, depth=7))
    with pytest.raises(SystemExit, match="steps: 2 then, 3 now"):  # the models are others
        run(alignment_directions, arguments(collection, seq2seq["t5"], finished, steps=3, output=tmp_path))
    twice = arguments(collection, seq2seq["t5"], tmp_path, seeds="[1,1]")
    with pytest.raises(SystemExit, match="seeds must be different"):
        run(alignment_directions, twice)


def test_both_models_see_as_many_queries(finished: Path, bench: Bench, pair: Pair) -> None:
    share = trained_pairs.query_share(pair[1], bench, 0)
    # Ten spans for each of 27 training queries (three are dev queries), three passages of each document.
    assert share == pytest.approx(270 / (270 + 120))
    models = finished / "models/seed-0"
    steps = {name: checkpoint.steps(models / name / "training")[-1] for name in ("colbert", "seal")}
    assert steps == {"colbert": 2, "seal": round(2 / share)}


def test_the_small_t5_is_trained_from_where_there_is_no_other(collection: Path, tmp_path: Path) -> None:
    given = arguments(collection, Path("small"), tmp_path, vocabulary=200, width=16, layers=1, steps=1)
    own: PairSettings = from_command_line(alignment_directions.Settings, "", given)
    console = trained_pairs.Console(quiet=True)
    accelerator = trained_pairs.Accelerator(cpu=True)
    mvdr, model = trained_pair(0, open_bench(own, console), own, accelerator, console)
    assert (model.width, mvdr.encoder.backbone.config.dropout_rate) == (16, 0.0)
    assert mvdr.encoder.tokenizer.get_vocab() == model.tokenizer.get_vocab()


def test_the_test_queries_are_drawn_by_their_ids(bench: Bench) -> None:
    assert len(bench.test.queries) == 8
    again = some_queries(bench.collection.split("test"), 8)
    assert again.queries == bench.test.queries
    assert len(some_queries(bench.test, 0).queries) == 8


# --- rankings ---------------------------------------------------------------------------------------


def test_directions_against_loops_over_tokens(bench: Bench, pair: Pair) -> None:
    mvdr, model = pair
    corpus, pool = bench.collection.corpus, bench.pool(bench.test, 4)
    runs = rankings(mvdr, model, bench.test, pool, corpus)
    for query, candidates in pool.items():
        q = mvdr.encode_queries([bench.test.queries[query]])
        for id in candidates:
            d = mvdr.encode_documents([corpus[corpus.position(id)]])
            own = d.vectors[0, 0][d.mask[0, 0]].half().float()  # as the index stores them
            S = own @ q.vectors[0, 0][q.mask[0, 0]].T
            for system, rel in (
                (FORWARD, S.max(0).values.mean()),
                ("MVDR (q←d), Z = 1", S.max(1).values.sum()),
                ("MVDR (q←d), Z = M", S.max(1).values.mean()),
            ):
                assert runs[system][query][id] == pytest.approx(float(rel), abs=1e-3), system
        assert runs["BM25"][query] == candidates


def test_windows_are_scored_as_the_retriever_does(seq2seq: dict[str, Path]) -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(5, 300, 2 + 3 * n).tolist() for n in range(6)]
    settings: dict[str, Any] = {"decode": "spans", "span": SPAN, "query_length": 8}
    queries = {"a": "wind and snow", "b": "the lazy fox"}
    pool = {"a": {f"d{n}": 0.0 for n in range(6)}, "b": {"d1": 0.0, "d4": 0.0}}
    runs = generative_runs(generative(seq2seq["t5"], texts(rows), **settings), queries, pool)
    for scorer in SCORERS:
        for names in POOLINGS:
            model = generative(seq2seq["t5"], texts(rows), **settings, score=scorer, names=names)
            expected = GenerativeRetriever(model).rerank(queries, pool)
            for query, scores in expected.items():
                assert runs[variant(scorer, names)][query] == pytest.approx(scores, abs=1e-9)


# --- claims about planted numbers -------------------------------------------------------------------


def planted(**means: float) -> Results:
    """Two seeds of 60 queries with this share of RR@10 = 1, each query right wherever a worse system is."""
    order = np.linspace(0, 1, 60, endpoint=False)
    values, dev = {}, {}
    for name in (FORWARD, *BACKWARD, *(variant(s, w) for s in SCORERS for w in POOLINGS)):
        key = "forward" if name == FORWARD else "backward" if name in BACKWARD else "generative"
        values[name] = {m: np.tile((order < means[key]).astype(float), (2, 1)) for m in MEASURES}
        dev[name] = means[key]
    values[CHANCE] = {m: np.full((2, 60), 0.05) for m in MEASURES}
    dev[variant("log_probability", "best")] += 0.01  # chosen, and not the paper's logit
    return Results(values, dev)


def verdicts(results: Results) -> list[str]:
    return [row["verdict"] for row in claims(results)]


def test_verdicts_follow_the_numbers() -> None:
    yes, no, far = "reproduced", "not reproduced", "out of reach at this scale"
    # q→d over q←d, then two statements about each of two variants of GR.
    assert verdicts(planted(forward=0.9, backward=0.6, generative=0.2)) == [yes] * 5 + [far]
    # q←d below GR stands between no more.
    assert verdicts(planted(forward=0.9, backward=0.2, generative=0.6)) == [yes, yes, no, yes, no, far]
    assert verdicts(planted(forward=0.2, backward=0.6, generative=0.9)) == [no] * 5 + [far]
    # No difference anywhere, and one that is too small to be told from chance.
    for forward in (0.5, 0.52):
        assert verdicts(planted(forward=forward, backward=0.5, generative=0.5)) == [no] * 5 + [far]


def test_a_model_that_learned_nothing_is_not_compared() -> None:
    found = claims(planted(forward=0.9, backward=0.6, generative=0.06))
    assert [row["verdict"] for row in found] == ["reproduced", *["out of reach at this scale"] * 5]
    found = claims(planted(forward=0.06, backward=0.9, generative=0.9))
    assert {row["verdict"] for row in found} == {"out of reach at this scale"}


def test_chance_is_the_mean_over_orders() -> None:
    pool = {"a": {f"d{n}": 0.0 for n in range(12)}, "b": {"d0": 0.0, "d1": 0.0, "d2": 0.0}}
    judgements = {"a": {"d3": 1, "d7": 2, "d8": 0}, "b": {"d0": 1}}
    found = by_chance(pool, judgements, ["a", "b"])
    random, sums = np.random.default_rng(0), np.zeros((3, 2))
    for _ in range(4000):
        run = {q: dict(zip(of, random.random(len(of)).tolist(), strict=True)) for q, of in pool.items()}
        measured = per_query(run, judgements, MEASURES)
        sums += [measured.values[m] for m in MEASURES]
    np.testing.assert_allclose([found[m] for m in MEASURES], sums / 4000, atol=0.02)
    assert found["RR@10"][1] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_dev_queries_choose_the_variants() -> None:
    results = planted(forward=0.9, backward=0.6, generative=0.2)
    first, second = BACKWARD
    results.values[first]["RR@10"][:] = 1.0  # better on test queries
    results.dev[second] = 0.7  # better on dev queries
    results.dev[variant("centred_logit", "mean")] = 0.3
    text = json.dumps(claims(results), ensure_ascii=False)
    assert second in text
    assert first not in text
    assert "GR, centred logit, mean window" in text
    assert "GR, logit, best window" in text
    assert "log probability" not in text


def test_all_tests_are_one_family() -> None:
    results = planted(forward=0.9, backward=0.6, generative=0.55)
    found = differences(results)
    assert len(found) == 8 + 12
    p = [
        paired_test(results.values[d.system]["RR@10"].mean(0), results.values[d.other]["RR@10"].mean(0))
        for d in found
    ]
    assert [d.p_adjusted for d in found] == holm(p)
    assert found[0].interval.mean == pytest.approx(0.3)


def test_rows_as_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "t", [{"a": "x|y", "b": 1.5}])
    assert (tmp_path / "t.md").read_text() == "| a | b |\n| --- | --- |\n| x\\|y | 1.5 |\n"
    assert (tmp_path / "t.csv").read_text() == "a,b\nx|y,1.5\n"
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": "x|y", "b": 1.5}]


def test_models_are_left_in_evaluation_mode(pair: Pair) -> None:
    assert not any(model.training for model in pair)
    assert torch.is_grad_enabled()
