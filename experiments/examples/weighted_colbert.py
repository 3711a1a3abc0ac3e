r"""Define new document vectors D as a plug-in: ColBERT with a learned weight for each document token.

    python experiments/compare.py --plugin experiments/examples/weighted_colbert.py \
        --systems '[colbert, weighted_colbert]' --output results/weighted-colbert
    python -m paradigms index notes --plugin experiments/examples/weighted_colbert.py \
        --model results/weighted-colbert/weighted_colbert/checkpoint

D = [w₁d₁, …, w_M d_M] with wᵢ = 2σ(aᵀdᵢ + b): training can shorten the vectors of uninformative tokens, so
that these vectors attain the maximum less often. Training starts from w = 1, which is ColBERT.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from paradigms import PARADIGMS
from paradigms.core import Tokens
from paradigms.encoder.text import ENCODERS, Batch, EncoderSettings, Side, TextEncoder


class WeightedEncoder(TextEncoder):
    """`TextEncoder` that scales each document vector by a weight computed from the vector."""

    def __init__(self, backbone: str | Path, settings: EncoderSettings) -> None:
        super().__init__(backbone, settings)
        self.weight = nn.Linear(self.dim, 1)
        nn.init.zeros_(self.weight.weight)
        nn.init.zeros_(self.weight.bias)

    def forward(self, batch: Batch, side: Side, chunk: int = 0) -> Tokens:
        tokens = super().forward(batch, side, chunk)
        if side == "query":
            return tokens
        return replace(tokens, vectors=2 * self.weight(tokens.vectors).sigmoid() * tokens.vectors)


ENCODERS["weighted"] = WeightedEncoder  # for any paradigm: colbert("offline", encoder="weighted")
PARADIGMS["weighted_colbert"] = partial(PARADIGMS["colbert"], encoder="weighted")
