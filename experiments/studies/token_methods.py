"""Score a query's candidates with frozen token vectors: soft maximum, weights, fewer tokens, early exit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from paradigms import Paradigm
from paradigms.data import Run, Split
from paradigms.find import Index, Store
from paradigms.io.progress import progress_bar

FIRST = 10  # documents that an early exit must find
BATCH = 64  # queries per step of learning weights
RATE = 0.05  # Adam's, for the logarithms of weights


@dataclass(frozen=True)
class Candidates:
    """One query's candidates in an index, in BM25's order.

    rows: positions of the documents. ids: of the query's tokens. tokens: places of the documents' tokens in
    the index. starts: where each document begins among them. S: similarities.
    """

    rows: Int[np.ndarray, " n"]
    ids: Int[np.ndarray, " j"]
    tokens: Int[np.ndarray, " t"]
    starts: Int[np.ndarray, " n"]
    S: Float[np.ndarray, "j t"]

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        return np.diff(self.starts, append=len(self.tokens))

    def maxima(self, stays: np.ndarray | None = None) -> Float[np.ndarray, "j n"]:
        """Return the maximum over i of S, of all tokens or of those at the places that stay in the index."""
        S = self.S if stays is None else np.where(stays[self.tokens], self.S, -np.inf)
        return np.maximum.reduceat(S, self.starts, axis=1)


class Example(NamedTuple):
    """A training query's token ids, the maxima of its candidates, and which of these are relevant."""

    ids: Int[np.ndarray, " j"]
    maxima: Float[np.ndarray, "j n"]
    relevant: Bool[np.ndarray, " n"]


def candidates_of(
    paradigm: Paradigm, index: Index, split: Split, pool: Run
) -> Iterator[tuple[str, Candidates]]:
    """Yield each query with its candidates; documents without tokens are left out."""
    store = index.store
    vectors = store.columns["vectors"]
    with progress_bar(True) as bar:
        for query in bar.track(list(pool), description="score candidates"):
            encoded = paradigm.encode_queries([split.queries[query]]).to("cpu")
            assert encoded.ids is not None
            mask = encoded.mask[0, 0]
            rows = store.positions(list(pool[query]))
            rows = rows[np.diff(store.offsets)[rows] > 0]
            if not len(rows) or not mask.any():
                continue
            tokens = np.concatenate([np.arange(*store.offsets[row : row + 2]) for row in rows])
            lengths = np.diff(store.offsets)[rows]
            documents = torch.from_numpy(vectors[tokens].astype(np.float32))
            S = encoded.vectors[0, 0][mask].float() @ documents.T
            starts = np.cumsum(lengths) - lengths
            yield query, Candidates(rows, encoded.ids[0, 0][mask].numpy(), tokens, starts, S.numpy())


def soft(each: Candidates, tau: float) -> Float[np.ndarray, " n"]:
    """Return the mean over j of Σᵢ softmaxᵢ(S/τ) S."""
    exponents = np.exp((each.S - np.repeat(each.maxima(), each.lengths, axis=1)) / tau)
    sums = np.add.reduceat(exponents, each.starts, axis=1)
    return (np.add.reduceat(exponents * each.S, each.starts, axis=1) / sums).mean(0)


def largest(worth: np.ndarray, offsets: Int[np.ndarray, " n1"], n: int) -> np.ndarray:
    """Return which tokens stay: each document's ⌈length / n⌉ tokens of the largest worth."""
    lengths = np.diff(offsets)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((-worth, owners))
    stays = np.zeros(len(worth), dtype=bool)
    places = np.arange(len(worth)) - offsets[:-1][owners]
    stays[order[places < -(-lengths // n)[owners]]] = True
    return stays


def cell_worths(store: Store, sample: Float[torch.Tensor, "s h"]) -> Float[np.ndarray, " t"]:
    """Return what a sample of query tokens loses without each document token.

    Query tokens whose best token of a document is the i-th are in its Voronoi cell. They lose the difference
    to their second best token; a document's only token is worth infinity.
    """
    vectors = store.columns["vectors"]
    worths = np.full(len(vectors), np.inf, dtype=np.float32)
    with progress_bar(True) as bar:
        documents = list(pairwise(store.offsets.tolist()))
        for start, end in bar.track(documents, description="measure cells"):
            if end - start > 1:
                document = torch.from_numpy(vectors[start:end].astype(np.float32))
                (best, second), nearest = (document @ sample.T).topk(2, dim=0)
                lost = torch.zeros(end - start).index_add_(0, nearest[0], best - second)
                worths[start:end] = lost.numpy()
    return worths


def learn(
    first: Float[np.ndarray, " v"],
    examples: Sequence[Example],
    epochs: Sequence[int],
    seed: int,
) -> dict[int, Float[np.ndarray, " v"]]:
    """Learn a positive weight for each vocabulary entry, and return the weights after each number of epochs.

    The loss is the cross-entropy of a softmax over a query's candidates, whose temperature is learned, too.
    Weights of entries that occur in no example stay as they are.
    """
    logs = torch.from_numpy(np.log(np.maximum(first, 1e-3))).float().requires_grad_()
    scale = torch.tensor(3.0, requires_grad=True)  # logarithm of 1 / temperature
    optimizer = torch.optim.Adam([logs, scale], lr=RATE)
    order = torch.Generator().manual_seed(seed)
    learned = {}
    for epoch in range(1, max(epochs) + 1):
        for batch in torch.randperm(len(examples), generator=order).split(BATCH):
            loss = torch.zeros(())
            for n in batch.tolist():
                ids, maxima, relevant = map(torch.from_numpy, examples[n])
                weights = logs[ids.long()].exp()
                scores = scale.exp() * (weights / weights.sum()) @ maxima
                loss = loss + scores.logsumexp(0) - scores[relevant].logsumexp(0)
            optimizer.zero_grad()
            (loss / len(batch)).backward()
            optimizer.step()
        if epoch in epochs:
            learned[epoch] = logs.detach().double().exp().numpy().copy()
    return learned


def needed_products(
    maxima: Float[np.ndarray, "j n"], lengths: Int[np.ndarray, " n"], bounds: Float[np.ndarray, " j"]
) -> float:
    """Return the share of MaxSim's products with which the first documents are exact.

    Documents are scored one after the other, token by token, until the sum and the bounds of the remaining
    maxima are below the score of the last of the `FIRST` best documents so far.
    """
    remaining = bounds.sum() - np.cumsum(bounds)
    best: list[float] = []
    products = 0
    for column, length in zip(maxima.T, lengths, strict=True):
        reached = np.cumsum(column) + remaining
        below = np.flatnonzero(reached < best[0]) if len(best) == FIRST else np.zeros(0, dtype=int)
        products += int(length) * (int(below[0]) + 1 if len(below) else len(bounds))
        if not len(below):
            best = sorted([*best, float(column.sum())])[-FIRST:]
    return products / (int(lengths.sum()) * len(bounds))
