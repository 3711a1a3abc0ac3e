"""rel(d, q) = Σᵢ s·hᵢᵀ E_{i,cᵢ}: the decoder generates the residual-quantisation codes of d's vector.

RIPOR (Zeng et al. 2024, WWW, arXiv:2311.09134, §3.2): every position i has a separate set of `codes` tokens.
Their output vectors are initialised with k-means centroids of the document vectors' residuals after the
earlier positions. Documents are scored by logits. If the decoder state were one vector s(q) at every
position, rel would be s(q)ᵀ Σᵢ E_{i,cᵢ}: single-vector retrieval (DPR) with residual-quantised document
vectors. Training maximises log p, as for the other generative paradigms. With a teacher, it also learns the
teacher's margins on every prefix, as RIPOR does (`train.generative.Likelihood`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from paradigms.data import Corpus, Problems
from paradigms.generative.dsi import document_vectors
from paradigms.generative.grouped_kmeans import grouped_kmeans
from paradigms.generative.identifiers import END, FIRST, Identifiers, make
from paradigms.generative.model import Generative
from paradigms.generative.settings import GenerativeSettings


def ripor(
    backbone: str | Path,
    corpus: Corpus,
    *,
    embedder: str | Path = "offline",
    levels: int = 4,
    codes: int = 32,
    seed: int = 0,
    **settings: Any,
) -> Generative:
    """Build RIPOR over `backbone`. settings: fields of `GenerativeSettings`.

    embedder: the encoder whose mean-pooled document vectors are quantised, with `codes` centroids at each of
    `levels` positions. Raises ValueError if the embedder and the backbone differ in width, or if PAWA is on,
    because PAWA has no output table.
    """
    defaults: dict[str, Any] = {"name": "ripor", "tokens": "own", "softmax": "place", "score": "logit"}
    chosen = GenerativeSettings(**defaults | settings)
    if chosen.pawa_rank:
        raise ValueError("PAWA replaces the output vectors, which start as centroids here: set pawa_rank=0")
    vectors = document_vectors(corpus, embedder, chosen.document_length)
    ids, centroids = residual(vectors, corpus.ids, levels=levels, codes=codes, seed=seed)
    model = Generative.build(chosen, backbone, ids, corpus)
    assert model.table is not None
    assert model.embedding is not None
    if centroids.shape[1] != model.width:
        raise ValueError(
            f"{embedder} has vectors of width {centroids.shape[1]}, but {backbone} has width {model.width}: "
            "choose an embedder of the backbone's width"
        )
    with torch.no_grad():
        table = torch.from_numpy(centroids) * model.width**0.5  # unit vectors get a mean square of 1
        model.embedding[FIRST:] = table * model.embedding.std()
        model.table[FIRST:] = table
        model.table[:FIRST] = 0.0  # the end token adds nothing to rel
    return model


def residual(
    vectors: Float[np.ndarray, "n h"], documents: Sequence[str], *, levels: int, codes: int, seed: int = 0
) -> tuple[Identifiers, Float[np.ndarray, "c h"]]:
    """x_d ↦ (c₁, …, c_L) with c_i the centroid nearest to x_d − Σ_{l<i} E_{l,c_l}, and E [levels · codes, h].

    vectors: [documents, features]. The centroids of a level come from k-means on all residuals at that level.
    Code c at position i is token i·codes + c + 2. A level with fewer distinct residuals than codes leaves
    tokens unused. Documents with equal codes share an identifier and are counted in `problems`.
    """
    residuals = np.array(vectors, dtype=np.float32)
    rows: list[list[int]] = [[] for _ in documents]
    centroids = np.zeros((levels * codes, residuals.shape[1]), dtype=np.float32)
    for level in range(levels):
        first = level * codes
        fitted, labels = grouped_kmeans(
            residuals, np.array([0, len(residuals)]), np.array([codes]), None, seed
        )
        centroids[first : first + codes] = fitted[0]
        residuals -= fitted[0][labels]
        for row, label in zip(rows, labels.tolist(), strict=True):
            row.append(FIRST + first + label)
    return make("residual", documents, rows, FIRST + levels * codes, END, Problems()), centroids
