"""Neural retrieval paradigms, each expressed as rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A).

An `Alignment` (`align`) chooses A, a `Store` (`store`) keeps D, a `Retriever` (`retrieve`) answers queries.
The core, from `core` up to `train`, needs nothing else. The rooms above it are `generative`, the
cross-attention of `baselines`, `saving`, `view`, `engines`, `serve` and `cli`. Each can be deleted; the core
names them only in `rooms`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paradigms.aligner import aligner as ALIGNER
    from paradigms.baselines.bm25 import BM25
    from paradigms.baselines.cross_attention import CrossAttention
    from paradigms.coil import coil as COIL
    from paradigms.colbert import colbert as ColBERT
    from paradigms.dpr import dpr as DPR
    from paradigms.generative.model import Generative
    from paradigms.loading import load
    from paradigms.model import Paradigm
    from paradigms.registry import GENERATIVE, PARADIGMS, RERANKERS
    from paradigms.retrieve import Indexed as Index
    from paradigms.saved import export
    from paradigms.splade import splade as SPLADE
    from paradigms.xtr import xtr as XTR

__all__ = [
    "ALIGNER",
    "BM25",
    "COIL",
    "DPR",
    "GENERATIVE",
    "PARADIGMS",
    "RERANKERS",
    "SPLADE",
    "XTR",
    "ColBERT",
    "CrossAttention",
    "Generative",
    "Index",
    "Paradigm",
    "export",
    "load",
]


PLACES = {
    "load": "loading.load",
    "export": "saved.export",
    "BM25": "baselines.bm25.BM25",
    "Index": "retrieve.Indexed",
}


def __getattr__(name: str) -> Any:
    """Import names in `__all__` on first use, so that submodules that do not need torch import quickly."""
    if name == "__version__":
        from importlib.metadata import version

        return version("retrieval-paradigms")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from paradigms.rooms import ROOMS

    if name in ROOMS:
        return getattr(import_module(f"paradigms.{ROOMS[name]}"), name)
    if name in PLACES:
        module, _, attribute = PLACES[name].rpartition(".")
        return getattr(import_module(f"paradigms.{module}"), attribute)
    registry = import_module("paradigms.registry")
    return getattr(registry, name) if hasattr(registry, name) else registry.PARADIGMS[name]
