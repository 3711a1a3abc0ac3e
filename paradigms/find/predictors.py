"""Search with LEMUR (Jääsaari et al. 2026, arXiv:2601.21853): one inner product selects candidates for rel.

Beside the token vectors, a FAISS index stores one vector per document, whose inner product with a query's
features predicts MaxSim (`paradigms.lemur`). The documents with the largest inner products are scored from
all their tokens: by `core.rel` or, if the paradigm imputes, as in reranking.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.find.nearest import FLAT, Nearest, NearestFile
from paradigms.find.ranking import Queries, Ranked, scores, top_documents
from paradigms.find.scan import Exact
from paradigms.io.checks import Range
from paradigms.lemur import SAMPLE, TARGETS, TOKENS, Features, Regression, fit_features, token_maxima
from paradigms.recipe import Recipe
from paradigms.store.build import Advance
from paradigms.store.columns import Files, Writer
from paradigms.store.store import Store

FEATURES, LEARNED = "features.bin", "learned.bin"  # ψ, and the tokens of the least squares
READ = 1 << 16  # padded tokens read at once
CANDIDATES, EACH = 64, 4  # documents scored in full: the minimum, and the number per wanted document


class DocumentVectors(NamedTuple):
    """The document vectors of a store. queries: converts queries [b, 1, j, h] to vectors [b, w], float32."""

    queries: Callable[[Tokens], Tensor]
    nearest: Nearest


@dataclass(frozen=True)
class Predictors(NearestFile):
    """A FAISS file with every document's weights w_d, which are fitted to the features ψ (`lemur`).

    The first build trains ψ; weights of documents that are added later are fitted to the same ψ. width:
    number of features, including the constant. epochs: epochs of training ψ; 0 keeps a random layer.
    """

    factory: str = FLAT
    width: Annotated[int, Range(2, 1 << 20)] = 1024
    epochs: Annotated[int, Range(0, 1 << 31)] = 4

    def check(self, dim: int) -> None:
        super().check(self.width)

    def write(self, writer: Writer, store: Store, anew: bool) -> None:
        if len(store.columns["vectors"]) and FEATURES not in writer.entries:
            self._fit(writer, store)
        fitted = _Fitted(writer, store.dim)

        def encode(rows: np.ndarray) -> np.ndarray:
            if not len(store.columns["vectors"]):
                return np.zeros((len(rows), self.width), np.float32)
            blocks = store.blocks(READ, rows)
            return torch.cat([fitted.regression.weights(store.tokens(block)) for block in blocks]).numpy()

        self.write_vectors(writer, len(store.living), encode, anew)

    def _fit(self, writer: Writer, store: Store) -> None:
        """Train and write ψ; also write the tokens for fitting documents' weights."""
        random = np.random.default_rng(self.seed)
        stored = store.columns["vectors"]
        chosen = random.choice(len(stored), min(TOKENS, len(stored)), replace=False)
        order = np.argsort(chosen)
        rows = np.empty((len(chosen), store.dim), np.float16)
        rows[order] = stored[chosen[order]]  # read in the order of the file
        vectors = torch.from_numpy(rows).float()
        targets = vectors.new_zeros((len(vectors), 0))
        if self.epochs:
            sample = np.sort(random.permutation(store.with_tokens())[:TARGETS])
            parts = [token_maxima(store.tokens(block), vectors) for block in store.blocks(READ, sample)]
            targets = torch.cat(parts, 1)
        features = fit_features(targets, vectors, self.width, self.epochs, self.seed)
        columns = [part if part.ndim == 2 else part[:, None] for part in astuple(features)]
        writer.append(FEATURES, torch.cat(columns, 1).numpy())
        writer.append(LEARNED, rows[:SAMPLE])

    def open(self, store: Store) -> DocumentVectors:
        fitted = _Fitted(store.files, store.dim)
        if int(store.offsets[-1]) and len(fitted.layer) != self.width - 1:
            raise store.files.damaged(FEATURES, f"{len(fitted.layer)} features, not {self.width - 1}")
        if int(store.offsets[-1]) and not len(fitted.vectors):
            raise store.files.damaged(LEARNED, "it is missing")
        return DocumentVectors(fitted.features.queries, Nearest(store.files, (len(store.living), self.width)))


class _Fitted:
    """The features ψ and the tokens for fitting weights, read from files.

    Raises ValueError, naming the file, if a file is damaged.
    """

    def __init__(self, files: Files | Writer, dim: int) -> None:
        self.layer = files.array(FEATURES, ("float32", (dim + 3,)))
        self.vectors = files.array(LEARNED, ("float16", (dim,)))
        for name, rows in ((FEATURES, self.layer), (LEARNED, self.vectors)):
            if not np.isfinite(rows).all():
                raise files.damaged(name, "numbers that are not finite")

    @property
    def features(self) -> Features:
        layer = torch.from_numpy(np.array(self.layer))
        return Features(layer[:, :-3].contiguous(), *layer[:, -3:].unbind(1))

    @cached_property
    def regression(self) -> Regression:
        return Regression.of(self.features, torch.from_numpy(self.vectors.astype(np.float32)))


@dataclass(frozen=True)
class NearDocuments:
    """Score in full the documents whose vectors have the largest inner products with the query's vector.

    probes: see `nearest.Nearest`. candidates: number of documents to score, raised to k if smaller. 0 means
    what the build chose (`recall`) or, if nothing was measured, the larger of 64 and 4k candidates.
    """

    probes: int = 0
    candidates: int = 0

    def efforts(self, store: Store, k: int) -> Iterator["NearDocuments"]:
        vectors: DocumentVectors = store.derived
        steps = [*vectors.nearest.efforts()]
        candidates = max(CANDIDATES, EACH * k)
        for step in range(len(steps) + (len(store) // candidates).bit_length()):
            probes = self.probes or steps[min(step, len(steps) - 1)]
            yield NearDocuments(probes, self.candidates or candidates << step)

    def exhaustive(self, store: Store) -> Exact:
        return Exact()

    def nearest(self, store: Store, queries: Tokens, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest inner products for each query [b, 1, j, h], and the rows of their documents.

        If FAISS finds fewer than k documents, the remaining rows are −1.
        """
        hidden = np.ones(len(store.living), bool)
        hidden[rows := store.with_tokens()] = False
        vectors: DocumentVectors = store.derived
        encoded = vectors.queries(queries.map(lambda t: t.cpu())).numpy()
        return vectors.nearest(encoded, min(k, len(rows)), hidden if hidden.any() else None, self.probes)

    def search(self, store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
        ranked = []
        for queries in parts:
            _, candidates = self.nearest(store, queries, max(k, self.candidates or max(CANDIDATES, EACH * k)))
            for n, rows in enumerate(candidates):
                rows = np.sort(rows[rows >= 0])
                [row] = scores(store, [recipe], queries[n : n + 1], rows)
                ranked.append(top_documents(store, row, rows, k))
                advance(1)
        return ranked
