"""Every study runs from its flags to its tables, and a second start measures nothing again."""

import json
from functools import partial

import pytest
from studies import pages

from tests.experiments.scripts import published, run
from tests.experiments.studies import STUDIES, study_flags
from tests.forks import fork_group

LONG = ("capacity", "imputation")


@pytest.mark.parametrize(
    "study", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in STUDIES]
)
def test_a_study_publishes_its_tables_and_resumes(study, finished, words, tiny_bert, seq2seq, monkeypatch):
    folder = finished(study)
    results = folder / "results"
    tables = {name for name in published(results) if not name.endswith(".svg")}
    assert tables == set(STUDIES[study].tables.split())
    claimed = [row for file in results.glob("claims*.json") for row in json.loads(file.read_text())]
    untested = [row["claim"] for row in claimed if row["verdict"].startswith("not tested: this run")]
    assert len(untested) == STUDIES[study].untested, untested
    measured = [*folder.rglob("*.json"), *folder.rglob("*.safetensors")]
    measured = [file for file in measured if file.parent != results and file.name != "config.json"]
    before = {file: file.stat().st_mtime_ns for file in measured}
    assert before
    monkeypatch.setattr(pages, "_earlier", {})  # as in another process
    (results / pages.SPENT).write_text('{"minutes": 1000.0}')
    run(study, **study_flags(study, words, tiny_bert, seq2seq, folder))
    assert before == {file: file.stat().st_mtime_ns for file in measured}
    assert json.loads((results / pages.STUDY).read_text())["minutes"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("study", [name for name, small in STUDIES.items() if small.shared])
def test_two_processes_finish_a_study(study, words, tiny_bert, seq2seq, tmp_path):
    """The first reports. The other shared scripts have tests of their own."""
    flags = study_flags(study, words, tiny_bert, seq2seq, tmp_path)
    group = fork_group(tmp_path / "log", 2, partial(run, study, **flags), ACCELERATE_USE_CPU="true")
    ended = [process.ended() for process in group]
    assert [code for code, _ in ended] == [0, 0], ended
    assert ["Report: " in said for _, said in ended] == [True, False]
