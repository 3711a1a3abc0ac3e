"""Settings that a script cannot run end with one line that names them."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from studies.settings import launch, refusing

from paradigms.train.loop import Paused
from tests.experiments.scripts import SMALL, run

HERE = Path(__file__).parent  # a folder without a checkpoint
# script -> flags, what the line says
REFUSED: dict[str, list[tuple[dict[str, object], str]]] = {
    "alignment_adaptation": [
        ({"trained_with": '["k=3"]'}, 'trained_with: unknown "k=3"; there are "k=1", "k=2"'),
        ({"checkpoint": HERE}, "--checkpoint: "),
    ],
    "capacity": [
        ({"systems": '["DE-BERT-x"]'}, "systems: unknown DE-BERT-x; there are DE-BERT-k"),
        ({"hybrids": '["CROSS-ATTENTION"]'}, "hybrids: unknown CROSS-ATTENTION"),
        ({"task": "answers", "lengths": "[1000]", "tokens": 60}, r"lengths=\[1000\]"),
    ],
    "compare": [
        ({"systems": "[dpr,bert]"}, "system bert: unknown paradigm bert; there are dpr"),
        ({"systems": '{"a": {"paradigm": "dpr", "dim": 3}}'}, "system a: unknown settings: 'dim'; there are"),
        ({"systems": '{"a": {"paradigm": "dpr", "training": {"stepz": 3}}}'}, "system a, training: "),
        ({"systems": '{"a": {"paradigm": "dpr", "index": "i"}}'}, "system a: index needs the checkpoint"),
        ({"systems": '{"a/b": {"paradigm": "dpr"}}'}, "system 'a/b': it also names a folder"),
        ({"systems": '{"runs": {"paradigm": "dpr"}}'}, "system runs: the results folder uses this name"),
        ({"baseline": "splade"}, "not among the compared systems"),
        ({"collection": "nowhere"}, "no collection 'nowhere'"),
        ({"backbone": "bert-base-uncasedd"}, "the backbone 'bert-base-uncasedd' is not a folder"),
        ({"split": "tset"}, "has no split 'tset'"),
    ],
    "encode": [
        (
            {"checkpoint": HERE, "index": "compressed", "options": '{"bitz": 2}'},
            "options: TypeError: .*'bitz'",
        ),
    ],
    "document_encoding": [
        ({"systems": '["DSI","NCI"]'}, 'systems: unknown "NCI"; there are "DPR", .*, "T5-ColBERT, pairs", '),
        ({"systems": "[DSI, GENRE-NP-ASYNC]"}, "GENRE-NP-ASYNC cannot run.* set --frozen false"),
    ],
    "generate_queries": [
        ({"model": "x", "prompt": "no place"}, "prompt must hold one"),
    ],
    "hybrid": [
        ({"vectors": 0}, "vectors must be at least 1"),
        ({"rerank_depths": "[11]", "depth": 10}, "reach 11, but only 10 are retrieved"),
    ],
    "limit": [
        ({"relevant": 30, "largest": 60}, "relevant must be at most"),
        ({"parts": "[]"}, "parts"),
        ({"documents": 90}, "words are needed"),
    ],
    "salience_pruning": [({"l1": "[0]"}, "coefficients above 0")],
    "serving_costs": [
        ({"paradigms": '["bm26"]'}, 'paradigms: unknown "bm26"'),
    ],
    "theory_checks": [
        ({"only": "lemma_1,lemma_9"}, r"lemma_9.*there are: lemma_1"),
    ],
    "train": [
        (
            {"backbone": "/nowhere/at/all"},
            "the backbone /nowhere/at/all is a path, and this folder does not exist",
        ),
        ({"run": "some.run", "negatives": 0}, "needs hard negatives: set --negatives"),
        ({"pool": "[1]"}, r"pool must be at least 2, got \[1\]"),
        ({"batch_size": 64}, "batch of 64 .* larger than the 27 training examples"),
        ({"teacher": "some.run", "negatives": 1}, "set both --teacher and --distil, or neither"),
        ({"teacher": "nowhere.run", "distil": "kl", "negatives": 1}, "nowhere.run is neither a run, nor a m"),
        ({"filter_share": 0.9}, "apply to scores: set --filter"),
        ({"paradigm": "dsi", "run": "some.run", "negatives": 1}, "dsi takes hard negatives from BM25"),
        ({"generated": "x.jsonl"}, "generated queries train dsi, genre, seal, ripor, pag, not colbert"),
        (
            {"paradigm": "genre", "options": '{"tokens": "clusters", "refresh": 1}', "workers": 1},
            "would make batches before genre renews its clusters: set workers=0",
        ),
    ],
}


@pytest.mark.parametrize(
    ("script", "flags", "message"), [(script, *row) for script, rows in REFUSED.items() for row in rows]
)
def test_what_cannot_be_run_ends_with_a_line(
    script: str,
    flags: dict[str, object],
    message: str,
    words: Path,
    tiny_bert: Path,
    seq2seq: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = import_module(script)
    backbone = seq2seq["t5"] if flags.get("paradigm") == "genre" else tiny_bert
    given = {"collection": words, "collections": f'["{words}"]', "backbone": backbone}
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


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(TypeError), refusing("dpr: "):
        len(3)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="dpr: TypeError: "), refusing("dpr: ", options=True):
        len(3)  # type: ignore[arg-type]


def test_a_study_that_is_told_to_stop_has_the_status_of_a_pause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = import_module("limit")

    def main(_: object) -> None:
        raise Paused("SIGTERM: dpr after 3 of 60 steps")

    monkeypatch.setattr(limit, "main", main)
    monkeypatch.setattr("sys.argv", ["limit.py"])
    with pytest.raises(SystemExit) as ended:
        launch("__main__", limit.Settings, "")
    assert ended.value.code == 75
    assert capsys.readouterr().err == "Paused: SIGTERM: dpr after 3 of 60 steps. The same command resumes.\n"
