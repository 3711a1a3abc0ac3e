"""rel(d, q) = Σᵢ log p(tᵢ | t_<i, q): the decoder generates the title of d.

De Cao et al. 2021 (ICLR), "Autoregressive Entity Retrieval": GENRE. The alignment A depends on the decoder's
state, which depends on the title so far. Documents with equal titles share one identifier.
"""

from pathlib import Path
from typing import Any

from paradigms.data import Corpus
from paradigms.generative.backbone import load_base_tokenizer
from paradigms.generative.identifiers import titles
from paradigms.generative.model import Generative
from paradigms.generative.settings import GenerativeSettings


def genre(backbone: str | Path, corpus: Corpus, *, title_length: int = 24, **settings: Any) -> Generative:
    """Build GENRE over `backbone`. settings: fields of `GenerativeSettings`.

    title_length: maximum number of tokens in a title, including the end token.
    """
    identifiers = titles(corpus, load_base_tokenizer(backbone), title_length)
    chosen = GenerativeSettings(**{"name": "genre"} | settings)
    return Generative.build(chosen, backbone, identifiers, corpus)
