"""Measure time, memory and disk of work in a process of its own, in this or in a peer's environment.

    python -m parts.measuring WORKER

prints, as the last line, what `measure` in parts/WORKER.py returns for the job, a JSON object, that it reads.
Only the standard library is imported here, because workers run in peers' environments.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
MiB = 2**20
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
PEERS = ("maxsim_cpu", "fast_plaid")  # systems with their modules' names


def in_worker(
    name: str, job: Mapping[str, Any], threads: int, python: str = sys.executable, limit: float | None = None
) -> Any:
    """Return a worker's answer to a job, computed in a new process of the interpreter `python`.

    Paths in the job must be absolute. Raises CalledProcessError if the worker fails, and TimeoutExpired after
    `limit` seconds.
    """
    variables = os.environ | dict.fromkeys(THREADS, str(threads))
    done = subprocess.run(
        [python, "-m", "parts.measuring", name],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],  # python -m looks here first
        env=variables | {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
        timeout=limit,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def new_process() -> ProcessPoolExecutor:
    """Start a process that runs this project's functions, without memory that was used before."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def interpreters(environments: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each peer that is installed in one of the virtual environments."""
    pythons = {}
    for environment in environments:
        python = Path(environment).absolute() / "bin" / "python"
        if not python.is_file():
            raise SystemExit(f"--peers: {environment} is not a virtual environment ({python} is missing)")
        for system in PEERS:
            if not subprocess.run([python, "-c", f"import {system}"], capture_output=True).returncode:
                pythons[system] = str(python)
    return pythons


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the child processes that it has waited for."""
    children = os.times()[2:4]  # in hundredths of a second
    return time.process_time() + sum(children)


def timed(work: Callable[[], Result], clock: Callable[[], float] = cpu_seconds) -> tuple[float, Result]:
    began = clock()
    result = work()
    return clock() - began, result


def medians(
    functions: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Measure each function's median run time in seconds; after one warm-up run, functions take turns."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, taken in zip(functions, seconds, strict=True):
            taken.append(timed(function, clock)[0])
    return [statistics.median(taken[1:]) for taken in seconds]


def memory(line: str = "VmHWM") -> int:
    """Read the value of `line` in bytes. VmHWM (peak) and VmRSS include mapped files; RssAnon does not."""
    # getrusage would include the memory of the parent process in the maximum.
    match = re.search(rf"^{line}:\s*(\d+)", Path("/proc/self/status").read_text(), re.M)
    if not match:
        raise RuntimeError(f"/proc/self/status has no {line}: this benchmark needs Linux")
    return 1024 * int(match[1])


class Peak:
    """Peak disk usage of a folder in bytes, sampled ten times per second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.bytes

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.bytes = max(self.bytes, folder_bytes(self.folder))


def folder_bytes(folder: Path) -> int:
    """Return the disk usage of a folder's files in bytes; files may be moved or deleted meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):  # os.walk ignores a missing folder; Path.rglob raises
        for name in names:
            with suppress(FileNotFoundError):
                size += 512 * os.stat(os.path.join(place, name)).st_blocks
    return size


if __name__ == "__main__":
    answer = import_module(f"parts.{sys.argv[1]}").measure(json.load(sys.stdin))
    print(f"\n{json.dumps(answer)}", flush=True)
