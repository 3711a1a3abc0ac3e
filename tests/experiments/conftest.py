"""Tests of the scripts draw fewer resamples and repeat no measured query; each study runs once."""

import inspect
from pathlib import Path

import pytest

from paradigms.evaluate.measures import seeds_interval
from tests.experiments.scripts import run
from tests.experiments.studies import study_flags


@pytest.fixture(autouse=True, scope="module")
def few_repetitions():
    """2,000 resamples instead of 10,000: a corrected p of .05 is still within reach of 40 comparisons."""
    defaults = inspect.unwrap(seeds_interval).__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paradigms.evaluate.significance.RESAMPLES", 1999)
        patch.setattr("paradigms.evaluate.measures.RESAMPLES", 2000)
        patch.setitem(defaults, "resamples", 2000)
        patch.setattr("studies.system_runs.ROUNDS", 1)
        yield


@pytest.fixture(scope="session")
def finished(words, tiny_bert, seq2seq, tmp_path_factory):
    """Study -> a folder with its results of the collection `words`, and its models where it trains pairs."""
    folders: dict[str, Path] = {}

    def folder_of(study: str) -> Path:
        if study not in folders:
            folder = tmp_path_factory.mktemp(study)
            run(study, **study_flags(study, words, tiny_bert, seq2seq, folder))
            folders[study] = folder
        return folders[study]

    return folder_of
