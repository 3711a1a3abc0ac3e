"""experiments/document_encoding.py: every encoding on a tiny T5, verdicts about planted numbers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import document_encoding
import numpy as np
import pytest
from accelerate import Accelerator
from document_encoding import BM25, CONTROL, HALF, MEASURES, SYSTEMS, Settings
from papers.wu2024 import trained_pairs
from papers.wu2024.trained_pairs import TaskResults, build, open_pairs, trained
from rich.console import Console
from studies.gains import DEV
from studies.model_runs import StudyData, training_of

from paradigms import Generative, load
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, NO, REPRODUCED, UNDECIDED, YES
from paradigms.generative.retriever import GenerativeRetriever
from tests.experiments import scripts
from tests.experiments.scripts import pair_flags, published, unmeasured, verdicts
from tests.tiny import WIDTH

ENCODINGS = [name for name in SYSTEMS.values() if re.match("(dsi|genre|seal)-", name)]

QUIET = (Accelerator(cpu=True), Console(quiet=True))


def settings(collection: Path, backbone: Path, folder: Path, **changes: object) -> Settings:
    small = {"steps": 1, "span": 3, "queries": 0, "beams": 40, "second": backbone.parent / "t5"}
    return scripts.settings(
        "document_encoding", **pair_flags(collection, backbone, folder, **small | changes)
    )


@pytest.fixture(scope="module")
def given(words: Path, seq2seq: dict[str, Path]) -> tuple[Path, Path]:
    return words, seq2seq["t5-v1.1"]


@pytest.fixture(scope="module")
def data(given: tuple[Path, Path]) -> StudyData:
    return open_pairs(settings(*given, given[0]), *QUIET)


def test_settings_choose_the_documents_and_the_division(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(trained_pairs, "most_asked", lambda whole, most: calls.append(most) or whole)
    monkeypatch.setattr(trained_pairs, "within_documents", lambda whole: calls.append("within") or whole)
    open_pairs(settings(*given, tmp_path, documents=40), *QUIET)  # all
    assert not calls
    open_pairs(settings(*given, tmp_path, documents=39, division="within"), *QUIET)
    assert calls == [39, "within"]


@pytest.fixture(scope="module")
def own(given: tuple[Path, Path], data: StudyData, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with a trained DPR, whose vectors DSI clusters."""
    found = settings(*given, tmp_path_factory.mktemp("own"))
    trained("dpr", 0, replace(data, settings=found), Console(quiet=True))
    return found


