"""Neural retrieval paradigms, each expressed as rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A).

An `Alignment` (`align`) chooses A, a `Store` (`store`) keeps D, a `Retriever` (`retrieve`) answers queries.
The core, from `core` up to `train`, needs nothing else. The rooms above it are `generative`, the
cross-attention of `baselines`, `saving`, `view`, `engines`, `serve` and `cli`. Each can be deleted; the core
names them only in `rooms`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paradigms.baselines.cross_attention import CrossAttention
    from paradigms.generative.model import Generative
    from paradigms.loading import load
    from paradigms.model import Paradigm
    from paradigms.registry import GENERATIVE, PARADIGMS, RERANKERS

__all__ = ["GENERATIVE", "PARADIGMS", "RERANKERS", "CrossAttention", "Generative", "Paradigm", "load"]


def __getattr__(name: str) -> Any:
    """Import names in `__all__` on first use, so that submodules that do not need torch import quickly."""
    if name == "__version__":
        from importlib.metadata import version

        return version("retrieval-paradigms")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from paradigms.rooms import ROOMS

    modules = ROOMS | {"load": "loading"}
    return getattr(import_module(f"paradigms.{modules.get(name, 'registry')}"), name)
