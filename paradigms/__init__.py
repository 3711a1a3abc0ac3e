"""Every neural retrieval paradigm as rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A)."""

from paradigms.cross_attention import CrossAttention
from paradigms.generative.model import Generative
from paradigms.model import Paradigm
from paradigms.registry import GENERATIVE, PARADIGMS, RERANKERS, load

__all__ = ["GENERATIVE", "PARADIGMS", "RERANKERS", "CrossAttention", "Generative", "Paradigm", "load"]
