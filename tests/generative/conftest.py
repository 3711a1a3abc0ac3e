"""Backbones of every family that a generative paradigm reads."""

import pytest

from tests.tiny_generative import write_bart


@pytest.fixture(scope="session")
def bases(seq2seq, tiny_bert, tmp_path_factory):
    """Map a family to the folder of a tiny checkpoint: the families of `seq2seq`, "bart" and "bert"."""
    bart = write_bart(tmp_path_factory.mktemp("bart"), seq2seq["t5"])
    return {**seq2seq, "bart": bart, "bert": tiny_bert}
