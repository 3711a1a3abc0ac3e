"""Every neural retrieval paradigm as rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A)."""

from collections.abc import Callable

from paradigms.aligner import aligner
from paradigms.coil import coil
from paradigms.colbert import colbert
from paradigms.dpr import dpr
from paradigms.me_bert import me_bert
from paradigms.model import Paradigm
from paradigms.xtr import xtr

# name -> builder(backbone, **settings)
PARADIGMS: dict[str, Callable[..., Paradigm]] = {
    "dpr": dpr,
    "me_bert": me_bert,
    "colbert": colbert,
    "coil": coil,
    "aligner": aligner,
    "xtr": xtr,
}

__all__ = ["PARADIGMS", "Paradigm"]
