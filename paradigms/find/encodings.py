"""Search with MUVERA or LEMUR: one inner product of long vectors selects candidates for exact rel.

Beside the token vectors, a FAISS index stores one vector per document, made from the stored tokens:
fixed-dimensional encodings (`muvera`, Dhulipala et al. 2024, arXiv:2405.19504), or the weights that
`predictors` fits (`lemur`, Jääsaari et al. 2026, arXiv:2601.21853). The documents whose vectors have the
largest inner products with the query's vector are scored from all their tokens: by `core.rel` or, if the
paradigm imputes, as in reranking.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.find.nearest import FLAT, Factory, Nearest
from paradigms.find.ranking import Ranked, best, scores
from paradigms.muvera import FixedEncoding
from paradigms.recipe import Recipe
from paradigms.store.build import Advance
from paradigms.store.columns import Files, Writer
from paradigms.store.store import Store

WIDE = 1 << 20  # maximum dimensions of an encoding
CENTRE = "centre.bin"
READ = 1 << 16  # padded tokens read at once


class Opened(NamedTuple):
    """The document vectors of a store. queries: converts queries [b, 1, j, h] to vectors [b, w], float32."""

    queries: Callable[[Tokens], Tensor]
    nearest: Nearest


@dataclass(frozen=True)
class Encodings(FixedEncoding):
    """A FAISS file with one vector per document.

    factory, seed: see `nearest.Factory` and `nearest.FLAT`. centre: whether to subtract the mean of all
    tokens. This preserves the order by MaxSim and separates vectors that share a large common part.
    """

    factory: str = FLAT
    centre: bool = True

    def check(self, dim: int) -> None:
        width = self.width(dim)
        if max(width, self.repetitions << self.planes) > WIDE:
            raise ValueError(f"encodings of {width:,} dimensions are wider than {WIDE:,}")
        Factory(self.factory).check(width)

    def write(self, writer: Writer, store: Store, anew: bool) -> None:
        vectors = store.columns["vectors"]
        if self.centre and len(vectors) and CENTRE not in writer.entries:
            parts = [vectors[n : n + READ].sum(0, dtype=np.float64) for n in range(0, len(vectors), READ)]
            writer.append(CENTRE, (np.sum(parts, 0) / len(vectors)).astype(np.float32))
        centre = _centre(writer, store.dim)

        def encode(rows: np.ndarray) -> np.ndarray:
            blocks = [self.documents(store.tokens(block), centre) for block in store.blocks(READ, rows)]
            return torch.cat(blocks).numpy()

        Factory(self.factory, self.seed).write(writer, len(store.living), encode, anew)

    def behind(self, store: Store) -> bool:
        return False

    def open(self, store: Store) -> Opened:
        queries = partial(self.queries, centre=_centre(store.files, store.dim))
        return Opened(queries, Nearest(store.files, (len(store.living), self.width(store.dim))))


@dataclass(frozen=True)
class NearDocuments:
    """Score in full the documents whose vectors have the largest inner products with the query's vector.

    probes: number of FAISS's inverted lists to read per query. candidates: number of documents to score,
    raised to k if smaller; 0 means the larger of 64 and 4k.
    """

    probes: int = 16
    candidates: int = 0

    def nearest(self, store: Store, queries: Tokens, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest inner products for each query [b, 1, j, h], and the rows of their documents.

        If FAISS finds fewer than k documents, the remaining rows are −1.
        """
        hidden = np.ones(len(store.living), bool)
        hidden[there := store.with_tokens()] = False
        opened: Opened = store.derived
        encoded = opened.queries(queries.map(lambda t: t.cpu())).numpy()
        return opened.nearest(encoded, min(k, len(there)), hidden if hidden.any() else None, self.probes)

    def search(
        self, store: Store, recipe: Recipe, parts: Sequence[Tokens], k: int, advance: Advance
    ) -> Ranked:
        ranked = []
        for queries in parts:
            _, near = self.nearest(store, queries, max(k, self.candidates or max(64, 4 * k)))
            for n, rows in enumerate(near):
                rows = np.sort(rows[rows >= 0])
                ranked.append(best(store, scores(store, [recipe], queries[n : n + 1], rows)[0], rows, k))
                advance(1)
        return ranked


def _centre(files: Files | Writer, dim: int) -> Tensor | None:
    rows = files.array(CENTRE, ("float32", (dim,)))
    if len(rows) > 1 or not np.isfinite(rows).all():
        raise files.damaged(CENTRE, "it is not a single finite vector")
    return torch.from_numpy(np.array(rows[0])) if len(rows) else None
