"""rel(d, q) = ⟨cls_d, cls_q⟩ + Σⱼ max_{i: id(i) = id(j)} dᵢᵀqⱼ: contextualised exact lexical match.

Gao et al. 2021 (NAACL), Eq. 3 to 5: COIL-full. The alignment A depends on S and the token ids: it selects the
argmax over the document tokens with the query token's id; Z = 1. The pooled vectors are part of the same rel,
because each is cut into tokens with reserved ids (see `encoder.text.TextEncoder._join_pooled`);
`pooled_dim=0` gives COIL-tok. The paper uses 768 dimensions (BERT's width) for [CLS] and 32 for tokens;
similarities are inner products.
"""

from dataclasses import dataclass
from typing import Annotated

from paradigms.align import EqualIds
from paradigms.encoder.settings import EncoderSettings
from paradigms.io.checks import Range
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class COIL(EncoderSettings):
    """Settings for COIL: 32-dimensional token vectors, and a pooled vector about as wide as the backbone."""

    dim: Annotated[int | None, Range(1, 1 << 14)] = 32
    pooled_dim: Annotated[int | None, Range(0, 1 << 14)] = None
    normalize: bool = False
    special_tokens: bool = False


@paradigm(COIL)
def coil(settings: COIL) -> Recipe:
    """Build COIL over a backbone."""
    return Recipe("coil", EqualIds(), "one", temperature=1.0)
