"""Settings that a script cannot run end with one line that names them."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from studies.settings import launch

from paradigms.train.loop import Paused
from tests.experiments.scripts import SMALL, run

HERE = Path(__file__).parent  # a folder without a checkpoint
REFUSED: list[tuple[str, dict[str, object], str]] = [  # script, flags, what the line says
    ("alignment_adaptation", {"trained_with": '["k=3"]'}, 'trained_with: unknown "k=3"; there are "k=1", '),
    ("capacity", {"hybrids": '["CROSS-ATTENTION"]'}, "hybrids: unknown CROSS-ATTENTION"),
    ("compare", {"systems": "[dpr,bert]"}, "system bert: unknown paradigm bert; there are dpr"),
    ("compare", {"systems": '{"a": {"paradigm": "dpr", "training": {"x": 3}}}'}, "system a, training: "),
    ("compare", {"systems": '{"a/b": {"paradigm": "dpr"}}'}, "system 'a/b': it also names a folder"),
    ("compare", {"systems": '{"a": {"paradigm": "dpr", "teacher": "bm25"}}'}, "scores hard negatives"),
    ("compare", {"systems": '{"dpr": {}, "b": {"fuse": ["bm25", "x"]}}'}, "it fuses two or more of bm25"),
    ("compare", {"collection": "nowhere"}, "no collection 'nowhere'"),
    ("compare", {"backbone": "bert-base-uncasedd"}, "the backbone 'bert-base-uncasedd' is not a folder"),
    ("encode", {"checkpoint": HERE, "index": "compressed", "options": '{"x": 2}'}, "options: TypeError: "),
    ("document_encoding", {"systems": "[DSI, GENRE-NP-ASYNC]"}, "ASYNC cannot run.* set --frozen false"),
    ("generate_queries", {"model": "x", "prompt": "no place"}, "prompt must hold one"),
    ("hybrid", {"rerank_depths": "[11]", "depth": 10}, "reach 11, but only 10 are retrieved"),
    ("limit", {"documents": 90}, "4,005 words are needed; there are "),
    ("salience_pruning", {"l1": "[0]"}, "coefficients above 0"),
    ("serving_costs", {"paradigms": '["bm26"]'}, 'paradigms: unknown "bm26"'),
    ("theory_checks", {"only": "lemma_1,lemma_9"}, r"lemma_9.*there are: lemma_1"),
    ("train", {"backbone": "/nowhere/at/all"}, "/nowhere/at/all is a path, and this folder does not exist"),
    ("train", {"batch_size": 64}, "batch of 64 .* larger than the 27 training examples"),
    ("train", {"teacher": "x.run", "distil": "kl", "negatives": 1}, "x.run is neither a run, nor a m"),
    ("train", {"generated": "x.jsonl"}, "generated queries train dsi, genre, seal, ripor, not colbert"),
]


@pytest.mark.parametrize(("script", "flags", "message"), REFUSED)
def test_what_cannot_be_run_ends_with_a_line(script, flags, message, words, tiny_bert, tmp_path, capsys):
    module = import_module(script)
    given = {"collection": words, "collections": f'["{words}"]', "backbone": tiny_bert}
    given |= {"output": tmp_path / "out", "paradigm": "colbert"}
    fields = module.Settings.__dataclass_fields__
    known = {name: value for name, value in (SMALL | given).items() if name in fields}
    with pytest.raises(SystemExit) as ended:
        run(script, **known | flags)
    said = capsys.readouterr()
    assert re.search(message, f"{ended.value.code} {said.err}")
    assert "About " not in said.out
    if {"collection", "backbone"} & flags.keys():
        assert not (tmp_path / "out").exists()
        assert "\n" not in str(ended.value.code)


def test_a_study_that_is_told_to_stop_has_the_status_of_a_pause(monkeypatch, capsys):
    limit = import_module("limit")

    def main(_: object) -> None:
        raise Paused("SIGTERM: dpr after 3 of 60 steps")

    monkeypatch.setattr(limit, "main", main)
    monkeypatch.setattr("sys.argv", ["limit.py"])
    with pytest.raises(SystemExit) as ended:
        launch("__main__", limit.Settings, "")
    assert ended.value.code == 75
    assert capsys.readouterr().err == "Paused: SIGTERM: dpr after 3 of 60 steps. The same command resumes.\n"
