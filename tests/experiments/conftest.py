"""Verdicts and intervals in tests of the scripts rest on fewer resamples."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def few_resamples() -> Iterator[None]:
    """2,000 instead of 10,000: a corrected p of .05 is still within reach of 40 comparisons."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paradigms.evaluate.significance.RESAMPLES", 1999)
        patch.setattr("paradigms.evaluate.measures.RESAMPLES", 2000)
        yield
