"""`Encoder`: what a paradigm needs of the module that computes D and Q."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paradigms.encoder.batches import Batch
from paradigms.encoder.settings import EncoderSettings, Side


class Encoder(nn.Module, ABC):
    """Compute D and Q from texts, or from whatever else the encoder reads.

    settings: of the documents' side, if the sides differ.
    """

    settings: EncoderSettings
    tokenizer: Any

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return the width of a vector."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def of(self, side: Side) -> Any:
        """Return the encoder of one side, for which `TwoTowers` has two."""
        return self

    @abstractmethod
    def tokenize(self, texts: Sequence[Any], side: Side) -> Batch:
        """Convert inputs to a batch for `forward(batch, side, chunk)`, which returns their Tokens."""

    @abstractmethod
    def labels(self, text: Any, side: Side, ids: Tensor | None = None) -> list[str]:
        """Name an input's tokens. ids: those of its Tokens, which a model of term weights needs."""

    @abstractmethod
    def document_settings(self) -> dict[str, Any]:
        """Return the settings that documents' vectors depend on."""

    @abstractmethod
    def truncated(self, dim: int | None) -> "Encoder":
        """Return an encoder with the same weights that keeps the first `dim` coordinates of vectors, or all.

        Raises ValueError if the vectors have fewer coordinates.
        """

    @abstractmethod
    def save(self, folder: Path, *, merged: bool) -> None:
        """Write the encoder to a folder. merged: add the adapters to the weights; else, write both apart."""
