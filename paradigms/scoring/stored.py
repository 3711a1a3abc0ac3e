"""Compute rel for stored documents, with the compiled kernels or from tensors.

`Scanned.relevances` equals `core.rel` for alignments that keep each query token's most similar document
tokens, optionally restricted to tokens with the same id (`Alignment.kept`). `Scanned.imputed` equals
`impute.imputed_rel`. `score` supports all alignments.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from paradigms.core import Tokens, check_sides, similarity
from paradigms.impute import IMPUTATIONS, filled_mean, imputed_rel
from paradigms.recipe import Recipe
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.scoring.threads import shared, worth

if TYPE_CHECKING:
    from paradigms.scoring import kernels

NORMALISERS = ("one", "query_tokens", "document_tokens", "total", "retrieved")  # position = number in kernels
PIECES = 4  # pieces of work per thread, so that no thread waits long for another
NOTHING = np.zeros((1, 0), np.float32)
EMPTY = NOTHING[0]
EMPTY.setflags(write=False)  # like memory-mapped files, so that numba compiles only one type
PACKED = 1 << 20  # bytes of queries scored together, so that they stay in the cache


def score(recipe: Recipe, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Compute `core.rel`, or `impute.imputed_rel` with these documents [1, n, i, h] as the pool."""
    check_sides(documents, queries)
    if recipe.search == "impute":
        return imputed_rel(*similarity(documents, queries), recipe.search_tokens, recipe.imputation)
    one = _one_vector(documents) and _one_vector(queries)
    if one and compiled(recipe) and "ids" not in recipe.align.reads:
        return queries.vectors[:, 0, 0] @ documents.vectors[0, :, 0].T  # the only entry of A is 1, and Z = 1
    return in_batch_rel(documents, queries, recipe.align, recipe.normalise_function)


def _one_vector(texts: Tokens) -> bool:
    """Return whether every text is represented by a single vector without salience."""
    return texts.mask.shape[-1] == 1 and texts.salience is None and bool(texts.mask.all())


def compiled(recipe: Recipe) -> bool:
    """Return whether the kernels can score with this recipe."""
    top_k = recipe.align.kept(torch.tensor(1)) is not None and recipe.normalise in NORMALISERS
    return top_k or recipe.search == "impute"


def slices(queries: Tokens) -> list[Tokens]:
    """Split queries [b, 1, j, h] into slices that fit in the cache."""
    ends = np.cumsum(queries.mask.sum((1, 2)).numpy()) * queries.vectors.shape[-1] * 4 // PACKED
    cuts = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(ends)]
    return [queries[low:high] for low, high in pairwise(cuts)]


class Codes(NamedTuple):
    """Parameters that decode an index's codes (`kernels.Stored`), except each token's scale."""

    spread: np.ndarray  # float32 [h]
    middle: float  # (2^bits − 1) / 2
    centroids: np.ndarray  # C, float32 [K, h]


class PackedQueries:
    """Queries [b, 1, j, h] in the kernels' format: all real tokens, one query after another."""

    def __init__(self, queries: Tokens, codes: Codes | None = None) -> None:
        """Pack queries. codes: codec of the documents to score; vectors are padded to the codes' width."""
        from paradigms.scoring import kernels, tiles

        real = queries.mask.numpy()[:, 0]
        plain = queries.vectors.numpy()[:, 0][real]
        self.ids = None if queries.ids is None else queries.ids.numpy()[:, 0][real]
        if codes is not None:
            plain = np.pad(plain, ((0, 0), (0, len(codes.spread) - plain.shape[1])))
        self.vectors: np.ndarray = plain if codes is None else plain * codes.spread
        packed = tiles.pack(self.vectors)
        spans = np.zeros(len(real) + 1, np.int64)
        real.sum(1).cumsum(out=spans[1:])
        weights = np.ones(packed.lanes, np.float32)
        if queries.salience is not None:
            weights[: spans[-1]] = queries.salience.detach().numpy()[:, 0][real]
        centroid_products = NOTHING
        centre = NOTHING[0]
        if codes is not None:
            centre = np.zeros(packed.lanes, np.float32)
            centre[: spans[-1]] = self.vectors.sum(1) * np.float32(codes.middle)
            C = codes.centroids
            Q = tiles.pack(plain)
            centroid_products = np.empty((len(C), packed.lanes), np.float32)
            divided(lambda part: kernels.products(C[part], Q, centroid_products[part]), len(C), len(C))
        self.query = kernels.Query(packed.tiles, packed.edges, spans, weights, centroid_products, centre)
        self.middle = codes.middle if codes is not None else 0.0

    def __len__(self) -> int:
        return len(self.query.spans) - 1


