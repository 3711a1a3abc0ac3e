"""Work that threads share: nested, from several callers at once, and where it fails."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paradigms.scoring.threads import shared, worth

MANY = 1 << 20  # tokens, worth all threads


@pytest.fixture(autouse=True)
def two_threads() -> None:
    torch.set_num_threads(2)


def nested(_: int) -> list[int]:
    """A search that divides queries among threads, and whose scoring would divide documents."""
    first = worth(MANY)
    shared(lambda n: time.sleep(0.001), range(4), worth(MANY))
    return [first, worth(MANY)]


def test_work_within_shared_work_takes_no_more_threads() -> None:
    assert shared(nested, range(6), 2) == [[1, 1]] * 6
    assert worth(MANY) == 2


def test_callers_at_once_do_not_wait_for_each_other() -> None:
    def inner(_: int) -> list[int]:
        return shared(lambda n: n, range(3), 2)  # asks for threads that all may be taken

    with ThreadPoolExecutor(3) as callers:
        results = [callers.submit(shared, inner, range(20), 2) for _ in range(3)]
        assert [one.result(timeout=60) for one in results] == [[[0, 1, 2]] * 20] * 3


def test_what_fails_leaves_no_thread_at_work() -> None:
    running: set[int] = set()

    def fails(n: int) -> None:
        running.add(threading.get_ident())
        time.sleep(0.02)
        running.discard(threading.get_ident())
        if n == 0:
            raise ValueError("zero")

    with pytest.raises(ValueError, match="zero"):
        shared(fails, range(8), 2)
    assert not running
