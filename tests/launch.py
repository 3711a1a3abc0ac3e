"""Two processes, forked or started as a shipped configuration starts them, that run checks of a test file."""

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from accelerate import Accelerator

from tests.forks import fork_group

ROOT = Path(__file__).parents[1]
# (accelerator, backbone, folder): what each of the processes runs
Check = Callable[[Accelerator, Path, Path], None]


def start(file: str, config: str, backbone: Path, folder: Path) -> None:
    """Run `checked` in two processes on the processor, which joins them with gloo.

    config: a file in experiments/configs. Where it is of two machines, each process is one.
    """
    # Not forked: a fork of a process whose OpenMP threads have run hangs.
    path = ROOT / "experiments" / "configs" / config
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(path)]
    command += ["--num_processes", "2", "--main_process_port", port, "--machine_rank"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    machines = [
        subprocess.Popen(
            [*command, str(rank), file, str(backbone), str(folder)],
            env=environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(yaml.safe_load(path.read_text())["num_machines"])
    ]
    try:
        errors = [machine.communicate(timeout=300)[1] for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()  # which, unlike a kill, ends its processes as well
    assert not any(machine.returncode for machine in machines), "".join(errors)[-4000:]


def forked(checks: Sequence[Check], backbone: Path, folder: Path) -> None:
    """Run `checked` in two forks, which find each other as the processes of torchrun do."""
    group = fork_group(
        folder / "log", 2, checked, checks, str(backbone), str(folder), ACCELERATE_USE_CPU="true"
    )
    for code, said in [process.ended() for process in group]:
        assert code == 0, said[-4000:]


def checked(checks: Sequence[Check], backbone: str, folder: str) -> None:
    """Run every check as one of the processes that `start` started, and note how each ended."""
    accelerator = Accelerator()
    assert accelerator.num_processes == 2
    for check in checks:
        try:
            check(accelerator, Path(backbone), Path(folder))
            outcome = "passed"
        except BaseException:
            outcome = traceback.format_exc()
        Path(folder, f"{check.__name__}.{accelerator.process_index}").write_text(outcome)
        accelerator.wait_for_everyone()
    accelerator.end_training()


def passed(check: Check, folder: Path) -> None:
    """AssertionError with the traceback of a process in which the check failed."""
    for process in (0, 1):
        outcome = (folder / f"{check.__name__}.{process}").read_text()
        assert outcome == "passed", outcome
