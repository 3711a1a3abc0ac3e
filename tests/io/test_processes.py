"""Work divided among processes: the same results in the same order, and the errors of this process."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from paradigms.io import processes
from paradigms.io.processes import in_processes

PARENT = "TEST_PROCESSES_PARENT"


def squares(items: Sequence[int]) -> list[tuple[int, int]]:
    """Each item's square, and the process that computed it."""
    return [(item * item, os.getpid()) for item in items]


def only_here(items: Sequence[int]) -> list[int]:
    if os.environ[PARENT] != str(os.getpid()):
        raise OSError("another process")
    return [1 // item for item in items]


@pytest.mark.parametrize(
    ("available", "least", "used"), [(1, 1, 1), (3, 1, 3), (3, 5, 2), (3, 12, 1), (64, 4, 2)]
)
def test_results_are_in_order_whatever_the_number_of_processes(monkeypatch, tmp_path, available, least, used):
    monkeypatch.setattr(processes, "processors", lambda: available)
    Path(tmp_path, "json.py").write_text("raise SystemExit('a module of the current folder')")
    monkeypatch.chdir(tmp_path)
    results = in_processes(squares, range(11), least)
    assert [square for square, _ in results] == [n * n for n in range(11)]
    assert len({process for _, process in results}) == used
    assert in_processes(squares, [], least) == []


@pytest.mark.parametrize("executable", [sys.executable, "/no/such/python", ""])
def test_what_another_process_cannot_do_is_done_here(monkeypatch, executable):
    monkeypatch.setattr(processes, "processors", lambda: 2)
    monkeypatch.setenv(PARENT, str(os.getpid()))
    monkeypatch.setattr(sys, "executable", executable)
    assert in_processes(only_here, [1, 1, 2, 1], 1) == [1, 1, 0, 1]
    with pytest.raises(ZeroDivisionError):
        in_processes(only_here, [1, 0, 2, 1], 1)


def test_there_is_a_processor():
    assert 1 <= processes.processors() <= (os.cpu_count() or 1)
