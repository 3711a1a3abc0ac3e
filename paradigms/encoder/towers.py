"""Two separate encoders (towers) for queries and documents, used as one encoder."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paradigms.core import Tokens
from paradigms.encoder.base import Encoder
from paradigms.encoder.batches import Batch
from paradigms.encoder.settings import SIDES, Side
from paradigms.encoder.text import TextEncoder


class TwoTowers(Encoder):
    """Separate encoders for queries and documents, as in DPR (Karpukhin et al. 2020).

    A saved pair has one folder per side. `settings` are the document encoder's; `described` returns both
    encoders' settings. Raises ValueError if the encoders' vectors have different widths.
    """

    def __init__(self, query: TextEncoder, document: TextEncoder) -> None:
        super().__init__()
        if query.dim != document.dim:
            raise ValueError(f"queries have {query.dim} dimensions and documents {document.dim}")
        self.towers = nn.ModuleDict({"query": query, "document": document})
        self.settings = document.settings
        self.tokenizer = document.tokenizer

    @property
    def dim(self) -> int:
        return self.of("document").dim

    def truncated(self, dim: int | None) -> "TwoTowers":
        return TwoTowers(*(self.of(side).truncated(dim) for side in SIDES))

    def tokenize(self, texts: Sequence[str], side: Side) -> Batch:
        return self.of(side).tokenize(texts, side)

    def labels(self, text: str, side: Side, ids: Tensor | None = None) -> list[str]:
        return self.of(side).labels(text, side, ids)

    def forward(self, batch: Batch, side: Side, chunk: int = 0) -> Tokens:
        return self.of(side)(batch, side, chunk)

    def document_settings(self) -> dict[str, Any]:
        return self.of("document").document_settings()

    def save(self, folder: Path, *, merged: bool) -> None:
        for side in SIDES:
            self.of(side).save(folder / side, merged=merged)

    @classmethod
    def load(cls, folder: Path) -> "TwoTowers":
        return cls(*(TextEncoder.load(folder / side) for side in SIDES))

    def of(self, side: Side) -> TextEncoder:
        tower: Any = self.towers[side]
        return tower


def described(encoder: Encoder) -> dict[str, Any]:
    """Return all settings of an encoder; for two towers, "query_tower" holds the query tower's settings."""
    query = {"query_tower": asdict(encoder.of("query").settings)} if isinstance(encoder, TwoTowers) else {}
    return asdict(encoder.settings) | query
