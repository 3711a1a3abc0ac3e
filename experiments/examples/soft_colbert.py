r"""A new A, as a plug-in: ColBERT with a soft maximum.

    python experiments/compare.py --plugin experiments/examples/soft_colbert.py \
        --systems '[colbert, soft_colbert]' --output results/soft-colbert
    python -m paradigms index notes --plugin experiments/examples/soft_colbert.py \
        --model results/soft-colbert/soft_colbert/checkpoint

rel(d, q) = 1/N Σⱼ Σᵢ softmaxᵢ(Sᵢⱼ/τ) Sᵢⱼ: each query token takes a mixture of document tokens in place of the
best one. A is differentiable, so training moves all tokens, not only the best.
"""

from pathlib import Path
from typing import Any

import torch

from paradigms import PARADIGMS, Paradigm
from paradigms.align import ALIGNMENTS, Alignment
from paradigms.core import Pairs, Tokens, Valid


def softmax(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens, *, tau: float) -> Pairs:
    """A_ij = softmax over i of S_ij/τ, within the document."""
    A = (S / tau).masked_fill(~valid, -torch.inf).softmax(-2)
    return A.masked_fill(~valid, 0.0)  # NaN for a document without tokens


def soft_colbert(backbone: str | Path, tau: float = 0.1, **settings: Any) -> Paradigm:
    """ColBERT with a soft maximum of temperature `tau`."""
    return Paradigm.build(
        backbone,
        settings,
        name="soft_colbert",
        align="softmax",
        align_knobs={"tau": tau},
        normalise="query_tokens",
        temperature=0.02,
    )


ALIGNMENTS["softmax"] = Alignment(softmax, frozenset({"similarity"}))
PARADIGMS["soft_colbert"] = soft_colbert
