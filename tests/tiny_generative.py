"""Tiny generative models: a checkpoint of `tiny.write_seq2seq` with identifiers given as lists of tokens."""

from pathlib import Path
from typing import Any

import torch

from paradigms.data import Problems
from paradigms.generative.identifiers import END, Identifiers, Targets, make
from paradigms.generative.model import Generative
from paradigms.generative.outputs import ScoreName
from paradigms.generative.settings import GenerativeSettings

Sequences = list[list[int]]
VOCABULARY = 310  # of the identifiers; that of the checkpoints is larger


def named(rows: Sequences) -> Identifiers:
    """One identifier for each of the documents d0, d1, …, closed by the end token."""
    return _identifiers("title", rows, END)


def texts(rows: Sequences) -> Identifiers:
    """Identifiers of the documents d0, d1, …: every substring of their texts."""
    return _identifiers("text", rows, None)


def _identifiers(kind: str, rows: Sequences, end: int | None) -> Identifiers:
    starts = range(sum(map(len, rows)))  # every token begins a word
    return make(kind, [f"d{n}" for n in range(len(rows))], rows, VOCABULARY, end, Problems(), starts)


def generative(folder: Path, identifiers: Identifiers, *more: Any, **settings: Any) -> Generative:
    """A model without dropout in float64, where rounding does not change an order."""
    torch.manual_seed(0)
    model = Generative(GenerativeSettings("test", **settings), folder, identifiers, *more)
    return model.double().eval()


def log_p(model: Generative, query: str, sequence: list[int], scorer: ScoreName = "log_probability") -> float:
    """rel of one pair: the sum of the scores of the sequence's tokens."""
    with torch.inference_mode():
        targets = Targets.pad([[sequence]])
        return float(model(model.tokenize([query]), targets, scorer).sum())
