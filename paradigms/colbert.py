"""rel(d, q) = (1/N) Σⱼ maxᵢ dᵢᵀqⱼ: late interaction, every query token takes its best document token.

Khattab & Zaharia 2020 (SIGIR), Eq. 3: ColBERT. A reads S: per query token, argmax over i. The paper has
Z = 1; Z = N, used by Lee et al. 2023 (Eq. 1), ranks the same and gives the loss one scale for queries of
every length. Markers, [MASK] augmentation and the punctuation skip list of the paper are settings.

The paper projects token states to 128 dimensions: `dim=128`. The projection is random at first, and a short
training does not repair that, so by default there is none. An index saves the bytes instead: 384 dimensions
of 4 bits take fewer than 128 of 16 bits.
"""

from dataclasses import dataclass

from paradigms.align import QueryToDocument
from paradigms.encoder.settings import TokenSettings
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ColBERT(TokenSettings):
    """All token vectors; punctuation of documents is skipped."""


@paradigm(ColBERT)
def colbert(settings: ColBERT) -> Recipe:
    """ColBERT over a backbone."""
    return Recipe("colbert", QueryToDocument(), "query_tokens", temperature=0.02)
