"""rel(d, q) = Σᵢ s·hᵢᵀ E_{i,cᵢ} + Σ_{t ∈ T_d} max_j w_tᵀq_j: `ripor`'s rel, plus a set part for planning.

PAG (Zeng et al. 2024, SIGIR, arXiv:2404.14600). The set part is known for all documents before decoding
(`sets`); a beam is scored by its prefix and by the largest set part among the documents whose identifiers
begin with the prefix. A search with as many beams as identifiers ranks exactly by rel.
"""

from pathlib import Path
from typing import Any

from paradigms.data import Corpus
from paradigms.generative.model import Generative
from paradigms.generative.ripor import ripor


def pag(backbone: str | Path, corpus: Corpus, *, set_size: int = 32, **settings: Any) -> Generative:
    """Build PAG over `backbone`.

    set_size: number of tokens in a document's set (64 in the paper). settings: further arguments of `ripor`.
    """
    options: dict[str, Any] = {"name": "pag", "set_size": set_size}
    return ripor(backbone, corpus, **options | settings)
