"""experiments/alignment_directions.py end to end on a tiny T5; the training that the studies share; rankings
against a slow twin; claims about planted numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import alignment_directions
import numpy as np
import pytest
from alignment_directions import (
    BACKWARD,
    CANDIDATES,
    CHANCE,
    FORWARD,
    GENERATIVE,
    MEASURES,
    TRAINED,
    WHOLE,
    by_chance,
    claims,
    rankings,
)
from rich.console import Console
from studies import trained_pairs
from studies.model_runs import Bench, open_bench, some_queries
from studies.trained_pairs import pairs_of, query_share

from paradigms import Generative, Paradigm, load
from paradigms.data import Problems
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED, judge
from paradigms.io.settings import from_command_line
from tests.tiny import WORDS

SPAN = 4


def write_collection(folder: Path) -> Path:
    """Forty documents of 6 to 25 words under titles of two; a query is four words of one."""
    words, random = WORDS.split(), np.random.default_rng(0)
    documents = [list(random.choice(words, 6 + n // 2)) for n in range(40)]
    titles = [" ".join(random.choice(words, 2)) for _ in documents]
    rows = [{"_id": f"d{n}", "title": titles[n], "text": " ".join(text)} for n, text in enumerate(documents)]
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
        "generative_steps": 3,
        "passages": 2,
        "passage_words": 4,
        "batch_size": 4,
        "query_length": 8,
        "document_length": 16,
        "span": SPAN,
        "depth": 6,
        "queries": 8,
        "division": "unseen",
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


def settings(collection: Path, backbone: Path, folder: Path, **changes: object) -> Any:
    given = arguments(collection, backbone, folder, **changes)
    return from_command_line(alignment_directions.Settings, "", given)


@pytest.fixture(scope="module")
def bench(collection: Path, finished: Path, seq2seq: dict[str, Path]) -> Bench:
    return open_bench(settings(collection, seq2seq["t5"], finished), Console(quiet=True))


@pytest.fixture(scope="module")
def pair(finished: Path) -> list[Any]:
    folder = finished / "models" / "seed-0"
    mvdr, model = load(folder / "colbert" / "checkpoint"), load(folder / "seal" / "checkpoint")
    assert isinstance(mvdr, Paradigm)
    assert isinstance(model, Generative)
    return [mvdr.eval(), model.eval()]


# --- the whole --------------------------------------------------------------------------------------


def test_it_leaves_tables_and_figures(finished: Path) -> None:
    folder = finished / "results"
    for name in ("claims", "table5"):
        rows = json.loads((folder / f"{name}.json").read_text())
        assert len((folder / f"{name}.md").read_text().splitlines()) == len(rows) + 2
        assert len((folder / f"{name}.csv").read_text().splitlines()) == len(rows) + 1
    systems = [row["system"] for row in json.loads((folder / "table5.json").read_text())]
    assert systems == ["BM25", FORWARD, *BACKWARD, *GENERATIVE, WHOLE, CHANCE]
    assert (folder / "table5.png").read_bytes().startswith(b"\x89PNG")
    assert "Alignment directions" in (folder / "report.html").read_text()


def test_what_is_there_is_not_done_again(
    finished: Path, collection: Path, seq2seq: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained or measured again")

    for name in ("fit", "fit_pairs"):
        monkeypatch.setattr(trained_pairs, name, never)
    monkeypatch.setattr(alignment_directions, "measure", never)
    (finished / "models/states").mkdir()  # what frozen encoders give, which is kept for the training alone
    run(alignment_directions, arguments(collection, seq2seq["t5"], finished))
    assert not (finished / "models/states").exists()
    assert "content of backbone" in json.loads((finished / "models/config.json").read_text())
    with pytest.raises(AssertionError, match="again"):  # another seed is trained
        run(alignment_directions, arguments(collection, seq2seq["t5"], finished, seeds="[0,1,2]"))


def test_results_of_other_settings_are_refused(
    finished: Path, collection: Path, seq2seq: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="depth: 6 then, 7 now"):
        run(alignment_directions, arguments(collection, seq2seq["t5"], finished, depth=7))
    with pytest.raises(SystemExit, match="steps: 2 then, 3 now"):  # the models are others
        run(alignment_directions, arguments(collection, seq2seq["t5"], finished, steps=3, output=tmp_path))
    with pytest.raises(SystemExit, match="seeds must be different"):
        settings(collection, seq2seq["t5"], tmp_path, seeds="[1,1]")
    with pytest.raises(SystemExit, match="passages must be at least 1"):
        settings(collection, seq2seq["t5"], tmp_path, passages=0)


def test_both_models_see_as_many_queries(
    finished: Path, bench: Bench, pair: list[Any], collection: Path, seq2seq: dict[str, Path]
) -> None:
    own = settings(collection, seq2seq["t5"], finished)
    share = query_share(pairs_of(pair[1], bench, own, 0, Problems()), bench)
    # Ten spans for each of 27 training queries (three are held out), three passages of each document.
    assert share == pytest.approx(270 / (270 + 120))
    models = finished / "models/seed-0"
    kept = {name: models / name / "training" / "cost.json" for name in ("colbert", "seal")}
    steps = {name: json.loads(file.read_text())["step"] for name, file in kept.items()}
    assert steps == {"colbert": 2, "seal": round(2 / share)}


def test_the_small_t5_is_trained_from_where_there_is_no_other(collection: Path, tmp_path: Path) -> None:
    own = settings(collection, Path("small"), tmp_path, vocabulary=200, width=16, layers=1, steps=1)
    console, accelerator = Console(quiet=True), trained_pairs.Accelerator(cpu=True)
    small: Any = trained_pairs.trained("colbert", 0, open_bench(own, console), own, accelerator, console)
    config = small.encoder.backbone.config
    assert (config.d_model, config.num_layers, config.dropout_rate) == (16, 1, 0.0)


def test_the_test_queries_are_drawn_by_their_ids(bench: Bench) -> None:
    assert len(bench.test.queries) == 8
    assert some_queries(bench.collection.split("test"), 8).queries == bench.test.queries
    assert len(some_queries(bench.test, 0).queries) == 8


# --- rankings ---------------------------------------------------------------------------------------


def test_directions_against_loops_over_tokens(bench: Bench, pair: list[Any]) -> None:
    mvdr, corpus, pool = pair[0], bench.collection.corpus, bench.pool(4)
    runs = rankings(pair, bench, pool)
    assert list(runs) == ["BM25", FORWARD, *BACKWARD, *GENERATIVE, WHOLE]
    for query, candidates in pool.items():
        assert all(run[query].keys() == candidates.keys() for run in runs.values())
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


# --- claims about planted numbers -------------------------------------------------------------------


def verdicts(forward: float, backward: float, generative: float, recall: float = 0.5) -> list[str]:
    """Two seeds of 60 queries with this share of RR@10 = 1, each query right wherever a worse system is.

    recall: R@10 of GR, where BM25 and ColBERT have 0.9.
    """
    order = np.linspace(0, 1, 60, endpoint=False)
    shares = {FORWARD: forward} | dict.fromkeys(BACKWARD, backward)
    shares |= dict.fromkeys([*GENERATIVE, WHOLE], generative)
    values = {name: {"RR@10": np.tile((order < s).astype(float), (2, 1))} for name, s in shares.items()}
    values[CHANCE] = {"RR@10": np.full((2, 60), 0.05)}
    values[CANDIDATES] = {"RR@10": np.full((2, 60), 0.5)}
    for name in (CANDIDATES, FORWARD, TRAINED):
        values[name]["R@10"] = np.full((2, 60), recall if name == TRAINED else 0.9)
    return [verdict.word for verdict in judge(claims(values))]


def test_verdicts_follow_the_numbers() -> None:
    yes, no, open_ = REPRODUCED, CONTRADICTED, UNDECIDED
    # q→d over two q←d, over four GR, and the eight pairs of q←d and GR.
    assert verdicts(0.9, 0.6, 0.2) == [yes] * 14
    assert verdicts(0.9, 0.2, 0.6) == [yes] * 6 + [no] * 8
    assert verdicts(0.2, 0.6, 0.9) == [no] * 14
    assert verdicts(0.5, 0.5, 0.5) == [open_] * 14
    assert verdicts(0.9, 0.6, 0.06) == [yes] * 2 + [open_] * 12, "GR is not above a random order"
    assert verdicts(0.9, 0.6, 0.2, recall=0.4) == [yes] * 2 + [open_] * 12, "less than half of BM25's R@10"
