r"""Define a new alignment A as a plug-in: ColBERT with a soft maximum.

    python experiments/compare.py --plugin experiments/examples/soft_colbert.py \
        --systems '[colbert, soft_colbert]' --output results/soft-colbert
    python -m paradigms index notes --plugin experiments/examples/soft_colbert.py \
        --model results/soft-colbert/soft_colbert/checkpoint

rel(d, q) = 1/N Σⱼ Σᵢ softmaxᵢ(Sᵢⱼ/τ) Sᵢⱼ: each query token takes a mixture of document tokens instead of the
best one. A is differentiable, so training moves all tokens, not only the best.
"""

import torch

from paradigms import PARADIGMS
from paradigms.align import Alignment
from paradigms.core import TokenPairs, Tokens, Valid
from paradigms.encoder.settings import EncoderSettings
from paradigms.model import paradigm
from paradigms.recipe import Recipe


class Softmax(Alignment, reads={"similarity"}):
    """A_ij = softmax over i of S_ij/τ, within the document."""

    tau: float = 0.1

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        A = (S / self.tau).masked_fill(~valid, -torch.inf).softmax(-2)
        return A.masked_fill(~valid, 0.0)  # softmax is NaN for a document without tokens


@paradigm(EncoderSettings)
def soft_colbert(settings: EncoderSettings) -> Recipe:
    """ColBERT with a soft maximum."""
    return Recipe("soft_colbert", Softmax(), "query_tokens", temperature=0.02)


PARADIGMS["soft_colbert"] = soft_colbert
