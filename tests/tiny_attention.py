"""For the experiments on attention heads: a tiny titled collection, and heads with chosen D and Q."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from studies.attention_heads import Seen

from paradigms.data import Collection, Corpus, Problems, Split, write_folder
from tests.tiny import WORDS

DOCUMENTS, QUERIES = 24, 18


def write_collection(folder: Path) -> Path:
    """Documents of seven words titled by two of them; each query is three of a document's words."""
    words = WORDS.split()
    rows = [[words[(11 * n + 5 * w) % len(words)] for w in range(7)] for n in range(DOCUMENTS)]
    ids = [f"d{n}" for n in range(DOCUMENTS)]
    corpus = Corpus(ids, [" ".join(row) for row in rows], [f"{row[0]} {row[-1]}" for row in rows])
    queries = {f"q{n}": " ".join(rows[n][1:4]) for n in range(QUERIES)}

    def split(numbers: range) -> Split:
        return Split({f"q{n}": queries[f"q{n}"] for n in numbers}, {f"q{n}": {f"d{n}": 1} for n in numbers})

    splits = {"train": split(range(12)), "test": split(range(12, QUERIES))}
    write_folder(Collection("tiny", corpus, splits, Problems(), ""), folder)
    return folder


def heads(documents: np.ndarray, queries: np.ndarray, layers: int = 1, count: int = 1) -> Seen:
    """Every head sees D [m, k] and Q [n, k] themselves: W_Q = W_K = 1."""
    identity = np.broadcast_to(np.eye(documents.shape[1]), (layers, count, *[documents.shape[1]] * 2))
    scores = documents @ queries.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    attention = np.broadcast_to(weights / weights.sum(1, keepdims=True), (layers, count, *scores.shape))
    states = np.broadcast_to(documents, (layers, *documents.shape))
    return Seen(states, queries, (identity, identity), attention)
