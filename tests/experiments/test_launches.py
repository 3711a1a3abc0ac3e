"""Scripts launched with two processes: these share the work, or the second ends, as the page says."""

import os
import re

import pytest
from studies import settings

from tests.launch import ROOT

SCRIPTS = {
    str(file.relative_to(ROOT / "experiments")): "processes=True" in call[0]
    for file in sorted((ROOT / "experiments").rglob("*.py"))
    if (call := re.search(r"^launch\(__name__.*$", file.read_text(), re.MULTILINE))
}


def test_the_page_lists_what_several_processes_share() -> None:
    page = (ROOT / "paradigms" / "train" / "SCALE.md").read_text()
    (row,) = re.findall(r"^\| shared by all processes \| (.*) \|$", page, re.MULTILINE)
    assert re.findall(r"`(\w+\.py)`", row) == [name for name, shared in SCRIPTS.items() if shared]


@pytest.mark.parametrize(
    "ranks",
    [
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    ],
)
def test_a_script_for_one_process_runs_once_in_a_launch_of_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ranks: dict[str, str]
) -> None:
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    settings.leave_to_first()
    assert not ranks.keys() & os.environ.keys()
    assert "runs in one process; the others end" in capsys.readouterr().err
    settings.leave_to_first()
    monkeypatch.setenv(next(iter(ranks)), "1")
    with pytest.raises(SystemExit) as ended:
        settings.launch("__main__", object, "")
    assert ended.value.code == 0
    assert capsys.readouterr() == ("", "")
