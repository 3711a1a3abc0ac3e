"""Scripts launched with two processes: these share the work, or the second ends, as the page says."""

import os
import re
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("script", ["train.py", "judge.py"])
def test_two_processes(script: str) -> None:
    """Of a script of each kind: all scripts start by the one function `launch`."""
    launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, str(ROOT / "experiments" / script), "--help"]
    ended = []
    for rank in "01":
        environment = os.environ | launched | {"RANK": rank, "LOCAL_RANK": rank}
        ended.append(subprocess.run(command, env=environment, capture_output=True, text=True))
    assert [process.returncode for process in ended] == [0, 0]
    assert "runs in one process" in ended[0].stderr or SCRIPTS[script]
    assert all("--help" in process.stdout for process in ended[: 2 if SCRIPTS[script] else 1])
    assert SCRIPTS[script] or (ended[1].stdout, ended[1].stderr) == ("", "")
