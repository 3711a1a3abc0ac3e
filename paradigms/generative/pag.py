"""rel(d, q) = Σᵢ s·hᵢᵀ E_{i,cᵢ} + Σ_{t ∈ T_d} max_j w_tᵀq_j: `ripor`'s sequence, and a set to plan ahead by.

PAG (Zeng et al. 2024, SIGIR, arXiv:2404.14600). The set part is known for all documents before decoding
(`sets`); a beam is scored by its prefix and by the largest set part of the documents that the prefix begins.
A search with as many beams as identifiers ranks by rel exactly.
"""

from pathlib import Path
from typing import Any

from paradigms.data import Corpus
from paradigms.generative.model import Generative
from paradigms.generative.ripor import ripor


def pag(backbone: str | Path, corpus: Corpus, *, set_size: int = 32, **settings: Any) -> Generative:
    """PAG over `backbone`; settings are those of `ripor`. set_size: tokens of a document's set (PAG: 64)."""
    options: dict[str, Any] = {"name": "pag", "set_size": set_size}
    return ripor(backbone, corpus, **options | settings)
