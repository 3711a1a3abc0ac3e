"""rel(d, q) = max_{i ≤ m} dᵢᵀq: a document has m vectors, and a query has one.

Luan et al. 2021 (TACL), §3: ME-BERT. The alignment A depends on S: it selects the argmax over i; Z = 1.
Documents with fewer than m tokens have fewer vectors; padding never wins the max. Since rel is a max over
inner products, exact search is a single-vector search over m entries per document.

In the paper, a document's vectors are the states of [CLS] and of the first m − 1 tokens: me_bert(backbone,
document_vectors="first"); with m = 1 and [CLS] pooling, this is DPR. The query's vector in the paper is the
state of [CLS]. Most published encoders use mean pooling instead, and single states perform poorly until they
are trained for this use. By default, a document's vectors are therefore the means of m equal spans of its
text; with m = 1, this is DPR with mean pooling. "learned" learns how to pool tokens into m vectors.

ME-BERT-k of §4.1 is me_bert(backbone, dim=k, layer_norm=True, normalize=False), with the projection and layer
normalisation of DE-BERT-k (see dpr.py). For ME-BERT-k, the paper mentions only the projection.
"""

from dataclasses import dataclass

from paradigms.align import QueryToDocument
from paradigms.encoder.settings import EncoderSettings, Vectors
from paradigms.model import paradigm
from paradigms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class MEBERT(EncoderSettings):
    """Settings for ME-BERT, which makes one vector per query and m = `vectors` vectors per document."""

    query_vectors: Vectors = "pooled"
    document_vectors: Vectors = "spans"


@paradigm(MEBERT)
def me_bert(settings: MEBERT) -> Recipe:
    """Build ME-BERT over a backbone. The temperature τ is 1 for inner products."""
    return Recipe("me_bert", QueryToDocument(), "one", temperature=0.05 if settings.normalize else 1.0)
