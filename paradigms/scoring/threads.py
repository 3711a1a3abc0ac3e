"""Divide the work of compiled kernels among as many threads as torch may use."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH = 1 << 14  # tokens per thread, about .4 ms of work; with fewer, waking a thread does not pay

_busy = threading.local()


def worth(tokens: int) -> int:
    """Return how many threads are worth using for this many tokens; 1 inside a call of `shared`."""
    return 1 if getattr(_busy, "sharing", False) else min(torch.get_num_threads(), 1 + tokens // WORTH)


def shared(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Map `function`, which must release the GIL, over items in several threads, including this one."""
    items = list(items)
    results: list[Any] = [None] * len(items)
    places = iter(range(len(items)))  # each thread takes the next one; the interpreter lock makes this safe
    helpers = min(threads, len(items)) - 1

    def work() -> None:
        outer = getattr(_busy, "sharing", False)
        _busy.sharing = outer or helpers > 0
        try:
            for place in places:
                results[place] = function(items[place])
        finally:
            _busy.sharing = outer

    waiting = [_pool(threads, os.getpid()).submit(work) for _ in range(helpers)]
    try:
        work()
    finally:  # threads that have not begun are not needed; others may still be writing
        begun = [helper for helper in waiting if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return results


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process, cached for reuse. Threads do not survive a fork."""
    return ThreadPoolExecutor(threads, "token-search")
