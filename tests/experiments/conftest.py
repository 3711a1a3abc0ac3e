"""Verdicts and intervals in tests of the scripts rest on fewer resamples."""

import inspect
from collections.abc import Iterator

import pytest

from paradigms.evaluate.measures import seeds_interval


@pytest.fixture(autouse=True, scope="module")
def few_resamples() -> Iterator[None]:
    """2,000 instead of 10,000: a corrected p of .05 is still within reach of 40 comparisons."""
    defaults = inspect.unwrap(seeds_interval).__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paradigms.evaluate.significance.RESAMPLES", 1999)
        patch.setattr("paradigms.evaluate.measures.RESAMPLES", 2000)
        patch.setitem(defaults, "resamples", 2000)
        yield
