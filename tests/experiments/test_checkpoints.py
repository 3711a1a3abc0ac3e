"""Checkpoints under every A, end to end on checkpoints that the test writes, and resumed."""

import json

import checkpoints
import pytest
import torch

from paradigms import PARADIGMS
from paradigms.align import DocumentToQuery, QueryToDocument
from paradigms.data import load_collection
from paradigms.evaluate import per_query
from paradigms.retrieve import Indexed
from tests.tiny import built

SIZES = {"query_length": 12, "document_length": 16}


@pytest.fixture
def folders(tiny_bert, tmp_path):
    """A dense model, a late-interaction model, one whose A reads ids, and terms, as saved."""
    made = {}
    for name in ("dpr", "colbert", "xtr", "splade"):
        torch.manual_seed(0)
        built(name, tiny_bert, **SIZES).save_pretrained(tmp_path / "models" / name / "checkpoint")
        made[name] = str(tmp_path / "models" / name / "checkpoint")
    return made


def test_every_a_of_every_checkpoint(folders, words, tiny_bert, tmp_path):
    flags = {"checkpoints": [*folders.values(), str(tmp_path / "nowhere")], "tracker": "none"}
    settings = checkpoints.Settings(**flags, collections=[str(words)], output=str(tmp_path / "out"))
    checkpoints.main(settings)
    place = tmp_path / "out" / words.name
    values = {file.stem: json.loads(file.read_text())["answer"] for file in place.glob("*.json")}
    backward = ["q←d, Z = 1", "q←d, Z = M"]
    assert values.keys() == {"bm25", *folders}
    assert list(values["colbert"]) == ["own", *backward, "top-2"]
    assert list(values["xtr"]) == ["own", "q→d", *backward, "top-2"]
    assert list(values["dpr"]) == ["own", *(f"its tokens, {A}" for A in ("q→d", *backward, "top-2"))]
    assert list(values["bm25"]) == list(values["splade"]) == ["own"]

    collection = load_collection(str(words))
    _, test = checkpoints.part(collection, settings)

    def of(retriever: Indexed) -> list[float]:
        run = retriever.search(test.queries, 10)
        return per_query(run, test.judgements, ["nDCG@10"]).values["nDCG@10"].tolist()

    same = PARADIGMS["colbert"](tiny_bert, skip="", **SIZES)  # the tokens that dpr pools
    tokens = Indexed.build(same.with_alignment(QueryToDocument(), "one"), collection.corpus)
    assert values["dpr"]["its tokens, q→d"] == pytest.approx(of(tokens))
    other = Indexed(tokens.index, same.with_alignment(DocumentToQuery(), "document_tokens"))
    assert values["dpr"]["its tokens, q←d, Z = M"] == pytest.approx(of(other))

    study = json.loads((tmp_path / "out" / "study.json").read_text())
    assert f"Left out: nowhere on {words.name}" in study["summary"]
    assert len(study["sections"]["alignments"]["rows"]) == 3 + 4 + 4
    before = {file: file.stat().st_mtime_ns for file in place.glob("*.json")}
    checkpoints.main(settings)
    assert before == {file: file.stat().st_mtime_ns for file in place.glob("*.json")}
