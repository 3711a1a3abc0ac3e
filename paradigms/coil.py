"""rel(d, q) = ⟨cls_d, cls_q⟩ + Σⱼ max_{i: id(i) = id(j)} dᵢᵀqⱼ: contextualised exact lexical match.

Gao et al. 2021 (NAACL), Eq. 3 to 5: COIL-full. A reads S and the token ids: argmax over the document
tokens with the query token's id; Z = 1. The pooled pair is part of the same rel: its vector is cut into
tokens with ids of their own (see `encoder.text.TextEncoder._join_pooled`); `pooled_dim=0` gives COIL-tok.
The paper pools [CLS] to 768 dimensions, the width of BERT, beside tokens of 32; similarities are inner
products.
"""

from pathlib import Path
from typing import Any

from paradigms.encoder.published import width
from paradigms.model import Paradigm

DIM = 32  # of token vectors


def coil(backbone: str | Path, **settings: Any) -> Paradigm:
    """COIL over `backbone`; settings are those of `EncoderSettings`.

    pooled_dim is by default the backbone's width, rounded down to a multiple of dim.
    """
    dim = settings.get("dim") or DIM
    return Paradigm.build(
        backbone,
        settings,
        {
            "dim": DIM,
            "pooled_dim": max(1, width(backbone) // dim) * dim,
            "normalize": False,
            "special_tokens": False,
        },
        name="coil",
        align="equal_ids",
        normalise="one",
        temperature=1.0,
    )
