"""The checks for a GPU, at their sizes for a CPU."""

from pathlib import Path

import gpu
import pytest

from paradigms.io.checks import read_json

CHEAP = {
    "kernels": "needs a GPU",
    "in_batch_scores": "passed",
    "dropout_replay": "passed",
    "host_waits": "passed",
}


def outcomes(folder: Path) -> dict[str, str]:
    (file,) = folder.glob("gpu-*.json")
    return {row["check"]: row["outcome"] for row in read_json(file)["sections"]["checks"]["rows"]}


def test_cheap_checks_pass_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written, and only a check that failed runs again."""
    calls: list[str] = []

    def broken(place: gpu.Place) -> gpu.Rows:
        """Does it work?"""
        calls.append("broken")
        raise ValueError("no")

    checks = {name: gpu.CHECKS[name] for name in CHEAP} | {"broken": broken}
    monkeypatch.setattr(gpu, "CHECKS", checks)
    settings = gpu.Settings(output=str(tmp_path))
    assert gpu.main(settings) == 1
    assert outcomes(tmp_path) == CHEAP | {"broken": "failed"}
    for name in CHEAP:
        monkeypatch.setitem(checks, name, broken)
    assert gpu.main(settings) == 1
    assert calls == ["broken"] * 2
