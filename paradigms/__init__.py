"""Every neural retrieval paradigm as rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A)."""

from collections.abc import Callable
from pathlib import Path

from paradigms.aligner import aligner
from paradigms.coil import coil
from paradigms.colbert import colbert
from paradigms.dpr import dpr
from paradigms.generative.dsi import dsi
from paradigms.generative.genre import genre
from paradigms.generative.model import SETTINGS as GENERATIVE_SETTINGS
from paradigms.generative.model import Generative
from paradigms.generative.seal import seal
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

# name -> builder(backbone, corpus, **settings): the corpus is in the weights
GENERATIVE: dict[str, Callable[..., Generative]] = {"dsi": dsi, "genre": genre, "seal": seal}


def load(folder: str | Path) -> Paradigm | Generative:
    """What `save_pretrained` of either kind wrote. FileNotFoundError where it is neither."""
    kind = Generative if (Path(folder) / GENERATIVE_SETTINGS).is_file() else Paradigm
    return kind.from_pretrained(folder)


__all__ = ["GENERATIVE", "PARADIGMS", "Generative", "Paradigm", "load"]
