"""One of two processes is killed or fails: the other does not wait for it, and both resume exactly."""

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from paradigms.train import loop, state
from paradigms.train.checkpoints import newest_checkpoint
from paradigms.train.contrastive import Contrastive
from tests.forks import Fork, fork_group
from tests.train.test_resume import KILLED, Trap, at, go, kill, same

pytestmark = pytest.mark.slow


def half(backbone: Path, folder: Path, trap: Trap | None) -> None:
    """The work of each of the two processes."""
    go(backbone, folder, trap, batch_size=2, chunk=2)  # with gradients cached, whose dropout is drawn once


def start(backbone: Path, folder: Path, trap: Trap | None = None) -> list[Fork]:
    """Start two processes that train together, without a launcher that watches them."""
    return fork_group(folder, 2, half, backbone, folder, trap, ACCELERATE_USE_CPU="true")


def ended(group: list[Fork]) -> list[tuple[int, str]]:
    """How the processes ended, and what they said."""
    return [process.ended() for process in group]


def of_process(rank: int, act: Callable[[], None], step: int, objective: Contrastive, folder: Path) -> None:
    """Let one process act in the middle of a step, when its loss is computed."""
    if int(os.environ["RANK"]) == rank:
        at(objective, "loss", step, act)


def in_save(objective: Contrastive, folder: Path) -> None:
    """The process that writes the second checkpoint is killed there; the other waits for it."""
    if int(os.environ["RANK"]) == 0:
        at(state, "write_manifest", 2, kill)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def hanging(objective: Contrastive, folder: Path) -> None:
    """The second process computes for longer than the first one waits."""
    loop.STEP = timedelta(seconds=3)
    of_process(1, partial(time.sleep, 12), 4, objective, folder)


def fail() -> None:
    raise ValueError("no such passage")


@pytest.fixture(scope="module")
def reference(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nothing interrupted."""
    folder = tmp_path_factory.mktemp("two") / "whole"
    assert [code for code, _ in ended(start(tiny_bert, folder))] == [0, 0]
    return folder


PAUSED = "Paused: SIGTERM: colbert after 5 of 8 steps$"
FAILED = "^RuntimeError: process 1 of 2 failed at step 5, which ends the training of all.*no such passage$"
# What one process does, how each of the two ends, and the step of the newest checkpoint. By its own patience,
# the other process would wait for two days.
STOPS: dict[str, tuple[Trap, list[tuple[int, str]], int]] = {
    "SIGTERM": (partial(of_process, 1, terminate, 5), [(1, PAUSED), (1, PAUSED)], 5),
    "killed": (partial(of_process, 1, kill, 4), [(1, "Connection"), (KILLED, "")], 2),
    "killed in a save": (in_save, [(KILLED, ""), (1, "")], 2),
    "error": (partial(of_process, 1, fail, 5), [(1, "Connection"), (1, FAILED)], 4),
}


@pytest.mark.parametrize(("trap", "endings", "newest"), STOPS.values(), ids=STOPS)
def test_a_process_that_stops_ends_the_other_and_both_resume(
    trap, endings, newest, reference, tiny_bert, tmp_path
):
    folder = tmp_path / "run"
    for (code, output), (expected, message) in zip(
        ended(start(tiny_bert, folder, trap)), endings, strict=True
    ):
        assert code == expected, output
        assert re.search(message, output, re.M), output
    assert newest_checkpoint(folder) == newest
    assert [code for code, _ in ended(start(tiny_bert, folder))] == [0, 0]
    same(folder, reference)


def test_a_step_waits_for_minutes_not_for_days(tiny_bert: Path, tmp_path: Path) -> None:
    (first, one), (_, _) = ended(start(tiny_bert, tmp_path / "run", hanging))
    assert first == 1
    assert "Timed out" in one
