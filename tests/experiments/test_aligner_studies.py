"""experiments/alignment_adaptation.py, salience_pruning.py and interpret.py: measures, undecided claims."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from papers.qian2022.adaptation_claims import Task, study
from papers.qian2022.pruning_claims import ON_DEV, PruningStudy
from studies.alignment_view import words as words_of
from studies.claims import Study
from studies.model_runs import some_queries

from paradigms import PARADIGMS, Paradigm
from paradigms.data import load_collection
from paradigms.evaluate import PerQuery, per_query
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from tests.experiments.scripts import run


def read(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob(pattern))]


@pytest.mark.parametrize(
    ("bm25", "kept", "poor"),
    [
        (0.0, 2, {}),
        (1.1, 2, "ALIGNER (words, trained with k=1)"),
        (0.0, 0, "a model that training made worse"),
    ],
)
def test_a_poor_aligner_decides_nothing(
    finished: Callable[[str], Path], bm25: float, kept: int, poor: Any
) -> None:
    (model,) = read(finished("alignment_adaptation") / "results", "*/k=1/seed-0/values.json")
    task = Task([model | {"bm25": [bm25] * len(model["bm25"]), "kept step": kept}], [1])
    reason = study([task]).undecided([f"{task.label}, k=1"])
    assert reason == poor or reason["unlearned"].startswith(poor)


def test_a_point_is_what_searching_and_reranking_give(finished: Callable[[str], Path], words: Path) -> None:
    """Its multiply-adds count the tokens that are kept."""
    results, data = finished("salience_pruning") / "results", load_collection(words)
    paradigm = Paradigm.from_pretrained(results / "entropic-0" / "checkpoint")
    test = some_queries(data.split("test"), 0)
    index = Index(Store.build(kinds.exact(), paradigm, data.corpus.ids, data.corpus))
    pruned = Index(index.store.copy(kinds.exact(), keep=0.2))
    found = Indexed(pruned, paradigm, keep=0.3).search(test.queries, 8)
    result = json.loads((results / "entropic-0" / "values.json").read_text())
    (point,) = (p for p in result["points"] if (p["query_keep"], p["document_keep"]) == (0.3, 0.2))
    for stage, of_stage in (
        ("pruned", found),
        ("refined", Indexed(index, paradigm).rerank(test.queries, found)),
    ):
        measured = per_query(of_stage, test.judgements, ("RR@10", "nDCG@10")).values
        assert {name: value.tolist() for name, value in measured.items()} == point[stage]
    lengths = [int(paradigm.encode_queries([q]).mask.sum()) for q in test.queries.values()]
    searching = sum(-(-3 * length // 10) for length in lengths) / len(lengths)
    expected = searching * int(pruned.store.offsets[-1]) * paradigm.encoder.dim
    assert point["search multiply-adds/query"] == pytest.approx(expected)


def test_claims_of_pruning_are_about_models_that_learned(finished: Callable[[str], Path]) -> None:
    """About the L1 of the higher value on dev queries, and about gates that are not flat."""
    results = read(finished("salience_pruning") / "results", "*/values.json")
    for model in results:
        model["kept step"] = 2
        model[ON_DEV] = [0.4 if model["method"] == "l1-0.5" else 0.3] * len(model["points"])
        if "gate" in model:
            model["gate"] |= {"deviation": 0.05, "relative": 0.05 if model["method"] == "hard" else 0.11}
    queries = [f"q{n}" for n in range(len(results[0]["points"][0]["refined"]["RR@10"]))]

    def study_of(bm25: float, *without: str) -> Study:
        lexical = PerQuery(queries, {"RR@10": np.full(len(queries), bm25)})
        models = [model for model in results if model["method"] not in without]
        return PruningStudy(models, (0.5, 0.4), lexical).study()

    learned = study_of(0.0)
    assert learned.groups["L1"] == ["L1, γ = 0.5"]
    assert learned.undecided(["entropic, all tokens", "without salience, all tokens"]) == {"unlearned": ""}
    assert "hard, whose salience deviates by 5.0%" in learned.undecided(["hard, all tokens"])["unlearned"]
    assert study_of(1.1).undecided(["entropic, all tokens"]) == {"unlearned": "entropic"}
    assert "one coefficient" in study_of(0.0, "l1-2").undecided(["L1, γ = 0.5, all tokens"])["lacking"]


QUERY = "zebra bird over the sea"  # the tiny vocabulary knows no zebra: at least five pieces
DOCUMENT = "a zebra saw (one) bird; the bird flew over <b>sea</b> & land"


def build(backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    paradigm = PARADIGMS["aligner"](backbone, dim=16, query_length=24, document_length=48, **options)
    if paradigm.encoder.salience_heads is not None:
        for head in paradigm.encoder.salience_heads.values():
            torch.nn.init.normal_(head.weight)
    return paradigm


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_pieces_become_words_again(family: str, checkpoints: dict[str, Path]) -> None:
    """## marks a piece that continues, ▁ one that begins."""
    paradigm = build(checkpoints[family], salience="none")
    found = words_of(paradigm, QUERY, "query", paradigm.encode_queries([QUERY]).mask[0, 0])
    assert [word for word, _ in found] == QUERY.split()
    assert len(found[0][1]) >= 5
    places = [place for _, of in found for place in of]
    assert places == sorted(set(places))
    labels = paradigm.encoder.labels(QUERY, "query")
    assert {labels[n] for n in range(len(labels)) if n not in places} <= {"[CLS]", "[SEP]", "</s>"}


def test_the_script_reads_a_collection_and_writes_the_page(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        "corpus": [{"_id": "d1", "text": DOCUMENT}, {"_id": "d2", "text": ""}, {"_id": "d3", "text": "land"}],
        "queries": [{"_id": "q1", "text": QUERY}, {"_id": "q2", "text": ""}, {"_id": "q3", "text": "sea"}],
    }
    (tmp_path / "data" / "qrels").mkdir(parents=True)
    for name, lines in rows.items():
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = "query-id\tcorpus-id\tscore\nq1\td3\t1\nq1\td1\t2\nq2\td2\t1\nq3\td3\t0\n"
    (tmp_path / "data" / "qrels" / "test.tsv").write_text(judged)
    build(tiny_bert).save_pretrained(tmp_path / "model")
    page = tmp_path / "page.html"
    run("interpret", checkpoint=tmp_path / "model", collection=tmp_path / "data", output=page)
    printed = " ".join(capsys.readouterr().out.split())
    for found in (printed, page.read_text()):
        assert all(name in found for name in ("Most salient in query q1", "Most salient in document d1"))
        assert "document d2" in found  # empty texts have no words_of, and do no harm
        assert "query q3" not in found  # nothing relevant
        assert "its deviation within a document is" in found
    assert "query q1, k = 4" in printed