def divided(work: Callable[[slice], Any], count: int, tokens: int) -> list[Any]:
    """Call `work` on slices of range(count) in `worth(tokens)` threads, and return the results."""
    threads = worth(tokens)
    pieces = PIECES * threads if threads > 1 else 1
    edges = [count * n // pieces for n in range(pieces + 1)]
    return shared(work, [slice(*edge) for edge in pairwise(edges)], threads)


class Scanned:
    """Tokens of an index, with salience and ids, for scoring by the kernels."""

    def __init__(
        self,
        tokens: "kernels.Stored",
        offsets: np.ndarray,
        fields: Mapping[str, np.ndarray],
        codes: Codes | None = None,
    ) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.codes = codes
        self.salience = np.asarray(fields.get("salience", EMPTY))
        self.ids = np.asarray(fields["ids"]) if "ids" in fields else None

    def packed(self, queries: Tokens) -> PackedQueries:
        """Pack queries for scoring against these tokens."""
        return PackedQueries(queries, self.codes)

    def repacked(self, packed: PackedQueries) -> PackedQueries:
        """Repack queries that were packed for codes of other bits of the same tokens."""
        assert self.codes is not None
        again = copy(packed)
        centre = packed.query.centre * np.float32(self.codes.middle / packed.middle)
        again.query = packed.query._replace(centre=centre)
        return again

    def relevances(
        self, recipes: Sequence[Recipe], packed: PackedQueries, rows: np.ndarray
    ) -> Float[Tensor, "s b n"]:
        """Compute rel(d, q) of the documents at `rows` with each recipe, which must be `compiled`.

        All recipes share one S = DᵀQ, unless one of them imputes similarities or depends on token ids.
        """
        if len(recipes) > 1 and any(r.search == "impute" or "ids" in r.align.reads for r in recipes):
            return torch.cat([self.relevances([recipe], packed, rows) for recipe in recipes])
        from paradigms.scoring import kernels

        starts = self.offsets[rows]
        stops = self.offsets[rows + 1]
        lengths = stops - starts
        width = packed.vectors.shape[1]
        if recipes[0].search == "impute":
            return self.imputed(recipes[0], packed, rows, int(lengths.sum()))[0][None]
        counts = np.empty((len(rows), len(recipes)), np.int64)
        for column, recipe in zip(counts.T, recipes, strict=True):
            each = recipe.align.kept(torch.from_numpy(lengths))
            assert each is not None
            column[:] = each
        normalisers = np.array([NORMALISERS.index(recipe.normalise) for recipe in recipes])
        maxima = len(recipes) == 1 and (counts <= 1).all()
        matches = self._matches(recipes[0], packed) if "ids" in recipes[0].align.reads else None
        out = np.empty((len(rows), len(recipes), len(packed)), np.float32)

        def work(part: slice) -> None:
            documents = kernels.Documents(starts[part], stops[part], self.salience)
            operands = self.tokens, packed.query, documents, width
            if matches is not None:
                kernels.equal(*operands, matches, normalisers[0], out[part, 0])
            elif maxima:
                kernels.maxima(*operands, normalisers[0], out[part, 0])
            else:
                kernels.largest(*operands, counts[part], normalisers, out[part])

        divided(work, len(rows), int(lengths.sum()) * (len(packed.query.edges) - 1))
        return torch.from_numpy(out.transpose(1, 2, 0))

    def imputed(
        self, recipe: Recipe, packed: PackedQueries, rows: np.ndarray, corpus: int
    ) -> tuple[Float[Tensor, "b n"], Bool[np.ndarray, "b n"]]:
        """Compute f_XTR'(q, d) with the documents at `rows` as the pool, and a mask of retrieved documents.

        corpus: number of tokens to extrapolate to when imputing. A document is retrieved if a query token
        retrieves one of its tokens.
        """
        largest, documents, best = self._retrieved(recipe.search_tokens, packed, rows)
        missing = IMPUTATIONS[recipe.imputation](torch.from_numpy(largest), corpus)
        maxima = torch.from_numpy(np.where(best < largest.min(1), np.float32(-np.inf), best))
        nothing = missing.new_full((1, len(missing)), -torch.inf)
        scores = torch.empty((len(packed), len(rows)))
        owns = np.zeros((len(packed), len(rows)), bool)
        for n, (low, high) in enumerate(pairwise(packed.query.spans.tolist())):
            scores[n] = filled_mean(nothing[:, low:high], missing[low:high])
            scores[n, documents] = filled_mean(maxima[:, low:high], missing[low:high])
            owns[n, documents] = (maxima[:, low:high] > -torch.inf).any(1).numpy()
        return scores, owns

    def _retrieved(
        self, k: int, packed: PackedQueries, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find each query token's k largest similarities to tokens of the documents at `rows`.

        Returns these [j, k], padded with −∞; the places in `rows` of all documents with one of them [n]; and
        these documents' maxima [n, j], which are arbitrary where they are below the k-th largest.
        """
        from paradigms.scoring import kernels

        starts = self.offsets[rows]
        stops = self.offsets[rows + 1]
        lengths = stops - starts
        width = packed.vectors.shape[1]
        lanes = int(packed.query.spans[-1])
        k = max(1, min(k, int(lengths.sum())))
        # One per thread: with more tokens, the k-th similarity is larger.
        tops: dict[int, kernels.Largest] = {}

        def work(part: slice) -> tuple[np.ndarray, np.ndarray]:
            count = part.stop - part.start
            thread = get_ident()
            if thread not in tops:
                tops[thread] = kernels.largest_of(lanes, k)
            met = np.empty(count + 1, np.int64)
            # Unwritten rows take no memory; the kernel clears one more row than it returns.
            maxima = np.empty((count + 1, len(packed.query.weights)), np.float32)
            documents = kernels.Documents(starts[part], stops[part], self.salience)
            filled = kernels.retrieve(self.tokens, packed.query, documents, width, met, maxima, tops[thread])
            return part.start + met[:filled], maxima[:filled, :lanes]

        parts = divided(work, len(rows), int(lengths.sum()) * (len(packed.query.edges) - 1))
        values = np.concatenate([top.values for top in tops.values()], axis=1)
        met = np.concatenate([documents for documents, _ in parts])
        maxima = np.concatenate([block_maxima for _, block_maxima in parts])
        return np.partition(values, -k, axis=1)[:, -k:], met, maxima

    def _matches(self, recipe: Recipe, packed: PackedQueries) -> "kernels.Matches":
        from paradigms.scoring import kernels

        if self.ids is None or packed.ids is None:
            raise ValueError(f"{recipe.align} needs token ids on both sides; Tokens.ids is None")
        order = np.argsort(packed.ids, kind="stable")
        low, high = (int(packed.ids[order[end]]) for end in (0, -1)) if len(order) else (0, 0)
        begins = np.concatenate([[0], np.cumsum(np.bincount(packed.ids - low, minlength=high - low + 1))])
        vectors = np.ascontiguousarray(packed.vectors)
        positive = recipe.align.positive
        return kernels.Matches(self.ids, low, begins, order, vectors, positive)
