"""Work that several threads share, as many as the caller of torch has set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item, Result = TypeVar("Item"), TypeVar("Result")


def shared(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """`function` of each item, in so many threads; what it calls has to let go of the interpreter lock."""
    if threads == 1:
        return [function(item) for item in items]
    return list(_pool(threads, os.getpid()).map(function, items))


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that are kept, of each process its own: they do not survive a fork."""
    return ThreadPoolExecutor(threads, "token-search")
