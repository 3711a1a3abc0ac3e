"""experiments/interpret.py: pieces are joined to words, salient words are named, each k has alignments."""

import json
from pathlib import Path

import pytest
import torch
from studies.alignment_view import words

from paradigms import PARADIGMS, Paradigm
from tests.experiments.scripts import run

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
    found = words(paradigm, QUERY, "query", paradigm.encode_queries([QUERY]).mask[0, 0])
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
    flags = {"checkpoint": tmp_path / "model", "collection": tmp_path / "data"}
    flags["output"] = tmp_path / "page.html"

    run("interpret", **flags)
    printed = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "page.html").read_text()
    for found in (printed, page):
        assert all(name in found for name in ("Most salient in query q1", "Most salient in document d1"))
        assert "document d2" in found  # empty texts have no words, and do no harm
        assert "query q3" not in found  # nothing relevant
        assert "its deviation within a document is" in found
    assert "query q1, k = 4" in printed
