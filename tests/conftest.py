"""Fixtures shared by the tests: tiny checkpoints, written once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import FAMILIES, write_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """family -> folder of a tiny checkpoint, for every family of `tiny.FAMILIES`."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {family: write_checkpoint(family, root / family) for family in FAMILIES}


@pytest.fixture(scope="session")
def tiny_bert(checkpoints: dict[str, Path]) -> Path:
    """Folder of a tiny BERT: the backbone to take where the family does not matter."""
    return checkpoints["bert"]