def test_a_run_measures_every_system_and_goes_on(
    given: tuple[Path, Path], data: StudyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_encoding.main(settings(*given, tmp_path, seeds="[1]", systems='["GENRE"]'))
    checkpoint = tmp_path / "models/seed-1/genre/checkpoint/heads.safetensors"
    written = checkpoint.stat().st_mtime_ns
    first = json.loads((tmp_path / "results/retrieve.json").read_text())
    assert [row["system"] for row in first] == [BM25, "GENRE"]
    chosen = ["S-T5", "ColBERT, pairs", "DSI", "DSI-place", "DSI-PAWA", "GENRE", HALF, "T5-SEAL", CONTROL]
    every = settings(*given, tmp_path, seeds="[1]", systems=json.dumps(chosen))
    document_encoding.main(every)
    assert checkpoint.stat().st_mtime_ns == written
    folder = tmp_path / "results"
    claims = {"claims_table6", "claims_table7", "claims_table8", "claims_search", "claims_controls"}
    assert published(folder) == claims | {"retrieve", "retrieve.svg", "training", "added"}
    systems = [row["system"] for row in json.loads((folder / "retrieve.json").read_text())]
    assert systems == [BM25, *chosen]
    # What was written of a system is what its saved model ranks.
    model = load(tmp_path / "models/seed-1/dsi-pawa/checkpoint")
    assert isinstance(model, Generative)
    model.settings = replace(model.settings, beams=40)
    run = GenerativeRetriever(model).search(data.test.queries, 10)
    values = json.loads((folder / "seed-1/DSI-PAWA.json").read_text())
    assert values["exhaustive"] == values["retrieve"], "as many beams as there are identifiers miss nothing"
    found = per_query(run, data.test.judgements, MEASURES)
    assert values["queries"] == found.queries
    for name in MEASURES:
        np.testing.assert_array_equal(values["retrieve"][name], found.values[name])
    # The model that learned half of the documents finds all, and each query is in one half.
    learned = load(tmp_path / "models/seed-1/genre-half/checkpoint").identifiers.documents
    assert learned == data.collection.corpus.ids[::2]
    halves = json.loads((folder / f"seed-1/{HALF}.json").read_text())["exhaustive"]["R@10"]
    assert len(halves) == len(found.queries)
    rows = json.loads((folder / "added.json").read_text())
    assert [row["documents"] for row in rows] == ["learned", "added"] * (len(chosen) + 1)
    asked = [next(iter(data.test.judgements[query])) in learned for query in found.queries]
    assert [row["queries"] for row in rows[:2]] == [sum(asked), len(asked) - sum(asked)]
    training = json.loads((folder / "seed-1/T5-SEAL.json").read_text())["training"]["seal"]
    reranked = training_of(tmp_path / "models/seed-1/seal")[DEV]
    assert training[DEV]["trained"] != reranked["trained"], "SEAL's dev values are those of its search"
    control = json.loads((folder / f"seed-1/{CONTROL}.json").read_text())
    assert np.mean(control["retrieve"]["R@10"]) > 0.5, "a query is four words of its document"
    monkeypatch.setattr(trained_pairs, "trained", None)  # nothing is trained or measured again
    document_encoding.main(every)


def test_names_say_what_is_encoded(given: tuple[Path, Path], data: StudyData, own: Settings) -> None:
    models = {name: build(name, 0, replace(data, settings=own)) for name in ("dsi", *ENCODINGS)}
    ranks = {name: model.settings.pawa_rank for name, model in models.items() if model.settings.pawa_rank}
    assert ranks == {"dsi-pawa": WIDTH, "genre-pawa": 8, "seal-pawa": 8}
    clustered = {n: m.settings.refresh for n, m in models.items() if m.settings.tokens == "clusters"}
    assert clustered == {"genre-np-base": 0, "genre-np-async": 1, "seal-np-base": 0}
    # Digits and softmax are specific to their place with and without PAWA, and the tree is the same.
    plain, place, pawa = (models[name] for name in ("dsi", "dsi-place", "dsi-pawa"))
    assert (plain.settings.softmax, place.settings.softmax) == ("vocabulary", "place")
    np.testing.assert_array_equal(place.identifiers.tokens, pawa.identifiers.tokens)
    np.testing.assert_array_equal((place.identifiers.tokens - 2) % 10, plain.identifiers.tokens - 2)


def planted(*, still: str = "", **recalls: float) -> TaskResults:
    """Two seeds of 600 queries; a system is right on this share of them, and wherever a worse system is.

    still: a model that training did not change.
    """
    order = np.linspace(0, 1, 600, endpoint=False)
    results: TaskResults = {}
    for key, share in recalls.items():
        system = CONTROL if key == "CONTROL" else key.replace("_pairs", ", pairs").replace("_", "-")
        row = (order < share).astype(float).tolist()
        name = SYSTEMS.get(system, "")
        dev = {"untrained": [0.1, 0.2] * 8, "trained": [0.1 if name == still else 0.4, 0.2] * 8}
        seed = {"retrieve": dict.fromkeys(MEASURES, row), "bytes": 0}
        results[system] = [seed | {"training": {name: {"kept step": 30, DEV: dev}} if name else {}}] * 2
    return results


def words(family: str, results: TaskResults) -> list[str]:
    return [verdict.word for verdict in verdicts(document_encoding.study_of(results, 1000), "wu2024", family)]


def test_verdicts_follow_the_numbers() -> None:
    yes, no, open_ = REPRODUCED, CONTRADICTED, UNDECIDED
    good = planted(BM25=0.9, T5_ColBERT=0.9, DSI=0.5, DSI_PAWA=0.9)
    assert words("table6", good) == [yes, yes, yes, no]  # no gap remains
    assert words("table6", planted(BM25=0.9, T5_ColBERT=0.9, DSI=0.9, DSI_PAWA=0.5)) == [no, no, no, yes]
    assert words("table6", planted(BM25=0.9, DSI=0.4, DSI_PAWA=0.9)) == [open_] * 2, "DSI has not learned"
    assert words("table6", planted(BM25=0.9, DSI=0.5, DSI_place=0.9, DSI_PAWA=0.9)) == [open_] * 2, "not PAWA"
    controls = planted(BM25=0.9, DSI=0.5, DSI_place=0.9, DSI_PAWA=0.9, T5_SEAL=0.5, CONTROL=0.9)
    assert words("controls", controls) == [NO, YES, NO] * 2
    assert set(words("table7", planted(BM25=0.9, ColBERT=0.6, ColBERT_pairs=0.9))) == {no}


def test_every_contrast_of_the_claims_is_measured() -> None:
    values = {measure: [1.0, 0.0] for measure in MEASURES}
    results: TaskResults = {
        system: [{"retrieve": values, "bytes": 0, "training": {}}] for system in (*SYSTEMS, BM25)
    }
    results["DSI"] = [results["DSI"][0] | dict.fromkeys(document_encoding.SEARCHES, values)]
    study = document_encoding.study_of(results, 1000)
    for family in ("table6", "controls", "table7", "table8", "search"):
        assert unmeasured(study, "wu2024", family) == []


def test_a_system_must_beat_its_control_and_be_moved_by_training() -> None:
    results = planted(BM25=0.9, T5_ColBERT=0.9, T5_SEAL=0.6, CONTROL=0.9)
    found = verdicts(document_encoding.study_of(results, 1000), "wu2024", "table8")
    seal = [verdict for verdict in found if "T5-SEAL" in verdict.claim.quantity]
    assert {v.reason for v in seal} == {"T5-SEAL is not above its control, SEAL without a model"}
    moved = words("table8", planted(BM25=0.5, T5_ColBERT=0.9))
    assert set(moved) == {REPRODUCED}
    assert set(words("table8", planted(BM25=0.5, T5_ColBERT=0.9, still="colbert"))) == {UNDECIDED}


def test_searches_are_compared_with_all_documents_and_bytes_with_dense_systems() -> None:
    results = planted(BM25=0.9, DSI=0.9) | planted(S_T5=0.9, T5_ColBERT=0.9)
    (greedy,) = planted(DSI=0.6).values()
    found = results["DSI"][0]["retrieve"]
    results["DSI"] = [
        seed | {"exhaustive": found, "greedy": greedy[0]["retrieve"], "bytes": 4_000_000}
        for seed in results["DSI"]
    ]
    assert words("search", results) == [CONTRADICTED, REPRODUCED, REPRODUCED, CONTRADICTED]
    results["S-T5"][0]["bytes"] = 2_000_000
    assert document_encoding.storage(results, 1000)["measured"] == "2,000", (
        "2 kB a document, a decoder of 4 MB"
    )
