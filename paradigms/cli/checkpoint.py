"""Which model a command takes, and how many words of a text it reads."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.cli.arguments import OFFLINE
from paradigms.data.texts import WORDS
from paradigms.generative.model import Generative
from paradigms.registry import load


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `load` is given: names, or the whole paths of folders."""

    model: str = OFFLINE
    document_model: str = ""  # "" = the same
    model_layout: str = ""  # a key of `FORMATS`; "" = its files tell

    @classmethod
    def of(cls, settings: argparse.Namespace) -> Checkpoint:
        """That which a command was given."""
        return cls(
            model=settings.model if settings.model == OFFLINE else whole(settings.model),
            document_model=whole(settings.document_model),
            model_layout=settings.model_layout,
        )

    def open(self, *, pickled: bool) -> Any:
        """The model, on the GPU if there is one; errors as those of `load`."""
        documents, layout = self.document_model or None, self.model_layout or None
        model = load(self.model, documents=documents, layout=layout, pickled=pickled)
        return model.to("cuda" if torch.cuda.is_available() else "cpu")


def whole(name: str) -> str:
    """A path that holds in any current folder; other names are kept."""
    return os.path.abspath(name) if name and Path(name).exists() else name


def words_that_fit(model: Any) -> int:
    """`WORDS`, or what a model reads where that is less: two words for three tokens, as in English prose."""
    if isinstance(model, Generative):  # whose documents are in its weights
        return WORDS
    length = (model if isinstance(model, CrossAttention) else model.encoder.settings).document_length
    return max(1, min(WORDS, 2 * length // 3))
