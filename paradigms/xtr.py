"""rel(d, q) = 1/Z · Σⱼ maxᵢ Âᵢⱼ dᵢᵀqⱼ: ColBERT trained and scored on retrieved tokens only.

Lee et al. 2023 (arXiv:2304.01982), Eq. 2 (training) and Eq. 4 (search): XTR. The alignment A depends on the
similarities S of the whole pool: for each query token, A selects the argmax over i, provided that its
similarity is among the k largest in the pool. Z is the number of query tokens that retrieved a token of the
document. Unretrieved similarities are −∞ before the max, not 0 as printed in the paper; otherwise, negative
retrieved scores would become 0. In training, the pool is every document of the batch, from all processes,
including relevant documents that the loss excludes for a query.
"""

from dataclasses import dataclass

from paradigms.align import PoolTopK
from paradigms.encoder.settings import TokenSettings
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class XTR(TokenSettings):
    """Settings for XTR: a query token retrieves k_train tokens in training and search_tokens (k') in search.

    k_train: a number (at most 320 in the paper) or, if below 1, a share of the pool's tokens, which suits
    batches of any size. imputation: a key of `impute.IMPUTATIONS`.
    """

    k_train: int | float = 0.005
    search_tokens: int = 1000
    imputation: str = "kth"


@paradigm(XTR)
def xtr(settings: XTR) -> Recipe:
    """Build XTR over a backbone. Raises ValueError for a salience, which a search could not read."""
    if settings.weighs:
        raise ValueError("XTR has no salience: its search imputes similarities (Eq. 4), which reads none")
    return Recipe(
        "xtr",
        PoolTopK(settings.k_train),
        "retrieved",
        search="impute",
        search_tokens=settings.search_tokens,
        imputation=settings.imputation,
        temperature=0.02,
    )
