"""Fixtures of the scripts' tests."""

from pathlib import Path

import pytest

from tests.experiments.scripts import write_words


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a collection of forty documents; queries q0 to q29 train, q30 to q39 test."""
    return write_words(tmp_path_factory.mktemp("words"))
