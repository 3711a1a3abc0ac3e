"""Divide work in pure Python among processes that import nothing but the module of that work."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# multiprocessing would run the caller's script again in every process, with all of its imports.
CHILD = """
import importlib, json, sys
sys.path[:], module, name, items = json.load(sys.stdin)
json.dump(getattr(importlib.import_module(module), name)(items), sys.stdout)
"""
Work = Callable[[Sequence[Any]], list[Any]]


def in_processes(work: Work, items: Sequence[Any], least: int) -> list[Any]:
    """Compute `work(items)` in as many processes as there are processors, this one included.

    work: a function of a module that returns one result for each item. Items and results consist of what JSON
    has; a tuple may come back as a list. least: how many items are worth a process. If a process fails or
    cannot be started, its items are worked on here, which raises any error.
    """
    count = max(1, min(processors(), len(items) // least))
    results: list[Any] = [None] * len(items)
    with ThreadPoolExecutor(count) as threads:
        parts = [list(items[n::count]) for n in range(count)]
        helpers = [threads.submit(_elsewhere, work, part) for part in parts[1:]]
        results[::count] = work(parts[0])
        for n, helper in enumerate(helpers, 1):
            answer = helper.result()
            results[n::count] = json.loads(answer) if answer else work(parts[n])
    return results


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _elsewhere(work: Work, items: Sequence[Any]) -> bytes:
    """Return another process's results as JSON, or nothing if it failed."""
    job = json.dumps([sys.path, work.__module__, work.__name__, items]).encode()
    command = [sys.executable, "-P", "-c", CHILD]  # -P: modules in the current folder are not imported
    try:
        return subprocess.run(command, input=job, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""
