"""rel(d, q) = ⟨cls_d, cls_q⟩ + Σⱼ max_{i: id(i) = id(j)} dᵢᵀqⱼ: contextualised exact lexical match.

Gao et al. 2021 (NAACL), Eq. 3 to 5: COIL-full. A reads S and the token ids: argmax over the document
tokens with the query token's id; Z = 1. The pooled pair is part of the same rel: its vector is cut into
tokens with ids of their own (see `encode.TextEncoder._join_pooled`); `pooled_dim=0` gives COIL-tok.
The paper pools by [CLS] with 768 dimensions beside tokens of 32, and similarities are inner products.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paradigms.model import Paradigm


def coil(backbone: str | Path, **settings: Any) -> Paradigm:
    """COIL over `backbone`; settings are fields of `encoder_settings.EncoderSettings`."""
    defaults = {"dim": 32, "pooled_dim": 768, "normalize": False, "special_tokens": False}
    return Paradigm.build(
        backbone, defaults | settings, name="coil", align="equal_ids", normalise="one", temperature=1.0
    )
