"""rel(d, q) = dᵀq: dense passage retrieval with one vector on each side.

Karpukhin et al. 2020 (EMNLP). The alignment A is always the 1×1 matrix (1), and Z = 1. The paper uses two
BERT towers, [CLS] and the raw inner product. Here, the tower is shared and similarities are cosines by
default. With mean pooling, this is also how sentence-transformers models are trained.

DE-BERT-k of Luan et al. 2021 (TACL), §4.1, is dpr(backbone, dim=k, layer_norm=True, normalize=False): [CLS],
a linear projection to k dimensions, layer normalisation and the inner product. For k = 768, the paper has no
projection: dpr(backbone, normalize=False).
"""

from dataclasses import dataclass

from paradigms.align import AllPairs
from paradigms.encoder.settings import EncoderSettings, Vectors
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class DPR(EncoderSettings):
    """Settings for DPR, which encodes each text as one vector of the backbone's width."""

    query_vectors: Vectors = "pooled"
    document_vectors: Vectors = "pooled"


@paradigm(DPR)
def dpr(settings: DPR) -> Recipe:
    """Build DPR over a backbone. The temperature τ is 1 for inner products."""
    return Recipe("dpr", AllPairs(), "one", temperature=0.05 if settings.normalize else 1.0)
