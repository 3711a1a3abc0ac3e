"""rel(d, q) = 1/Z · Σⱼ maxᵢ Âᵢⱼ dᵢᵀqⱼ: ColBERT that trains on, and scores from, retrieved tokens only.

Lee et al. 2023 (arXiv:2304.01982), Eq. 2 (training) and Eq. 4 (search): XTR. A reads S of the whole pool:
per query token, argmax over i where that similarity is among the pool's k best; Z = the query tokens that
retrieved something of the document. Unretrieved similarities are −∞ before the max, not 0 as printed, or
negative retrieved scores would turn into 0. In training the pool is every document of the batch, of all
processes, those included that the loss sets aside for a query as relevant too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.align import retrieved_tokens
from paradigms.core import Pairs, Valid
from paradigms.impute import IMPUTATIONS, filled_mean
from paradigms.model import Paradigm


def xtr(
    backbone: str | Path,
    k_train: int = 320,
    search_tokens: int = 1000,
    imputation: str = "kth",
    **settings: Any,
) -> Paradigm:
    """XTR over `backbone`: k_train tokens of the training pool, search_tokens (k') of the corpus.

    imputation: a key of `impute.IMPUTATIONS`.
    """
    return Paradigm.build(
        backbone,
        settings,
        name="xtr",
        align="pool_top_k",
        align_knobs={"k": k_train},
        normalise="retrieved",
        search="impute",
        search_tokens=search_tokens,
        imputation=imputation,
        temperature=0.02,
    )


def imputed_rel(S: Pairs, valid: Valid, k: int, imputation: str = "kth") -> Float[Tensor, "b n"]:
    """f_XTR'(q, d) = 1/N Σⱼ (maxᵢ dᵢᵀqⱼ if a token of d is among j's k best of the pool, else mⱼ), Eq. 4.

    mⱼ: a function of `impute.IMPUTATIONS`, by default the k-th best similarity, a bound on all that was not
    retrieved; with "none" Z is not N but the query tokens that retrieved something of d. S and valid
    [b, n, i, j] span the whole corpus: this is the readable twin of the index search, not a fast path.
    """
    retrieved = retrieved_tokens(S, valid, k)
    pool = S.masked_fill(~valid, -torch.inf).movedim(-1, 1).flatten(2)  # [b, j, n·i]
    best = pool.topk(min(k, pool.shape[-1])).values
    tokens = valid.any(-1).flatten(1).sum(1).tolist()
    missing = torch.stack([IMPUTATIONS[imputation](*of) for of in zip(best, tokens, strict=True)])
    return filled_mean(S.masked_fill(~retrieved, -torch.inf).amax(-2), missing[:, None])
