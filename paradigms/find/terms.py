"""top-k_d Σ_t w_t(d) · w_t(q), exactly: an inverted index with one weight per token (SPLADE, uniCOIL, BM25).

The store contains the ids and weights of each document's tokens (`store.codecs.Weights`). The first search
converts them to `postings`, in about 1 s per 10⁸ weights, and keeps these in memory. Scores equal `core.rel`
on the stored weights. Documents that share no term with the query are not returned.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paradigms.core import Tokens
from paradigms.find.ranking import Queries, Ranked, top_documents
from paradigms.recipe import Recipe
from paradigms.scoring.threads import shared
from paradigms.store.build import Advance
from paradigms.store.codecs import LARGEST, TERMS
from paradigms.store.store import Store

if TYPE_CHECKING:
    from paradigms.find.postings import Postings


@dataclass(frozen=True)
class BlockMax:
    """Exact search with block-max pruning. Weights of documents and queries must be at least 0."""

    def search(self, store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
        from paradigms.find import postings

        for queries in parts:
            _check(store, recipe, queries)
        inverted = store.once(_postings)

        def search(query: Tokens) -> dict[str, float]:
            assert query.ids is not None
            indexed = (query.ids >= 0) & (query.ids < len(inverted.terms) - 1)
            mask = query.mask & indexed & (query.vectors[..., 0] > 0)
            terms, places = np.unique(query.ids[mask].cpu().numpy(), return_inverse=True)
            weights = np.zeros(len(terms), np.float32)
            np.add.at(weights, places, query.vectors[..., 0][mask].cpu().numpy())
            rows = np.empty(len(store.living), np.int64)
            scores = np.empty(len(store.living), np.float32)
            count = postings.top_rows(inverted, store.codec.table, terms, weights, k, rows, scores)
            advance(1)
            return top_documents(store, torch.from_numpy(scores[:count]), rows[:count], k)

        each = [queries[n : n + 1] for queries in parts for n in range(len(queries.mask))]
        return shared(search, each, torch.get_num_threads())


def _check(store: Store, recipe: Recipe, queries: Tokens) -> None:
    """Raise ValueError if postings cannot score these queries."""
    if recipe.search == "impute":
        raise ValueError(f"{store} finds tokens by their ids, and cannot impute")
    if "ids" not in recipe.align.reads or recipe.normalise != "one":
        raise ValueError(f"{store} scores equal ids with Z = 1, not {recipe.align}, {recipe.normalise}")
    if queries.salience is not None:
        raise ValueError(f"{recipe.name} weighs terms of queries by salience, which {store} does not")
    if (queries.vectors.squeeze(-1).where(queries.mask, 0) < 0).any():
        raise ValueError(f"{recipe.name} gives a query a weight below 0, which {store} cannot prune")


def _postings(store: Store) -> "Postings":
    from paradigms.find.postings import inverted

    ids = store.columns["ids"]
    weights = store.columns["weights"]
    if len(ids) and not 0 <= ids.min() <= ids.max() < TERMS:
        raise store.files.damaged("ids.bin", f"terms that are not from 0 to {TERMS - 1}")
    if weights.dtype == np.uint16 and weights.max(initial=0) > LARGEST:
        raise store.files.damaged("weights.bin", "weights below 0, or not finite")
    return inverted(ids, weights, store.codec.table, store.offsets, store.living)
