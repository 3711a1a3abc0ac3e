"""A paradigm of your own: an alignment, registered, is trained, searched and reported like the others.

    python experiments/examples/add_a_paradigm.py    # compares it with ColBERT on pydocs

rel(d, q) = 1/N Σⱼ Σᵢ softmaxᵢ(Sᵢⱼ/τ) Sᵢⱼ: every query token takes a soft mixture of document tokens in place
of the best one. A is differentiable, so that training moves all tokens, not the winners alone.
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the imports that take seconds
    sys.exit(print(__doc__))

from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # for compare.py, as its own launch has it

from compare import Settings
from compare import main as compare

from paradigms import PARADIGMS, Paradigm
from paradigms.align import ALIGNMENTS, Alignment
from paradigms.core import Pairs, Tokens, Valid


def softmax(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens, *, tau: float) -> Pairs:
    """A_ij = softmax over i of S_ij/τ, within the document."""
    A = (S / tau).masked_fill(~valid, -torch.inf).softmax(-2)
    return A.masked_fill(~valid, 0.0)  # NaN where a document has no token


def soft_colbert(backbone: str | Path, tau: float = 0.1, **settings: Any) -> Paradigm:
    """ColBERT with a soft maximum."""
    recipe = {
        "align": "softmax",
        "align_knobs": {"tau": tau},
        "normalise": "query_tokens",
        "temperature": 0.02,
    }
    return Paradigm.build(backbone, settings, name="soft_colbert", **recipe)


ALIGNMENTS["softmax"] = Alignment(softmax, frozenset({"similarity"}))
PARADIGMS["soft_colbert"] = soft_colbert

if __name__ == "__main__":
    compare(Settings(paradigms=["colbert", "soft_colbert"], output="results/soft-colbert"))
