"""The benchmark of the fused kernels: its systems score the same, and a cell that fails is a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paradigms.align import one, query_to_document
from paradigms.core import Tokens, rel
from tests.scoring.interpreted import needs_triton

BENCHMARKS = Path(__file__).parents[2] / "experiments" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import fused_scoring as bench  # noqa: E402

ROW = {"precision": "float32", "tokens": "3x7", "batch": 4}


def tiny(system: str = "kernels", **settings: object) -> bench.Settings:
    return bench.Settings(batches=[4, 5], tokens=["3x7"], dim=16, systems=[system], shortest=0.3, **settings)


@pytest.mark.parametrize("chunk", [bench.CHUNK, 500])
@pytest.mark.parametrize("system", [name for name in bench.SYSTEMS if name not in bench.PACKAGES])
def test_every_system_scores_what_rel_does(system: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients; PyLate's zeros count as similarities, so vectors are positive here."""
    monkeypatch.setattr(bench, "CHUNK", chunk)
    sides = [
        Tokens(t.vectors.detach().abs().requires_grad_(), t.mask)
        for t in bench.random_tokens(tiny(), "cpu", ROW)
    ]
    assert not sides[0].mask.all()
    results = []
    for scores in (bench.SYSTEMS[system](*sides), rel(*sides, query_to_document, one)):
        gradients = torch.autograd.grad((scores * scores.detach()).sum(), [t.vectors for t in sides])
        results.append([scores.detach(), *gradients])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_an_error_is_measured_against_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = bench.random_tokens(tiny(), "cpu", ROW)
    assert max(bench.errors("kernels", *sides).values()) < 1e-6
    monkeypatch.setitem(bench.SYSTEMS, "kernels", lambda d, q: 1.1 * bench.einsum(d, q))
    assert bench.errors("kernels", *sides)["error_of_scores"] == pytest.approx(0.1)
    assert bench.is_wrong(ROW | {"system": "kernels"} | bench.errors("kernels", *sides))


def test_what_fails_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> Tensor:
        raise error

    row = ROW | {"system": "kernels"}
    monkeypatch.setitem(bench.SYSTEMS, "kernels", lambda *_: fails(torch.OutOfMemoryError("no memory")))
    full = bench.cell(tiny(), "cpu", row)
    assert full == {"failed": "out of memory"}
    assert not bench.is_wrong(row | full)
    monkeypatch.setitem(bench.SYSTEMS, "kernels", lambda *_: fails(ValueError("odd\nmore")))
    odd = bench.cell(tiny(), "cpu", row)
    assert odd == {"failed": "ValueError: odd"}
    assert bench.is_wrong(row | odd)
    assert not bench.is_wrong(row | odd | {"system": "pylate"})
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    assert bench.cell(tiny(), "cpu", row | {"system": "flash_maxsim"}) == {"failed": "not installed"}


def test_larger_batches_are_not_compared_again() -> None:
    assert bench.cell(tiny(), "cpu", ROW | {"system": "einsum", "batch": 5}) == {}


def test_the_table_has_ratios_to_the_plain_einsum() -> None:
    times = {"forward_ms": 1.0, "peak_mib": 10.0, "step_tflops": 5.0}
    rows = [
        {"batch": 4, "system": "kernels", "step_ms": 2.0, "error_of_scores": 2e-7, "error_of_x": 1e-7}
        | times,
        {"batch": 4, "system": "einsum", "step_ms": 8.0} | times | {"peak_mib": 50.0},
        {"batch": 4, "system": "pylate", "failed": "out of memory"},
    ]
    table = bench.as_table(rows, "")
    columns = [list(column.cells) for column in table.columns]
    assert columns[3:] == [
        ["2.00", "8.00", ""],
        ["4.0", "1.0", ""],
        ["10", "50", ""],
        ["5.0", "1.0", ""],
        ["5", "5", ""],
        ["2e-07", "", ""],
    ]
    assert columns[2] == ["1.00", "1.00", "out of memory"]


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for installed, message in ((True, "there is no GPU"), (None, "Triton is not installed")):
        monkeypatch.setattr(bench, "find_spec", lambda _, installed=installed: installed)
        with pytest.raises(SystemExit) as end:
            bench.main(tiny())
        assert end.value.code == bench.NO_GPU
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"systems": ["warp"]}, "unknown system warp; there are kernels, chunks"),
        ({"precisions": ["int8"]}, "unknown precision int8"),
        ({"tokens": ["32"]}, "tokens such as 32x180"),
        ({"batches": []}, "give batches"),
    ],
)
def test_settings_are_checked(settings: dict, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        bench.Settings(**settings)


def test_the_check_starts_again_with_interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(bench, "find_spec", lambda _: True)
    monkeypatch.setattr(os, "execve", lambda *arguments: (started.append(arguments), sys.exit(0)))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit):
        bench.main(tiny(interpret=True))
    program, arguments, environment = started[0]
    assert (program, arguments) == (sys.executable, sys.orig_argv)
    assert environment == os.environ | {"TRITON_INTERPRET": "1"}


@needs_triton
def test_the_kernels_are_checked_without_a_gpu(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    script = [sys.executable, str(BENCHMARKS / "fused_scoring.py"), "--interpret", "true"]
    script += ["--precisions", "[float32]", "--output", str(output)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    ended = subprocess.run(script, capture_output=True, text=True, check=True, env=environment)
    assert "Triton's interpreter: float32" in ended.stdout
    rows = json.loads(output.read_text())["rows"]
    assert [row["system"] for row in rows] == ["kernels"]
    assert 0 < max(bench.differences(rows[0])) < 1e-5
