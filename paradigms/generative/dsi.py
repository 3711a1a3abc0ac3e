"""rel(d, q) = Σᵢ log p(cᵢ | c_<i, q): the decoder generates the path of clusters that leads to d.

DSI (Tay et al. 2022, NeurIPS, "Transformer Memory as a Differentiable Search Index") uses the hierarchical
semantic identifiers of §3.2, or one token per document ("atomic"). The alignment A depends on the decoder's
state. With `softmax="place"` or `pawa_rank`, each position has its own digit vocabulary; both options
together give NCI's decoder (Wang et al. 2022).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from paradigms.data import Corpus, Problems
from paradigms.dpr import dpr
from paradigms.encoder.batches import by_length
from paradigms.generative.grouped_kmeans import grouped_kmeans
from paradigms.generative.identifiers import END, FIRST, Identifiers, atomic, make
from paradigms.generative.model import Generative
from paradigms.generative.settings import GenerativeSettings
from paradigms.io.checks import check_type
from paradigms.io.progress import progress_bar

Kind = Literal["semantic", "atomic"]
BATCH = 64  # documents per batch


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
    """Build DSI over `backbone`. settings: fields of `GenerativeSettings`.

    embedder: the encoder whose mean-pooled document vectors are clustered, with `branching` clusters per
    level.
    """
    check_type("identifiers", identifiers, Kind)
    chosen = GenerativeSettings(**{"name": "dsi", "tokens": "own"} | settings)
    if identifiers == "atomic":
        return Generative.build(chosen, backbone, atomic(corpus.ids), corpus)
    vectors = document_vectors(corpus, embedder, chosen.document_length)
    places = chosen.pawa_rank > 0 or chosen.softmax == "place"
    ids = semantic(vectors, corpus.ids, branching=branching, position_specific=places, seed=seed)
    return Generative.build(chosen, backbone, ids, corpus)


def document_vectors(corpus: Corpus, embedder: str | Path, length: int) -> Float[np.ndarray, "n h"]:
    """Return the normalised mean of each document's token vectors."""
    paradigm = dpr(embedder, pooling="mean", document_length=length)
    paradigm.to("cuda" if torch.cuda.is_available() else "cpu")
    vectors = np.empty((len(corpus), paradigm.encoder.dim), dtype=np.float32)
    parts = by_length([len(text) for text in corpus], rows=BATCH)
    with progress_bar(len(corpus) > BATCH) as bar:
        for part in bar.track(parts, description="embed documents"):
            documents = paradigm.encode_documents([corpus[i] for i in part])
            vectors[part] = documents.vectors[0, :, 0].float().cpu().numpy()
    return vectors


def semantic(
    vectors: Float[np.ndarray, "n h"],
    documents: Sequence[str],
    *,
    branching: int = 10,
    position_specific: bool = False,
    seed: int = 0,
) -> Identifiers:
    """x_d ↦ (c₁, …, c_L): d's clusters in hierarchical k-means, then d's position in the last cluster.

    As in DSI (Tay et al., NeurIPS 2022, §3.2), k-means with k = `branching` is repeated within every cluster
    of more than k documents. Digit c is token c + 2 of k + 2. With `position_specific`, digit c at position i
    is token i·k + c + 2 of k·L + 2 (NCI: Wang et al., NeurIPS 2022). Identifiers are unique, and no
    identifier is a prefix of another. Equal vectors are split by order and counted in `problems`. vectors:
    [documents, features]. Raises ValueError, naming a document, if a vector is not finite in float32.
    """
    if branching < 2:
        raise ValueError(f"branching must be at least 2, got {branching}")
    with np.errstate(over="ignore"):
        X = np.asarray(vectors, dtype=np.float32)
    broken = ~np.isfinite(X).all(1)
    if broken.any():
        first = documents[int(broken.argmax())]
        raise ValueError(
            f"{int(broken.sum())} vectors are not finite, for example the vector of document {first!r}"
        )

    problems = Problems()
    digits: list[list[int]] = [[] for _ in documents]
    pending = [(np.arange(len(documents)), False)]
    while pending:
        members, alike = pending.pop()
        if len(members) <= branching:
            labels = np.arange(len(members))
        else:
            labels = np.zeros(len(members), dtype=int) if alike else kmeans(X[members], branching, seed)
            if not labels.any():  # a single cluster: repeating k-means would never end
                if not alike:
                    example = f"{len(members)} documents with {documents[members[0]]}"
                    problems.add("cluster that k-means does not divide (divided by order)", example)
                labels = np.arange(len(members)) * branching // len(members)
                alike = True
            pending += [(members[labels == c], alike) for c in range(labels.max() + 1)]
        for i, digit in zip(members.tolist(), labels.tolist(), strict=True):
            digits[i].append(digit)

    step = branching if position_specific else 0
    rows = [[i * step + c + FIRST for i, c in enumerate(row)] for row in digits]
    vocabulary = step * (max(map(len, rows)) - 1) + branching + FIRST
    return make("semantic", documents, rows, vocabulary, END, problems)


def kmeans(X: Float[np.ndarray, "n h"], k: int, seed: int) -> Int[np.ndarray, " n"]:
    """argmin over labels of Σₙ ‖xₙ − cluster mean‖² (a local minimum), with at most k non-empty clusters."""
    # Deep in the hierarchy, vectors are close together and far from 0.
    centred = X - X.mean(0, dtype=np.float64)
    scaled = (centred / max(np.abs(centred).max(), 1e-300)).astype(np.float32)  # no square overflows
    labels = grouped_kmeans(scaled, np.array([0, len(X)]), np.array([k]), None, seed)[1]
    return np.unique(labels, return_inverse=True)[1]
