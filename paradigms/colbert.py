"""rel(d, q) = (1/N) Σⱼ maxᵢ dᵢᵀqⱼ: late interaction, every query token takes its best document token.

Khattab & Zaharia 2020 (SIGIR), Eq. 3: ColBERT. A reads S: per query token, argmax over i. The paper has
Z = 1; Z = N, used by Lee et al. 2023 (Eq. 1), ranks the same and gives the loss one scale for queries of
every length. Markers, [MASK] augmentation and the punctuation skip list of the paper are settings.
"""

import string
from pathlib import Path
from typing import Any

from paradigms.model import Paradigm


def colbert(backbone: str | Path, **settings: Any) -> Paradigm:
    """ColBERT over `backbone`; settings are those of `EncoderSettings`."""
    return Paradigm.build(
        backbone,
        settings,
        {"skip": string.punctuation},
        name="colbert",
        align="query_to_document",
        normalise="query_tokens",
        temperature=0.02,
    )
