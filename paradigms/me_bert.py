"""rel(d, q) = max_{i ≤ m} dᵢᵀq: a document is its first m token vectors, a query is one vector.

Luan et al. 2021 (TACL), §3: ME-BERT. A reads S: argmax over i; Z = 1. With m = 1 and [CLS] pooling it is
DPR. Documents shorter than m have fewer vectors; padding never wins the max. As a max over inner products,
its exact search is that of one vector among m entries per document.

ME-BERT-k of §4.1 is me_bert(backbone, dim=k, layer_norm=True, normalize=False), with the projection and layer
normalisation of DE-BERT-k (see dpr.py); of ME-BERT-k the paper names the projection alone.
"""

from pathlib import Path
from typing import Any

from paradigms.model import Paradigm


def me_bert(backbone: str | Path, **settings: Any) -> Paradigm:
    """ME-BERT over `backbone`; m is the setting `first`, the others are those of `EncoderSettings`.

    τ is 1 of inner products.
    """
    return Paradigm.build(
        backbone,
        settings,
        {"query_vectors": "pooled", "document_vectors": "first", "first": 8, "dim": None},
        name="me_bert",
        align="query_to_document",
        normalise="one",
        temperature=0.05 if settings.get("normalize", True) else 1.0,
    )
