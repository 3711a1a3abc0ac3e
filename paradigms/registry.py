"""A registry of all models by name.

The paradigms of an encoder are imported here; models of other rooms are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from paradigms.aligner import aligner
from paradigms.bge_m3 import bge_m3
from paradigms.coil import coil
from paradigms.colbert import colbert
from paradigms.dpr import dpr
from paradigms.io.checks import Named
from paradigms.me_bert import me_bert
from paradigms.model import Paradigm
from paradigms.rooms import Entry
from paradigms.splade import splade
from paradigms.xtr import xtr

if TYPE_CHECKING:
    from paradigms.baselines.cross_attention import CrossAttention
    from paradigms.generative.model import Generative

# name -> builder(backbone, **settings)
PARADIGMS: dict[str, Callable[..., Paradigm]] = Named(
    "paradigm",
    dpr=dpr,
    me_bert=me_bert,
    colbert=colbert,
    coil=coil,
    aligner=aligner,
    xtr=xtr,
    splade=splade,
    bge_m3=bge_m3,
)

# name -> builder(backbone, corpus, **settings): the corpus is in the weights
GENERATIVE: dict[str, Callable[..., Generative]] = Named(
    "generative paradigm",
    dsi=Entry("dsi"),
    genre=Entry("genre"),
    seal=Entry("seal"),
    ripor=Entry("ripor"),
)

# name -> builder(backbone, **settings): models that score pairs of texts, not by a rel
RERANKERS: dict[str, Callable[..., CrossAttention]] = Named(
    "reranker", cross_attention=Entry("cross_attention")
)
