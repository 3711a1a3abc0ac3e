"""A single thread for all computation, which groups texts that wait for the same function into batches."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

TEXTS = 64  # maximum number of texts in a batch
WAITING = 1024  # maximum number of waiting requests
T = TypeVar("T")
Batch = Callable[..., Sequence[Any]]  # (texts, *settings) -> one answer for each text
Waiting = tuple[str, float, "asyncio.Future[tuple[Any, float]]"]  # a text, its share of a batch


class Busy(Exception):
    """Raised if `WAITING` requests are already waiting."""


class Together:
    """A thread that does all computation, and the queue of texts that wait for the thread.

    When the thread is free, it takes all texts that wait for the same function and settings as one batch. A
    text never waits for other texts to arrive, but the queries of many clients are still encoded together.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "compute")
        self._texts: dict[tuple[Any, ...], list[Waiting]] = {}  # by function and settings
        self._working: asyncio.Task[None] | None = None
        self._waiting = 0

    async def run(self, compute: Callable[[], T]) -> tuple[T, float]:
        """Run a function in the thread; return its result and its duration in seconds."""
        with self._one_more():
            return await self._run(compute)

    async def each(self, compute: Batch, text: str, share: float, *settings: Any) -> tuple[Any, float]:
        """Return a text's answer from `compute(texts, *settings)`, and its batch's duration in seconds.

        share: the part of a batch that the text takes up, at least 1 / `TEXTS`; a batch holds 1, or one text.
        """
        future = asyncio.get_running_loop().create_future()
        with self._one_more():
            self._texts.setdefault((compute, *settings), []).append((text, max(share, 1 / TEXTS), future))
            if self._working is None:
                self._working = asyncio.create_task(self._work())
            answer: tuple[Any, float] = await future
        return answer

    def close(self) -> None:
        """Stop the thread after its current computation."""
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

    async def _work(self) -> None:
        while self._texts:
            key = next(iter(self._texts))
            waiting = self._texts.pop(key)
            filled = accumulate(share for _, share, _ in waiting)
            count = max(1, sum(total <= 1 for total in filled))
            if len(waiting) > count:  # queue the rest behind other computations
                self._texts[key] = waiting[count:]
            await self._answer(key, waiting[:count])
        self._working = None

    async def _answer(self, key: tuple[Any, ...], waiting: list[Waiting]) -> None:
        compute, *settings = key
        waiting = [one for one in waiting if not one[-1].done()]  # clients that left have cancelled
        if not waiting:
            return
        texts = [text for text, *_ in waiting]
        try:
            answers, seconds = await self._run(lambda: compute(texts, *settings))
            answered = list(zip(answers, waiting, strict=True))
        except Exception as error:
            if len(waiting) > 1:  # so that only the text that causes the error fails
                for one in waiting:
                    await self._answer(key, [one])
            elif not (future := waiting[0][-1]).done():
                future.set_exception(error)
            return
        for answer, (*_, future) in answered:
            if not future.done():  # the client may have disconnected
                future.set_result((answer, seconds))
