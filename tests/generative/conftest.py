"""Backbones of every family that a generative paradigm reads."""

from pathlib import Path

import pytest

from tests.tiny_generative import write_bart


@pytest.fixture(scope="session")
def bases(
    seq2seq: dict[str, Path], tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Map a family to the folder of a tiny checkpoint: the families of `seq2seq`, "bart" and "bert"."""
    bart = write_bart(tmp_path_factory.mktemp("bart"), seq2seq["t5"])
    return {**seq2seq, "bart": bart, "bert": tiny_bert}
