from paradigms.aligner import aligner as ALIGNER
from paradigms.baselines.bm25 import BM25 as BM25
from paradigms.baselines.cross_attention import CrossAttention as CrossAttention
from paradigms.coil import coil as COIL
from paradigms.colbert import colbert as ColBERT
from paradigms.dpr import dpr as DPR
from paradigms.generative.model import Generative as Generative
from paradigms.loading import load as load
from paradigms.model import Paradigm as Paradigm
from paradigms.registry import GENERATIVE as GENERATIVE
from paradigms.registry import PARADIGMS as PARADIGMS
from paradigms.registry import RERANKERS as RERANKERS
from paradigms.retrieve import Indexed as Index
from paradigms.saved import export as export
from paradigms.splade import splade as SPLADE
from paradigms.xtr import xtr as XTR

__version__: str
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
