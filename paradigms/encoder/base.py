"""Texts of both sides → `Tokens`: what a paradigm needs of D and Q."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paradigms.core import Tokens
from paradigms.encoder.batches import Batch
from paradigms.encoder.settings import EncoderSettings, Side


class Encoder(nn.Module, ABC):
    """What `TextEncoder` and `TwoTowers` have in common."""

    settings: EncoderSettings
    tokenizer: Any

    @property
    @abstractmethod
    def dim(self) -> int:
        """h."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @abstractmethod
    def tokenize(self, texts: Sequence[str], side: Side) -> Batch:
        """Pad and cut to the side's length; texts without tokens of their own get an all-False mask.

        TypeError for one string, or what is no string; ValueError for half a character.
        """

    @abstractmethod
    def labels(self, text: str, side: Side) -> list[str]:
        """A readable name for each place of the Tokens that this text becomes."""

    @abstractmethod
    def forward(self, batch: Batch, side: Side, chunk: int = 0) -> Tokens:
        """Tokens of x texts with axes [1, x, l, h] for documents and [x, 1, l, h] for queries.

        chunk: texts encoded at once with gradients cached (`batches.in_parts`); 0 = none are cached.
        """

    @abstractmethod
    def save(self, folder: Path, *, merged: bool) -> None:
        """Every weight and setting. merged: adapters become part of the weights that they adapt."""
