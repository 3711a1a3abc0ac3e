"""rel(d, q) = dᵀq: dense passage retrieval, one vector on each side.

Karpukhin et al. 2020 (EMNLP). A is the 1×1 one and reads nothing; Z = 1. The paper uses two BERT towers,
[CLS] and the raw inner product; here the tower is shared and similarities are cosines by default, which
with mean pooling is also what the sentence-transformers family trains.

DE-BERT-k of Luan et al. 2021 (TACL), §4.1, is dpr(backbone, dim=k, layer_norm=True, normalize=False): [CLS],
a linear projection to k, layer normalisation, the inner product; without a projection (its k = 768)
dpr(backbone, normalize=False).
"""

from dataclasses import dataclass

from paradigms.align import AllPairs
from paradigms.encoder.settings import EncoderSettings, Vectors
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class DPR(EncoderSettings):
    """One vector of the backbone's width for each text."""

    query_vectors: Vectors = "pooled"
    document_vectors: Vectors = "pooled"


@paradigm(DPR)
def dpr(settings: DPR) -> Recipe:
    """DPR over a backbone. τ is 1 for inner products."""
    return Recipe("dpr", AllPairs(), "one", temperature=0.05 if settings.normalize else 1.0)
