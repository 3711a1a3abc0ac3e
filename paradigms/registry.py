"""Every paradigm by its name, and whatever one of them saved, by its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paradigms.aligner import aligner
from paradigms.coil import coil
from paradigms.colbert import colbert
from paradigms.cross_attention import HEAD, CrossAttention, cross_attention
from paradigms.dpr import dpr
from paradigms.files import settle
from paradigms.formats import read_checkpoint
from paradigms.formats.hub import download
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

# name -> builder(backbone, **settings): scores that are no rel, of given pairs of texts
RERANKERS: dict[str, Callable[..., CrossAttention]] = {"cross_attention": cross_attention}


def load(name: str | Path, *, pickled: bool = False) -> Paradigm | Generative | CrossAttention:
    """A model by its folder or its name on the Hugging Face hub.

    What `save_pretrained` of any kind here wrote, or a checkpoint of another library (`formats.FORMATS`).
    pickled: read weights that are pickled too, as weights alone. FileNotFoundError where there is no such
    folder; ValueError says what a folder holds that cannot be read.
    """
    folder = Path(name)
    settle(folder)
    if not folder.is_dir():
        folder = download(str(name), pickled)
    for kind, file in (
        (Generative, GENERATIVE_SETTINGS),
        (CrossAttention, HEAD),
        (Paradigm, "paradigm.json"),
    ):
        if (folder / file).is_file():
            return kind.from_pretrained(folder)
    return read_checkpoint(folder, pickled=pickled)
