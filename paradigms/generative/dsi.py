"""rel(d, q) = Σᵢ log p(cᵢ | c_<i, q): the decoder writes the path of clusters that leads to d.

DSI (Tay et al. 2022, NeurIPS, "Transformer Memory as a Differentiable Search Index"), with the hierarchical
semantic identifiers of its §3.2, or one token per document ("atomic"). A reads the decoder's state. With
`softmax="place"` or `pawa_rank` digits are specific to their place; both together are NCI's decoder (Wang et
al. 2022).
"""

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from paradigms.data import Corpus
from paradigms.encoder.text import EncoderSettings, TextEncoder
from paradigms.generative.identifiers import atomic
from paradigms.generative.model import Generative
from paradigms.generative.semantic_ids import semantic
from paradigms.generative.settings import GenerativeSettings
from paradigms.io.progress import progress_bar

Kind = Literal["semantic", "atomic"]
BATCH = 64  # documents encoded at once


def dsi(
    backbone: str | Path,
    corpus: Corpus,
    *,
    identifiers: Kind = "semantic",
    embedder: str | Path = "offline",
    branching: int = 10,
    seed: int = 0,
    **settings: Any,
) -> Generative:
    """DSI over `backbone`; settings are fields of `GenerativeSettings`.

    embedder: the encoder whose mean-pooled document vectors are clustered, `branching` clusters a level.
    """
    if identifiers not in get_args(Kind):
        raise ValueError(f"identifiers={identifiers!r}; there are {', '.join(get_args(Kind))}")
    chosen = GenerativeSettings(**{"name": "dsi", "tokens": "own"} | settings)
    if identifiers == "atomic":
        return Generative.build(chosen, backbone, atomic(corpus.ids), corpus)
    vectors = document_vectors(corpus, embedder, chosen.document_length)
    places = chosen.pawa_rank > 0 or chosen.softmax == "place"
    ids = semantic(vectors, corpus.ids, branching=branching, position_specific=places, seed=seed)
    return Generative.build(chosen, backbone, ids, corpus)


def document_vectors(corpus: Corpus, embedder: str | Path, length: int) -> Float[np.ndarray, "n h"]:
    """The mean of each document's token vectors, of length 1."""
    settings = EncoderSettings(document_vectors="pooled", pooling="mean", dim=None, document_length=length)
    encoder = TextEncoder(embedder, settings).eval()
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")
    # Texts of a kind together: little padding.
    order = sorted(range(len(corpus)), key=lambda i: len(corpus[i]))
    vectors = np.empty((len(corpus), encoder.dim), dtype=np.float32)
    with torch.inference_mode(), progress_bar(len(corpus) > BATCH) as bar:
        task = bar.add_task("embed documents", total=len(corpus))
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            batch = encoder.tokenize([corpus[i] for i in some], "document").to(encoder.device)
            vectors[some] = encoder(batch, "document").vectors[0, :, 0].float().cpu().numpy()
            bar.update(task, advance=len(some))
    return vectors
