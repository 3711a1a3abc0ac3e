"""experiments/document_encoding.py end to end on a tiny T5; its claims about planted numbers; every encoding
in training, search, reranking and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import document_encoding
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from document_encoding import (
    Claim,
    Finding,
    claims_of_table_6,
    claims_of_table_8,
    compared,
    learned,
    rows_of,
    verdict,
)
from studies import encoding_runs
from studies.encoding_runs import (
    BM25,
    MEASURES,
    STAGES,
    SYSTEMS,
    Settings,
    build,
    measure,
    pairs_of,
    search_by,
)
from studies.trained_pairs import Bench, open_bench

from paradigms import Generative, load
from paradigms.data import Problems
from paradigms.evaluate import Interval, per_query
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.settings import from_command_line
from paradigms.train.likelihood import Likelihood
from paradigms.train.loop import TrainingSettings, train
from tests.tiny import WIDTH, WORDS, write_seq2seq

ENCODINGS = ("dsi-pawa", "genre-pawa", "genre-np-base", "genre-np-async", "seal-np", "seal-pawa")


def write_collection(folder: Path) -> Path:
    """Thirty documents of 8 to 15 words under titles of two; a query is four words of one."""
    words, random = WORDS.split(), np.random.default_rng(0)
    texts = [list(random.choice(words, 8 + n // 4)) for n in range(30)]
    titles = [" ".join(random.choice(words, 2)) for _ in texts]
    rows = [{"_id": f"d{n}", "title": titles[n], "text": " ".join(text)} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(random.choice(text, 4))} for n, text in enumerate(texts)]
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", rows), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for split, chosen in (("train", range(20)), ("test", range(20, 30))):
        judged = "".join(f"q{n}\td{n}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def settings(collection: Path, backbone: Path, folder: Path, **changes: object) -> Settings:
    flags = {
        "collection": collection,
        "backbone": backbone,
        "models": folder / "models",
        "output": folder / "results",
        "seeds": "[0,1]",
        "steps": 1,
        "generative_steps": 2,
        "batch_size": 4,
        "query_length": 8,
        "document_length": 16,
        "span": 3,
        "depth": 6,
        "queries": 0,
        "passages": 2,
        "passage_words": 4,
        "branching": 4,
        "beams": 4,
        "refresh": 1,
        "text_rank": 2,
        "tracker": "none",
    } | changes
    return from_command_line(Settings, "", [f"--{name}={value}" for name, value in flags.items()])


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("encoding")
    return write_collection(root / "collection"), write_seq2seq("t5-v1.1", root / "t5")


@pytest.fixture(scope="module")
def bench(given: tuple[Path, Path]) -> Bench:
    from rich.console import Console

    return open_bench(settings(*given, given[0]), Console(quiet=True))


# --- the whole run ----------------------------------------------------------------------------------


def test_a_run_measures_every_system_and_goes_on(
    given: tuple[Path, Path], bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_encoding.main(settings(*given, tmp_path, seeds="[0,1]", systems='["DPR","GENRE"]'))
    checkpoint = tmp_path / "results/seed-1/genre/checkpoint/heads.safetensors"
    written = checkpoint.stat().st_mtime_ns
    two = json.loads((tmp_path / "results/retrieve.json").read_text())
    assert [row["system"] for row in two] == [BM25, "DPR", "GENRE"]
    chosen = [system for system in SYSTEMS if system not in ("GENRE-PAWA", "T5-SEAL-NP", "T5-SEAL-PAWA")]
    every = settings(*given, tmp_path, seeds="[1]", systems=json.dumps(chosen))
    document_encoding.main(every)
    assert checkpoint.stat().st_mtime_ns == written
    folder = tmp_path / "results"
    for name in ("claims_table6", "claims_table8", "retrieve", "rerank", "differences", "training"):
        for suffix in ("csv", "json", "md"):
            assert (folder / f"{name}.{suffix}").is_file(), name
    assert (folder / "systems.png").read_bytes().startswith(b"\x89PNG")
    systems = [row["system"] for row in json.loads((folder / "retrieve.json").read_text())]
    assert systems == [BM25, *chosen]
    # What was written of a system is what its saved model ranks.
    model = load(folder / "seed-1/dsi-pawa/checkpoint")
    assert isinstance(model, Generative)
    model.settings = replace(model.settings, beams=4)
    retriever = GenerativeRetriever(model)
    pool = bench.pool(bench.test, 6)
    runs = {
        "retrieve": retriever.search(bench.test.queries, 10),
        "rerank": retriever.rerank(bench.test.queries, pool),
    }
    written_values = json.loads((folder / "seed-1/DSI-PAWA.json").read_text())
    for stage in STAGES:
        found = per_query(runs[stage], bench.test.judgements, MEASURES)
        assert written_values["queries"] == found.queries
        for name in MEASURES:
            np.testing.assert_array_equal(written_values[stage][name], found.values[name])
    # Nothing is trained or measured again.
    monkeypatch.setattr(encoding_runs, "trained", None)
    document_encoding.main(every)
    with pytest.raises(SystemExit, match=r"generative_steps: 2 then, 3 now"):
        document_encoding.main(settings(*given, tmp_path, seeds="[1]", generative_steps=3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": '["DSI","NCI"]'}, "systems must be some of DPR.*NCI"),
        ({"refresh": 0}, "refresh must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_said(
    given: tuple[Path, Path], tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        settings(*given, tmp_path, **changes)


# --- the encodings ----------------------------------------------------------------------------------


def test_names_say_what_is_encoded(given: tuple[Path, Path], bench: Bench, tmp_path: Path) -> None:
    chosen = settings(*given, tmp_path, embedder=given[1])
    models = {name: build(name, str(given[1]), 0, bench, chosen) for name in ("dsi", "seal", *ENCODINGS)}
    ranks = {name: model.settings.pawa_rank for name, model in models.items() if model.settings.pawa_rank}
    assert ranks == {"dsi-pawa": WIDTH, "genre-pawa": 2, "seal-pawa": 2}
    clustered = {n: m.settings.refresh for n, m in models.items() if m.settings.tokens == "clusters"}
    assert clustered == {"genre-np-base": 0, "genre-np-async": 1, "seal-np": 0}
    # Digits are specific to their place under PAWA, and the tree is the same.
    digits = [model.identifiers for name, model in models.items() if name.startswith("dsi")]
    assert digits[1].vocabulary > digits[0].vocabulary
    np.testing.assert_array_equal((digits[1].tokens - 2) % 4, digits[0].tokens - 2)


def test_systems_of_one_model_search_otherwise(
    given: tuple[Path, Path], bench: Bench, tmp_path: Path
) -> None:
    chosen = settings(*given, tmp_path)
    torch.manual_seed(0)
    model = build("seal", str(given[1]), 0, bench, chosen).eval()
    pool = bench.pool(bench.test, 6)
    spans, keys = (measure(search_by(model, s, chosen), bench, pool) for s in ("T5-SEAL", "SEAL"))
    assert spans["rerank"] == keys["rerank"]
    assert spans["retrieve"] != keys["retrieve"]


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_learns_searches_and_is_saved(
    name: str, given: tuple[Path, Path], bench: Bench, tmp_path: Path
) -> None:
    """The loss falls; a search's score of a document is its rel in rerank mode; both survive the files."""
    chosen = settings(*given, tmp_path, embedder=given[1], refresh=10)
    torch.manual_seed(0)
    model = build(name, str(given[1]), 0, bench, chosen)
    pairs = pairs_of(model, bench, chosen, 0, Problems())
    objective = Likelihood(model, bench.collection.corpus, pairs)

    def loss(of: Generative) -> float:
        of.eval()
        return float(objective.loss(of, objective.collate(pairs[:40])).detach())

    before = loss(model)
    steps = TrainingSettings(steps=30, batch_size=16, learning_rate=5e-3)
    trained = train(
        model, objective, steps, tmp_path / "training", accelerator=Accelerator(), progress=False
    ).eval()
    assert loss(trained) < 0.9 * before
    trained.settings = replace(trained.settings, beams=40)
    run = GenerativeRetriever(trained).search(bench.test.queries, 10)
    reranked = GenerativeRetriever(trained).rerank(bench.test.queries, run)
    for query, scores in run.items():
        assert scores
        if name in ("dsi-pawa", "genre-pawa"):  # a document has one name, and that one way to be written
            assert reranked[query] == pytest.approx(scores, rel=1e-4, abs=1e-4)
    trained.save_pretrained(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert isinstance(loaded, Generative)
    again = GenerativeRetriever(loaded.eval())
    assert again.search(bench.test.queries, 10) == run
    assert again.rerank(bench.test.queries, run) == reranked


# --- claims -----------------------------------------------------------------------------------------


def test_claims_are_those_of_the_paper() -> None:
    claims = claims_of_table_6({"ColBERT", "DSI", "DSI-PAWA", "GENRE", "GENRE-NP-BASE"})
    assert [(c.system, c.other, c.measure) for c in claims] == [
        ("DSI-PAWA", "DSI", "R@1"),
        ("DSI-PAWA", "DSI", "R@10"),
        ("DSI-PAWA", "ColBERT", "R@1"),
        ("ColBERT", "DSI-PAWA", "R@10"),
        ("GENRE-NP-BASE", "GENRE", "R@1"),
        ("GENRE-NP-BASE", "GENRE", "R@10"),
        ("GENRE-NP-BASE", "ColBERT", "R@1"),
        ("ColBERT", "GENRE-NP-BASE", "R@10"),
    ]
    assert [c.paper for c in claims] == pytest.approx(
        [0.05, 0.128, -0.009, 0.082, 0.085, 0.141, 0.011, 0.096]
    )
    assert [c.margin for c in claims] == [0, 0, 0.02, 0, 0, 0, 0.02, 0]
    # DPR and ColBERT, DPR and DSI at R@1, BM25 and SEAL: the collections disagree.
    order = {
        (c.system, c.other, c.measure): c.paper for c in claims_of_table_8({BM25, "DPR", "DSI", "T5-SEAL"})
    }
    assert order == pytest.approx(
        {
            ("DPR", BM25, "R@1"): 0.107,
            ("DPR", BM25, "R@10"): 0.082,
            ("DPR", "DSI", "R@10"): 0.103,
            ("DPR", "T5-SEAL", "R@1"): 0.055,
            ("DPR", "T5-SEAL", "R@10"): 0.022,
            ("DSI", "T5-SEAL", "R@1"): 0.016,
            (BM25, "DSI", "R@10"): 0.021,
            ("T5-SEAL", "DSI", "R@10"): 0.033,
        }
    )
    assert claims_of_table_8({"DPR"}) == []


@pytest.mark.parametrize(
    ("low", "high", "p", "margin", "expected"),
    [
        (0.01, 0.09, 0.01, 0.0, "reproduced"),
        (0.01, 0.09, 0.06, 0.0, "out of reach at this scale"),
        (-0.01, 0.09, 0.01, 0.0, "out of reach at this scale"),
        (-0.01, 0.04, 0.2, 0.0, "not reproduced"),
        (-0.09, -0.01, 0.01, 0.0, "not reproduced"),
        (-0.01, 0.04, 0.01, 0.02, "reproduced"),
        (-0.03, 0.04, 0.01, 0.02, "not reproduced"),
    ],
)
def test_verdicts(low: float, high: float, p: float, margin: float, expected: str) -> None:
    claim = Claim("", "a", "b", "R@1", 0.05, margin)
    finding = Finding(Interval((low + high) / 2, low, high), p, p)
    assert verdict(claim, finding, True) == expected
    assert verdict(claim, finding, False) == "out of reach at this scale"


def test_a_system_has_learned_with_half_of_the_recall_of_bm25() -> None:
    recalls = {BM25: [1.0, 1.0, 1.0, 0.0], "ColBERT": [0.0, 1.0, 0.5, 0.0], "DSI": [0.0, 1.0, 0.25, 0.0]}
    values = {system: {m: np.array([of]) for m in MEASURES} for system, of in recalls.items()}
    assert learned(values) == {BM25, "ColBERT"}
    [row] = rows_of([Claim("", "ColBERT", "DSI", "R@10", 0.1)], values)
    assert row["verdict"] == "out of reach at this scale"
    assert row["sample"] == "4 queries, 1 seed"


def test_differences_are_tested_over_the_seeds_means() -> None:
    """Planted: a beats b by .5 on every query of both seeds, equals c, and is .03 below d."""
    b = np.tile(np.arange(20) / 40, (2, 1))
    values = {"a": {"R@1": b + 0.5}, "b": {"R@1": b}, "c": {"R@1": b + 0.5}, "d": {"R@1": b + 0.53}}
    claims = [Claim("", "a", "b", "R@1", 0.1), *(Claim("", "a", x, "R@1", 0.0, 0.02) for x in "cd")]
    better, equal, below = compared(claims, values)
    assert better.interval == pytest.approx((0.5, 0.5, 0.5))
    assert better.p == pytest.approx(1 / 5000)  # of 9999 sign patterns none is as far, on either side
    assert better.p_adjusted == pytest.approx(3 * better.p)
    assert equal.interval == (0, 0, 0)
    assert below.interval == pytest.approx((-0.03, -0.03, -0.03))
    verdicts = [verdict(c, f, True) for c, f in zip(claims, (better, equal, below), strict=True)]
    assert verdicts == ["reproduced", "reproduced", "not reproduced"]


def test_one_query_that_differs_shows_nothing() -> None:
    values = {"a": {"R@1": np.array([[1.0, 0.0, 0.0]])}, "b": {"R@1": np.zeros((1, 3))}}
    assert compared([Claim("", "a", "b", "R@1", 0.1)], values)[0].p == 1
