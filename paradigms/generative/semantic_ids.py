"""Semantic identifiers: documents with similar embeddings get ids with a common prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.data import Problems
from paradigms.generative.identifiers import END, FIRST, Identifiers, make

ROUNDS = 20  # of Lloyd's algorithm, at most


def semantic(
    vectors: Float[np.ndarray, "n h"],
    documents: Sequence[str],
    *,
    branching: int = 10,
    leaf: int | None = None,
    position_specific: bool = False,
    seed: int = 0,
) -> Identifiers:
    """x_d ↦ (c₁, …, c_L): the clusters that hold d in a hierarchy of k-means, then d's place in the last one.

    Hierarchical clusters of Tay et al. (DSI, NeurIPS 2022, §3.2): k-means with k = `branching`, and again in
    every cluster of more than `leaf` documents (default: `branching`); in one of at most `leaf` they are
    numbered. Digit c is the token c + 2 of a vocabulary of V₀ + 2, V₀ = max(branching, leaf); position
    specific, digit c at place i is the token i·V₀ + c + 2 of V₀·L + 2 (NCI: Wang et al., NeurIPS 2022).
    Ids are unique and none is another's prefix. Where k-means finds nothing to part, as among equal vectors,
    documents are parted in their order, and `problems` says so.

    vectors: [documents, features]. The same ids for a seed whatever the number of threads. ValueError names
    a document whose vector is not finite in float32.
    """
    leaf = branching if leaf is None else leaf
    if branching < 2 or leaf < 1:
        raise ValueError(f"branching must be at least 2 and leaf at least 1, not {branching} and {leaf}")
    if not documents or len(vectors) != len(documents):
        raise ValueError(f"one vector per document is needed, not {len(vectors)} for {len(documents)}")
    X = torch.tensor(vectors, dtype=torch.float32)
    broken = ~torch.isfinite(X).all(1)
    if broken.any():
        first = documents[int(broken.int().argmax())]
        raise ValueError(f"{int(broken.sum())} vectors are not finite, as that of document {first!r}")

    problems = Problems()
    digits: list[list[int]] = [[] for _ in documents]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # no library promises the same sums on several
    try:
        pending = [(np.arange(len(documents)), False)]
        while pending:
            members, alike = pending.pop()
            if len(members) <= leaf:
                labels = np.arange(len(members))
            else:
                labels = np.zeros(len(members), dtype=int) if alike else kmeans(X[members], branching, seed)
                if not labels.any():  # one cluster: to try again would never end
                    if not alike:
                        example = f"{len(members)} documents with {documents[members[0]]}"
                        problems.add("cluster that k-means does not part (parted in order)", example)
                    labels, alike = np.arange(len(members)) * branching // len(members), True
                pending += [(members[labels == c], alike) for c in range(labels.max() + 1)]
            for i, digit in zip(members.tolist(), labels.tolist(), strict=True):
                digits[i].append(digit)
    finally:
        torch.set_num_threads(threads)

    base = max(branching, leaf)
    if position_specific:
        rows = [[i * base + c + FIRST for i, c in enumerate(row)] for row in digits]
        vocabulary = base * max(map(len, rows)) + FIRST
    else:
        rows = [[c + FIRST for c in row] for row in digits]
        vocabulary = base + FIRST
    return make("semantic", documents, rows, vocabulary, END, problems)


def kmeans(X: Float[Tensor, "n h"], k: int, seed: int) -> Int[np.ndarray, " n"]:
    """argmin over labels c of Σₙ ‖xₙ − mean of its cluster‖², locally: at most k clusters, none empty.

    Lloyd's algorithm from the seeds of k-means++ (Arthur & Vassilvitskii, SODA 2007), which are distinct
    vectors: fewer than k of these give fewer clusters. Labels count from 0.
    """
    X = X - X.mean(0)  # deep in a hierarchy vectors lie close together, far from 0
    X = X / X.abs().max().clamp(min=torch.finfo(X.dtype).tiny)  # no square overflows
    centres = _seeds(X, k, np.random.default_rng(seed))
    labels = torch.zeros(len(X), dtype=torch.long)
    for _ in range(ROUNDS):
        before, labels = labels, (X @ centres.T - 0.5 * (centres**2).sum(1)).argmax(1)
        if torch.equal(before, labels):
            break
        counts = torch.bincount(labels, minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, labels, X)
        filled = counts > 0
        centres[filled] = sums[filled] / counts[filled, None]
    return np.unique(labels.numpy(), return_inverse=True)[1]


def _seeds(X: Float[Tensor, "n h"], k: int, rng: np.random.Generator) -> Float[Tensor, "k h"]:
    """At most k distinct rows: each drawn with a probability ∝ its squared distance from those before."""
    chosen = [int(rng.integers(len(X)))]
    distance = torch.full((len(X),), torch.inf)
    while True:
        distance = torch.minimum(distance, ((X - X[chosen[-1]]) ** 2).sum(1))
        total = distance.double().cumsum(0).numpy()
        if len(chosen) == k or total[-1] == 0:
            return X[chosen]
        chosen.append(int(np.searchsorted(total, rng.random() * total[-1], side="right")))
