"""One thread for all computation, which merges waiting searches of the same system into one."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from paradigms.serve.systems import ServedSystem

QUERIES = 64  # of one search, at most
WAITING = 1024  # requests, at most
T = TypeVar("T")
Waiting = tuple[str, "asyncio.Future[tuple[dict[str, float], float]]"]


class Busy(Exception):
    """Raised when more requests wait than `WAITING`."""


class Together:
    """The thread in which everything is computed, and the searches that wait for it.

    A search begins as soon as the thread is free, with all queries that wait for the same system and k. No
    query waits for others to arrive, yet with many clients the queries of a search are encoded together.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "compute")
        self._queries: dict[tuple[ServedSystem, int], list[Waiting]] = {}
        self._searching: asyncio.Task[None] | None = None
        self._waiting = 0

    async def run(self, compute: Callable[[], T]) -> tuple[T, float]:
        """Run a function in the thread; return its result and its seconds."""
        with self._one_more():
            return await self._run(compute)

    async def search(self, system: ServedSystem, query: str, k: int) -> tuple[dict[str, float], float]:
        """Find a query's k best documents; return them and the seconds of the search that it shared."""
        future = asyncio.get_running_loop().create_future()
        with self._one_more():
            self._queries.setdefault((system, k), []).append((query, future))
            if self._searching is None:
                self._searching = asyncio.create_task(self._search())
            ranked: tuple[dict[str, float], float] = await future
        return ranked

    def close(self) -> None:
        """End the thread once its current computation is done."""
        self._thread.shutdown(cancel_futures=True)

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        if self._waiting >= WAITING:
            raise Busy(f"{WAITING:,} requests wait: try again later")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _run(self, compute: Callable[[], T]) -> tuple[T, float]:
        def timed() -> tuple[T, float]:
            began = time.perf_counter()
            return compute(), time.perf_counter() - began

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    async def _search(self) -> None:
        while self._queries:
            key = next(iter(self._queries))
            waiting = self._queries.pop(key)
            if len(waiting) > QUERIES:  # the rest goes behind the other systems' searches
                self._queries[key] = waiting[QUERIES:]
            await self._answer(*key, waiting[:QUERIES])
        self._searching = None

    async def _answer(self, system: ServedSystem, k: int, waiting: list[Waiting]) -> None:
        texts = {str(n): query for n, (query, _) in enumerate(waiting)}
        try:
            run, seconds = await self._run(lambda: system.retriever.search(texts, k))
        except Exception as error:
            if len(waiting) > 1:  # only the query that causes the error fails
                for one in waiting:
                    await self._answer(system, k, [one])
            elif not (future := waiting[0][1]).done():
                future.set_exception(error)
            return
        for n, (_, future) in enumerate(waiting):
            if not future.done():  # its client may have left
                future.set_result((run[str(n)], seconds))
