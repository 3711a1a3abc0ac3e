"""Processes that can be killed: forked in milliseconds from a server that has imported everything once.

The server runs one thread (a fork of a process whose OpenMP threads have run hangs), so results are the same
in every fork, bit for bit.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
PATIENCE = 200.0  # seconds after which a process that should have ended counts as hanging
# What the server imports, so that no fork of it has to.
PRELOADED = ["transformers.models.bert.modeling_bert", "transformers.models.t5.modeling_t5", "scipy.stats"]
PRELOADED += ["compare", "paradigms.cli.commands", "paradigms.find", "tests.train.test_resume"]


@dataclass
class Fork:
    """A process that runs a function of a test module; its standard streams are captured."""

    process: ForkServerProcess
    log: Path

    def ended(self) -> tuple[int, str]:
        """Wait; return the exit status (−N for signal N) and the output; AssertionError if it hangs."""
        self.process.join(PATIENCE)
        hangs = self.process.exitcode is None
        if hangs:
            self.process.kill()
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""  # killed before it began
        self.log.unlink(missing_ok=True)  # another process may write there next
        assert not hangs, f"still running after {PATIENCE:.0f} s: {text[-2000:]}"
        assert self.process.exitcode is not None
        return self.process.exitcode, text

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something holds, or the process has ended."""
        until = time.monotonic() + PATIENCE
        while self.process.is_alive() and not reached():
            assert time.monotonic() < until, f"still waiting: {self.log.read_text(errors='replace')[-2000:]}"
            time.sleep(0.002)


def fork(log: Path, function: Callable[..., None], *arguments: Any, **environment: str) -> Fork:
    """Start `function(*arguments)` in a separate process, with additional environment variables."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    root = Path(__file__).parents[1]
    with patch.dict(os.environ, ALONE | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'experiments'}"}):
        process = context.Process(target=_run, args=(log, environment, function, *arguments))
        process.start()
    return Fork(process, log)


def fork_group(
    log: Path, count: int, function: Callable[..., None], *arguments: Any, **environment: str
) -> list[Fork]:
    """`count` processes that find each other as those of torchrun do, without a launcher to watch them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [
        fork(
            log.with_suffix(f".{rank}"), function, *arguments, **common, RANK=str(rank), LOCAL_RANK=str(rank)
        )
        for rank in range(count)
    ]


def _run(log: Path, environment: dict[str, str], function: Callable[..., None], *arguments: Any) -> None:
    with log.open("ab", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # of its own children: it is one of a fork server's
    from paradigms.encoder import precision

    precision._native_on_cpu = lambda: False  # as in conftest.py, which forks do not read
    function(*arguments)
