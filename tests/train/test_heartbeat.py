"""A process that is lost ends the others soon; work of one process that takes long does not."""

import atexit
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from paradigms.train import heartbeat
from paradigms.train.parallel import by_main
from tests.forks import fork_group

SILENCE = 1.0


def joined() -> None:
    dist.init_process_group("gloo", timeout=timedelta(days=2))
    heartbeat.BEAT = 0.1
    heartbeat.SILENCE = SILENCE
    heartbeat.start_heartbeat()


def stopped(lost: int) -> None:
    """A process stops without closing a connection, as a machine that is gone; process 0 has the store."""
    joined()
    dist.barrier()
    if dist.get_rank() == lost:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def long_work() -> None:
    """Process 0 works three times as long as a lost process would be waited for, also after 1 has ended."""
    from accelerate import Accelerator

    joined()
    accelerator = Accelerator()
    assert by_main(lambda: time.sleep(3 * SILENCE) or 7, accelerator) == 7
    if accelerator.is_main_process:
        time.sleep(3 * SILENCE)
    atexit._run_exitfuncs()  # which multiprocessing's children skip
    print("ended", file=sys.stderr)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_others(lost: int, tmp_path: Path) -> None:
    group = fork_group(tmp_path / "log", 2, stopped, lost)
    try:
        code, text = group[1 - lost].ended()
    finally:
        group[lost].process.kill()
    assert code == 1
    assert f"process {1 - lost} ends: no sign of life from process {lost} of 2 for 1 s." in text


def test_long_work_of_one_process_is_waited_for(tmp_path: Path) -> None:
    group = fork_group(tmp_path / "log", 2, long_work, ACCELERATE_USE_CPU="true")
    assert [process.ended()[0] for process in group] == [0, 0]
