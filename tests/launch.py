"""Two processes, started as torchrun starts them, that run checks of a test file; how each check ended."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from accelerate import Accelerator

ROOT = Path(__file__).parents[1]
# (accelerator, backbone, folder): what each of the processes runs
Check = Callable[[Accelerator, Path, Path], None]


def start(file: str, backbone: Path, folder: Path, config: str = "") -> None:
    """Run `checked` in two processes on the processor, which joins them with gloo.

    config: the file in experiments/configs that says how the processes share a model; by default DDP.
    """
    # Not forked: a fork of a process whose OpenMP threads have run hangs.
    launch = ["torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    if config:
        launch = ["accelerate.commands.launch", "--config_file", str(ROOT / "experiments/configs" / config)]
        launch += ["--num_processes", "2", "--main_process_port", "0"]
    environment = os.environ | {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", *launch, file, str(backbone), str(folder)]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        try:
            _, errors = run.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            run.terminate()  # which, unlike a kill, ends the two processes as well
            _, errors = run.communicate()
    assert run.returncode == 0, errors[-4000:]


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
