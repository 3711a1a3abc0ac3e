"""Tests of the scripts draw fewer resamples and repeat no measured query."""

import inspect
from collections.abc import Iterator

import pytest

from paradigms.evaluate.measures import seeds_interval


@pytest.fixture(autouse=True, scope="module")
def few_repetitions() -> Iterator[None]:
    """2,000 resamples instead of 10,000: a corrected p of .05 is still within reach of 40 comparisons."""
    defaults = inspect.unwrap(seeds_interval).__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paradigms.evaluate.significance.RESAMPLES", 1999)
        patch.setattr("paradigms.evaluate.measures.RESAMPLES", 2000)
        patch.setitem(defaults, "resamples", 2000)
        patch.setattr("studies.system_runs.ROUNDS", 1)
        yield
