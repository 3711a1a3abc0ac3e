"""experiments/interpret.py: pieces are joined to words, salient words are named, each k has alignments."""

from pathlib import Path

import pytest
import torch
from studies.alignment_view import words

from paradigms import PARADIGMS, Paradigm
from tests.experiments.scripts import run
from tests.tiny import write_collection

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
    texts, queries = [DOCUMENT, "", "land"], [QUERY, "", "sea"]
    write_collection(tmp_path, texts, queries, {"test": range(2)})
    build(tiny_bert).save_pretrained(tmp_path / "model")
    flags = {"checkpoint": tmp_path / "model", "collection": tmp_path}
    flags["output"] = tmp_path / "page.html"

    run("interpret", **flags, k="[1, 3]")
    printed = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "page.html").read_text()
    for found in (printed, page):
        assert all(name in found for name in ("Most salient in query q0", "Most salient in document d0"))
        assert "document d1" in found  # empty texts have no words, and do no harm
        assert "query q2" not in found  # nothing relevant
        assert "its deviation within a document is" in found
    assert "query q0, k = 3" in printed
    assert page.count('"system":"k = 3"') + page.count('"system": "k = 3"') == 2
    with pytest.raises(SystemExit, match="--queries: q9 not in split test"):
        run("interpret", **flags, queries='["q9"]')
