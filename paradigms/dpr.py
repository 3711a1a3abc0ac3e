"""rel(d, q) = dᵀq: dense passage retrieval, one vector on each side.

Karpukhin et al. 2020 (EMNLP). A is the 1×1 one and reads nothing; Z = 1. The paper uses two BERT towers,
[CLS] and the raw inner product; here the tower is shared and similarities are cosines by default, which
with mean pooling is also what the sentence-transformers family trains.

DE-BERT-k of Luan et al. 2021 (TACL), §4.1, is dpr(backbone, dim=k, layer_norm=True, normalize=False): [CLS],
a linear projection to k, layer normalisation, the inner product; without a projection (its k = 768)
dpr(backbone, normalize=False).
"""

from pathlib import Path
from typing import Any

from paradigms.model import Paradigm


def dpr(backbone: str | Path, **settings: Any) -> Paradigm:
    """DPR over `backbone`; settings are those of `EncoderSettings`. τ is 1 of inner products."""
    return Paradigm.build(
        backbone,
        settings,
        {"query_vectors": "pooled", "document_vectors": "pooled", "dim": None},
        name="dpr",
        align="all_pairs",
        normalise="one",
        temperature=0.05 if settings.get("normalize", True) else 1.0,
    )
