"""(d₁, …, d_M), for many queries at once: the token sequences that a decoder is asked to write, padded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from paradigms.generative.identifiers import START


@dataclass(frozen=True)
class Targets:
    """n token sequences for each of b queries, padded."""

    ids: Int[Tensor, "b n m"]
    mask: Bool[Tensor, "b n m"]  # True = a token that counts
    start: int = START  # what the decoder reads before the first

    def to(self, device: torch.device | str) -> "Targets":
        return Targets(self.ids.to(device), self.mask.to(device), self.start)

    @property
    def inputs(self) -> Int[Tensor, "b n m"]:
        """What the decoder reads: the same, one place later."""
        return nn.functional.pad(self.ids[..., :-1], (1, 0), value=self.start)

    @classmethod
    def pad(cls, rows: Sequence[Sequence[Sequence[int]]], start: int = START) -> "Targets":
        """From token sequences, rows[b][n]; every query needs as many. See `Generative.targets`."""
        length = max(len(tokens) for sequences in rows for tokens in sequences)
        ids = [[[*t, *[START] * (length - len(t))] for t in sequences] for sequences in rows]
        mask = [[[place < len(t) for place in range(length)] for t in sequences] for sequences in rows]
        return cls(torch.tensor(ids), torch.tensor(mask), start)
