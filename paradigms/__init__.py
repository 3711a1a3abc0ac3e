"""Neural retrieval paradigms, each expressed as rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A).

An `Alignment` (`align`) chooses A, a `Store` (`store`) keeps D, a `Retriever` (`retrieve`) answers queries.
The core, from `core` up to `train`, needs nothing else. The rooms above it are `generative`, the
cross-attention of `baselines`, `saving`, `view`, `engines`, `serve` and `cli`. Each can be deleted; the core
names them only in `rooms` and here.
"""

from importlib import import_module
from typing import Any

# Name -> its module and its name there; `__init__.pyi` has them for type checkers.
PLACES = {name: f"registry.{name}" for name in ("PARADIGMS", "GENERATIVE", "RERANKERS")}
PLACES |= {n: f"{n.lower()}.{n.lower()}" for n in ("ALIGNER", "COIL", "ColBERT", "DPR", "SPLADE", "XTR")}
PLACES |= {"BM25": "baselines.bm25.BM25", "CrossAttention": "baselines.cross_attention.CrossAttention"}
PLACES |= {"Generative": "generative.model.Generative", "Index": "retrieve.Indexed"}
PLACES |= {"Paradigm": "model.Paradigm", "export": "saved.export", "load": "loading.load"}
__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    """Import names in `__all__` on first use, so that submodules that do not need torch import quickly."""
    if name == "__version__":
        from importlib.metadata import version

        return version("retrieval-paradigms")
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PLACES[name].rpartition(".")
    return getattr(import_module(f"paradigms.{module}"), attribute)
