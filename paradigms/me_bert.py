"""rel(d, q) = max_{i ≤ m} dᵢᵀq: a document is its first m token vectors, a query is one vector.

Luan et al. 2021 (TACL), §4: ME-BERT. A reads S: argmax over i; Z = 1. With m = 1 and [CLS] pooling it is
DPR. Documents shorter than m have fewer vectors; padding never wins the max.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paradigms.model import Paradigm


def me_bert(backbone: str | Path, **settings: Any) -> Paradigm:
    """ME-BERT over `backbone`; m is the setting `first`, the others are those of `EncoderSettings`."""
    defaults = {"query_vectors": "pooled", "document_vectors": "first", "dim": None}
    return Paradigm.build(
        backbone,
        defaults | settings,
        name="me_bert",
        align="query_to_document",
        normalise="one",
        temperature=0.05,
    )
