"""experiments/interpret.py: the marks are those of S and of the salience, and the page says it in words."""

import json
import re
from html import unescape
from pathlib import Path

import interpret
import pytest
import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.core import similarity
from paradigms.evaluate.report import PALETTE
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


def settings(**changes: object) -> interpret.Settings:
    return interpret.Settings("unused", **changes)


@pytest.fixture(scope="module")
def paradigm(tiny_bert: Path) -> Paradigm:
    return build(tiny_bert)


def pair_of(paradigm: Paradigm, **changes: object) -> interpret.Pair:
    return interpret.interpret(paradigm, ("q1", QUERY), ("d1", DOCUMENT), settings(**changes))


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_pieces_become_words_again(family: str, checkpoints: dict[str, Path]) -> None:
    """## marks a piece that continues, ▁ one that begins."""
    paradigm = build(checkpoints[family], salience="none")
    found = interpret.words(paradigm, QUERY, "query", paradigm.encode_queries([QUERY]).mask[0, 0])
    assert [word.text for word in found] == QUERY.split()
    assert len(found[0].places) >= 5
    places = [place for word in found for place in word.places]
    assert places == sorted(set(places))
    labels = paradigm.encoder.labels(QUERY, "query")
    assert {labels[n] for n in range(len(labels)) if n not in places} <= {"[CLS]", "[SEP]", "</s>"}


def test_the_alignments_are_the_best_of_the_column(paradigm: Paradigm) -> None:
    pair = pair_of(paradigm, k=[1, 3], words=2)
    q, d = paradigm.encode_queries([QUERY]), paradigm.encode_documents([DOCUMENT])
    S = similarity(d, q)[0][0, 0]
    labels = paradigm.encoder.labels(DOCUMENT, "document")
    assert q.salience is not None
    assert d.salience is not None
    heaviest = sorted(pair.query, key=lambda word: -word.weight)[:2]
    assert [row["query word"] for row in pair.rows] == [word.text for word in heaviest]
    for row, word, color in zip(pair.rows, heaviest, PALETTE, strict=False):
        u = q.salience[0, 0]
        assert word.weight == max(float(u[place]) for place in word.places)
        assert word.color == color
        j = max(word.places, key=lambda place: float(u[place]))
        for rank, i in enumerate(S[:, j].argsort(descending=True)[:3].tolist(), 1):
            owners = [other for other in pair.document if i in other.places]
            shown = owners[0].text if owners else labels[i]
            assert row[f"rank {rank}"] == f"{shown} ({S[i, j]:.2f} × {d.salience[0, 0, i]:.2f})"
            assert not owners or (color, rank) in owners[0].marks
    assert set(pair.rel) == {1, 3}
    for k, rel in pair.rel.items():
        assert rel == pytest.approx(float(paradigm.with_alignment("top_k", k=k).score(d, q)))


def test_the_most_salient_share_is_marked(paradigm: Paradigm) -> None:
    pair = pair_of(paradigm, query_share=0.5, document_share=0.2)
    for found, share in ((pair.query, 0.5), (pair.document, 0.2)):
        marked = [word for word in found if word.salient]
        assert 0 < len(marked) <= -(-len(found) * share // 1)
        others = [word.weight for word in found if not word.salient]
        assert min(word.weight for word in marked) >= max(others)
        assert all(word.weight > 0 for word in marked)


def test_the_page_shows_everything_and_loads_nothing(paradigm: Paradigm) -> None:
    page = interpret.page("title", [], [pair_of(paradigm)])
    assert not any(outside in page for outside in ("src=", "href=", "http", "<script"))
    assert "<b>" not in page  # the document's own is text
    text = text_of([], pair_of(paradigm))
    assert QUERY in text
    assert "at k = 1, " in text


def text_of(notes: list[str], pair: interpret.Pair) -> str:
    page = re.sub("<[^>]*>", "", interpret.page("title", notes, [pair]))
    return " ".join(unescape(page).split())


def test_a_model_without_salience_is_shown_and_says_so(paradigm: Paradigm, tiny_bert: Path) -> None:
    with_salience, paradigm = paradigm, build(tiny_bert, salience="none")
    pair = pair_of(paradigm)
    q, d = paradigm.encode_queries([QUERY]), paradigm.encode_documents([DOCUMENT])
    best = similarity(d, q)[0][0, 0].amax(0)
    for word in pair.query:
        assert word.weight == pytest.approx(max(float(best[place]) for place in word.places))
    assert not any(word.salient for word in pair.document)
    assert "×" not in "".join(pair.rows[0].values())
    assert not interpret.weighs(paradigm, "query")
    notes = list(interpret.NO_SALIENCE.values())
    page = text_of(notes, pair)
    assert notes[0] in page
    assert "salience of the document's word" not in page
    assert "salience of the document's word" in text_of([], pair_of(with_salience))


def test_the_script_reads_a_collection_and_writes_the_page(
    paradigm: Paradigm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    paradigm.save_pretrained(tmp_path / "model")
    flags = {"checkpoint": tmp_path / "model", "collection": tmp_path / "data"}
    flags["output"] = tmp_path / "page.html"

    def main(**changes: object) -> str:
        run("interpret", **flags | changes)
        return " ".join(capsys.readouterr().out.split())

    printed = main()
    page = (tmp_path / "page.html").read_text()
    for found in (printed, page):
        assert "d1" in found  # the best judged of q1
        assert "zebra" in found
        assert "d2" in found  # empty texts have no words, and do no harm
    assert "query q3" not in page  # nothing relevant
    assert "query q1" not in (main(queries='["q2"]') and (tmp_path / "page.html").read_text())
    with pytest.raises(SystemExit, match="--queries: q9 not in split test"):
        main(queries='["q9"]')
    with pytest.raises(SystemExit, match="--checkpoint: "):
        main(checkpoint=tmp_path)
    with pytest.raises(SystemExit, match="words must lie between 1 and 7"):
        main(words=8)
