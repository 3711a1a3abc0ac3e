"""Score a query's candidates with frozen token vectors: a soft maximum, and fewer tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from paradigms import Paradigm
from paradigms.data import Run, Split
from paradigms.find import Index
from paradigms.io.progress import progress_bar


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
