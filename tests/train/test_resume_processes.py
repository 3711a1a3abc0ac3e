"""One of two processes is killed or fails: the other does not wait for it, and both resume exactly."""

import os
import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from paradigms.train import loop, state
from paradigms.train.checkpoints import checkpoint_steps, newest_checkpoint
from paradigms.train.contrastive import Contrastive
from tests.forks import Fork, fork_group
from tests.train.test_resume import Trap, at, go, kill, same

pytestmark = pytest.mark.slow
SOON = 60.0  # seconds, on a busy machine; by its own patience alone a process would wait for two days
CPU = {"ACCELERATE_USE_CPU": "true"}


def half(backbone: Path, folder: Path, trap: Trap | None) -> None:
    """The work of each of the two processes."""
    go(backbone, folder, trap, batch_size=2, chunk=2)  # with gradients cached, whose dropout is drawn once


def start(backbone: Path, folder: Path, trap: Trap | None = None) -> list[Fork]:
    """Start two processes that train together, without a launcher that watches them."""
    return fork_group(folder, 2, half, backbone, folder, trap, **CPU)


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


def test_one_of_two_is_told_to_end(whole: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """Both save after this step and pause; the same command resumes them."""
    group = start(tiny_bert, tmp_path / "run", partial(of_process, 1, terminate, 5))
    for code, said in ended(group):
        assert code == 1, said
        assert said.splitlines()[-1].endswith("Paused: SIGTERM: colbert after 5 of 8 steps")
    assert newest_checkpoint(tmp_path / "run") == 5
    assert [code for code, _ in ended(start(tiny_bert, tmp_path / "run"))] == [0, 0]
    same(tmp_path / "run", whole)


def test_a_step_waits_for_minutes_not_for_days(tiny_bert: Path, tmp_path: Path) -> None:
    (first, one), (_, _) = ended(start(tiny_bert, tmp_path / "run", hanging))
    assert first == 1
    assert "Timed out" in one


@pytest.fixture(scope="module")
def whole(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nothing interrupted."""
    folder = tmp_path_factory.mktemp("two") / "whole"
    assert [code for code, _ in ended(start(tiny_bert, folder))] == [0, 0]
    return folder


def test_one_of_two_is_killed_at_a_random_step(whole: Path, tiny_bert: Path, tmp_path: Path) -> None:
    step, folder = random.Random(1).randint(3, 8), tmp_path / "run"
    other, killed = start(tiny_bert, folder, partial(of_process, 1, kill, step))
    code, said = killed.ended()
    assert code == -signal.SIGKILL, said
    at = time.monotonic()
    code, said = other.ended()
    assert time.monotonic() - at < SOON
    assert code == 1, said
    assert "Connection" in said.splitlines()[-1]  # reset, or closed, by the other
    assert newest_checkpoint(folder) is not None
    assert [code for code, _ in ended(start(tiny_bert, folder))] == [0, 0]
    same(folder, whole)


def test_the_one_that_writes_a_checkpoint_is_killed(whole: Path, tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (first, said), (second, _) = ended(start(tiny_bert, folder, in_save))
    assert (first, second) == (-signal.SIGKILL, 1), said
    assert checkpoint_steps(folder) == [2]
    assert [code for code, _ in ended(start(tiny_bert, folder))] == [0, 0]
    same(folder, whole)


def test_an_error_of_one_process_ends_both(tiny_bert: Path, tmp_path: Path) -> None:
    """No script continues after this kind of error: the other process would be at another point."""
    group = start(tiny_bert, tmp_path / "run", partial(of_process, 1, fail, 5))
    (first, one), (second, two) = ended(group)
    assert (first, second) == (1, 1)
    last = two.splitlines()[-1]
    assert last.startswith("RuntimeError: process 1 of 2 failed at step 5, which ends the training of all")
    assert last.endswith("ValueError: no such passage")
    assert "Connection" in one.splitlines()[-1]
    assert newest_checkpoint(tmp_path / "run") == 4
