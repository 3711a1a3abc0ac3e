"""rel(d, q) = 1/Z · Σⱼ maxᵢ Âᵢⱼ dᵢᵀqⱼ: ColBERT that trains on, and scores from, retrieved tokens only.

Lee et al. 2023 (arXiv:2304.01982), Eq. 2 (training) and Eq. 4 (search): XTR. A reads S of the whole pool:
per query token, argmax over i where that similarity is among the pool's k best; Z = the query tokens that
retrieved something of the document. Unretrieved similarities are −∞ before the max, not 0 as printed, or
negative retrieved scores would turn into 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.align import retrieved_tokens
from paradigms.core import Pairs, Valid
from paradigms.model import Paradigm


def xtr(backbone: str | Path, k_train: int = 320, search_tokens: int = 1000, **settings: Any) -> Paradigm:
    """XTR over `backbone`: k_train tokens of the training pool, search_tokens (k') of the corpus."""
    return Paradigm.build(
        backbone,
        settings,
        name="xtr",
        align="pool_top_k",
        align_knobs={"k": k_train},
        normalise="retrieved",
        search="impute",
        search_tokens=search_tokens,
        temperature=0.02,
    )


def imputed_rel(S: Pairs, valid: Valid, k: int) -> Float[Tensor, "b n"]:
    """f_XTR'(q, d) = 1/N Σⱼ (maxᵢ dᵢᵀqⱼ if a token of d is among j's k best of the pool, else mⱼ), Eq. 4.

    mⱼ is the smallest retrieved similarity, the k-th best, a bound on all that was not retrieved. S and
    valid [b, n, i, j] span the whole corpus: this is the readable twin of the index search, not a fast path.
    """
    retrieved = retrieved_tokens(S, valid, k)
    missing = S.masked_fill(~retrieved, torch.inf).amin((1, 2))[:, None]
    best = S.masked_fill(~retrieved, -torch.inf).amax(-2)
    real = retrieved.any(-2).any(1)[:, None]
    filled = best.where(retrieved.any(-2), missing).where(real, 0)
    return filled.sum(-1) / real.sum(-1).clamp(min=1)
