"""Run the checks of a test file in two processes, or a script as `accelerate launch` starts it."""

import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from accelerate import Accelerator
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from tests.forks import PATIENCE, fork_group
from tests.near import compute_throughout_in_float64

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "experiments" / "configs"
# (accelerator, backbone, folder): what each of the processes runs
Check = Callable[[Accelerator, Path, Path], None]


def on_two_machines(*command: str) -> list[str]:
    """Start the two processes of nodes_2.yaml on the CPU, each by its own launcher; return their outputs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    launch += ["--config_file", str(CONFIGS / "nodes_2.yaml"), "--main_process_port", port, "--machine_rank"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    how: dict = {"env": environment, "cwd": ROOT, "text": True}
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    machines = [subprocess.Popen([*launch, rank, *command], **how) for rank in "01"]
    try:
        said = [machine.communicate(timeout=300) for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()  # which, unlike a kill, ends its processes as well
    assert not any(machine.returncode for machine in machines), "".join(error for _, error in said)[-4000:]
    return [output for output, _ in said]


def environment(config: str) -> dict[str, str]:
    """The environment that accelerate sets for a configuration in experiments/configs."""
    given = ["--config_file", str(CONFIGS / config), "--num_processes", "2"]
    given += ["--main_process_port", "0", "x.py"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(given))
    results = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in results.items() if os.environ.get(name) != value}


def forked(checks: Sequence[Check], backbone: Path, folder: Path, **environment: str) -> None:
    """Run `checked` in two forks on the CPU, which find each other with gloo as torchrun's processes do."""
    environment |= {"ACCELERATE_USE_CPU": "true"}
    group = fork_group(folder / "log", 2, checked, checks, str(backbone), str(folder), **environment)
    ended = [process.ended() for process in group]
    assert not any(code for code, _ in ended), "\n".join(f"{code}: {said[-4000:]}" for code, said in ended)


def checked(checks: Sequence[Check], backbone: str, folder: str) -> None:
    """Run every check as one of the two processes, and note how each ended."""
    compute_throughout_in_float64(pytest.MonkeyPatch())  # as in conftest.py, which forks do not read
    accelerator = Accelerator()
    assert accelerator.num_processes == 2
    for check in checks:
        try:
            check(accelerator, Path(backbone), Path(folder))
            outcome = "passed"
        except BaseException:
            outcome = traceback.format_exc()
        Path(folder, f"{check.__name__}.{accelerator.process_index}").write_text(outcome)
        # not a barrier of gloo's: one that a process leaves for good can fail in the other (pytorch/gloo#155)
        other = Path(folder, f"{check.__name__}.{1 - accelerator.process_index}")
        until = time.monotonic() + PATIENCE / 2
        while not other.exists():
            assert time.monotonic() < until, f"{other.name} is missing; this process: {outcome}"
            time.sleep(0.01)
    accelerator.end_training()


def passed(check: Check, folder: Path) -> None:
    """AssertionError with the traceback of a process in which the check failed."""
    for process in (0, 1):
        outcome = (folder / f"{check.__name__}.{process}").read_text()
        assert outcome == "passed", outcome
