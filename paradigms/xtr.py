"""rel(d, q) = 1/Z · Σⱼ maxᵢ Âᵢⱼ dᵢᵀqⱼ: ColBERT that trains on, and scores from, retrieved tokens only.

Lee et al. 2023 (arXiv:2304.01982), Eq. 2 (training) and Eq. 4 (search): XTR. A reads S of the whole pool: per
query token, argmax over i where that similarity is among the pool's k best; Z = the number of query tokens
that retrieved a token of the document. Unretrieved similarities are −∞ before the max, not 0 as printed, or
negative retrieved scores would turn into 0. In training the pool is every document of the batch, from all
processes, including those that the loss excludes for a query because they are relevant too.
"""

from dataclasses import dataclass

from paradigms.align import PoolTopK
from paradigms.encoder.settings import TokenSettings
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class XTR(TokenSettings):
    """k_train tokens of the training pool are retrieved, search_tokens (k') of the corpus.

    k_train: a number, 320 and less in the paper, or below 1 a share of the pool's tokens, so that one rule
    serves batches of any size. imputation: a key of `impute.IMPUTATIONS`.
    """

    k_train: int | float = 0.005
    search_tokens: int = 1000
    imputation: str = "kth"


@paradigm(XTR)
def xtr(settings: XTR) -> Recipe:
    """XTR over a backbone."""
    return Recipe(
        "xtr",
        PoolTopK(settings.k_train),
        "retrieved",
        search="impute",
        search_tokens=settings.search_tokens,
        imputation=settings.imputation,
        temperature=0.02,
    )
