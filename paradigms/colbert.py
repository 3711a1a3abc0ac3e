"""rel(d, q) = (1/N) Σⱼ maxᵢ dᵢᵀqⱼ: late interaction, where every query token takes its best document token.

Khattab & Zaharia 2020 (SIGIR), Eq. 3: ColBERT. The alignment A depends on S: it selects the argmax over i for
each query token. The paper has Z = 1; Z = N, used by Lee et al. 2023 (Eq. 1), gives the same ranking and
makes the loss's scale independent of query length. The paper's marker tokens [Q] and [D], [MASK] augmentation
and punctuation skip list are settings.

The paper projects token states to 128 dimensions (`dim=128`). The projection starts out random, and a short
training run does not fix that, so by default there is no projection. The index saves space instead: 384
dimensions of 4 bits take less space than 128 dimensions of 16 bits.
"""

from dataclasses import dataclass

from paradigms.align import QueryToDocument
from paradigms.encoder.settings import TokenSettings
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ColBERT(TokenSettings):
    """Settings for ColBERT, which keeps all token vectors except those of punctuation in documents."""


@paradigm(ColBERT)
def colbert(settings: ColBERT) -> Recipe:
    """Build ColBERT over a backbone."""
    return Recipe("colbert", QueryToDocument(), "query_tokens", temperature=0.02)
