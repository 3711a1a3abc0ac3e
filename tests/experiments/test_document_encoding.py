"""Verdicts of experiments/document_encoding.py about planted numbers."""

import document_encoding
import numpy as np
from document_encoding import BM25, CONTROL, MEASURES, SYSTEMS
from papers.wu2024.trained_pairs import TaskResults
from studies.gains import DEV

from paradigms.evaluate.claims import CONTRADICTED, NO, REPRODUCED, UNDECIDED, YES
from tests.experiments.scripts import unmeasured, verdicts


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
    controls = planted(BM25=0.9, DSI=0.5, DSI_place=0.9, DSI_PAWA=0.9, T5_SEAL=0.5, CONTROL=0.9)
    assert words("controls", controls) == [NO, YES, NO] * 2
    learned = {"BM25": 0.5, "T5_ColBERT": 0.9}
    assert set(words("table8", planted(**learned))) == {yes}
    assert set(words("table8", planted(**learned, still="colbert"))) == {open_}, "training did not move it"
    below = document_encoding.study_of(planted(**learned, T5_SEAL=0.6, CONTROL=0.9), 1000)
    seal = [v for v in verdicts(below, "wu2024", "table8") if "T5-SEAL" in v.claim.quantity]
    assert {v.reason for v in seal} == {"T5-SEAL is not above its control, SEAL without a model"}


def test_every_contrast_of_the_claims_is_measured() -> None:
    values = {measure: [1.0, 0.0] for measure in MEASURES}
    seed = {"retrieve": values, "bytes": 0, "training": {}}
    results: TaskResults = {system: [seed] for system in (*SYSTEMS, BM25)}
    results["DSI"] = [seed | dict.fromkeys(document_encoding.SEARCHES, values)]
    study = document_encoding.study_of(results, 1000)
    for family in ("table6", "controls", "table7", "table8", "search"):
        assert unmeasured(study, "wu2024", family) == []


def test_bytes_of_a_decoder_are_compared_with_dense_ones() -> None:
    results = planted(DSI=0.9, S_T5=0.9)
    results["DSI"][0]["bytes"], results["S-T5"][0]["bytes"] = 4_000_000, 2_000_000
    assert document_encoding.storage(results, 1000)["measured"] == "2,000"  # 2 kB a document
