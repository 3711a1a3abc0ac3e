"""What the compiled loops ask of a machine: rows of whole vectors, and threads, as many as torch may use."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

Item, Result = TypeVar("Item"), TypeVar("Result")

VECTOR = 16  # numbers that the kernels read at once: rows with a multiple of these are scored where they lie
WORTH = 1 << 14  # tokens to score, some .4 ms: with fewer, waking a thread costs more than it does


_busy = threading.local()


def worth(tokens: int) -> int:
    """How many threads so many tokens are worth; 1 in a thread that already shares work."""
    return 1 if getattr(_busy, "sharing", False) else min(torch.get_num_threads(), 1 + tokens // WORTH)


def shared(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """`function` of each item in so many threads, this one too; it has to release the interpreter lock."""
    items = list(items)
    results: list[Result | None] = [None] * len(items)
    places = iter(range(len(items)))  # whoever is free takes the next one: the lock keeps them apart

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
    finally:  # nothing is left for helpers that have not begun; the others may still write
        begun = [helper for helper in waiting if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return results


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that are kept, of each process its own: they do not survive a fork."""
    return ThreadPoolExecutor(threads, "token-search")
