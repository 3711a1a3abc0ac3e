"""Code shared by the benchmarks. It needs only the standard library: workers run in peers' environments."""

import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MiB, GiB = 2**20, 2**30
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def run_worker(
    name: str, job: Mapping[str, Any], python: str, threads: int, limit: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the worker parts/{name}.py on `job` in a new process, and wait until it ends.

    Paths in the job must be absolute. Raises TimeoutExpired after `limit` seconds.
    """
    env = os.environ | dict.fromkeys(THREADS, str(threads))
    return subprocess.run(
        [python, "-m", f"parts.{name}", json.dumps(job)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],  # python -m looks here first
        env=env | {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
        timeout=limit,
    )


def tell(answer: Any) -> None:
    """Print a worker's answer as the last line of its output."""
    print(f"\n{json.dumps(answer)}", flush=True)


def last_line(printed: str) -> Any:
    """Parse the answer that `tell` printed as the last line."""
    return json.loads(printed.splitlines()[-1])


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Time a call, and return (seconds, result)."""
    began = time.perf_counter()
    value = function()
    return time.perf_counter() - began, value


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the child processes that it has waited for."""
    children = os.times()[2:4]  # in hundredths of a second
    return time.process_time() + sum(children)


def medians(
    functions: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Measure each function's median run time in seconds; after one warm-up run, functions take turns."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, taken in zip(functions, seconds, strict=True):
            began = clock()
            function()
            taken.append(clock() - began)
    return [statistics.median(taken[1:]) for taken in seconds]


def memory(line: str, file: str = "/proc/self/status") -> int:
    """Read the value of `line` in bytes. VmHWM (peak) and VmRSS include mapped files; RssAnon does not."""
    # getrusage would include the memory of the parent process in the maximum.
    match = re.search(rf"^{line}:\s*(\d+)", Path(file).read_text(), re.M)
    if not match:
        raise RuntimeError(f"{file} has no {line}: this benchmark needs Linux")
    return 1024 * int(match[1])
