"""top-k_d rel(d, q) over a whole corpus, exactly: a search reads every document or every token.

With gather, scores equal `core.rel`; with impute, `impute.imputed_rel`. Both are computed from the stored
vectors in bounded memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.find import ranking
from paradigms.find.ranking import Queries, Ranked, decoded, from_tokens, keys, scanned, top_documents
from paradigms.recipe import Recipe
from paradigms.scoring.stored import compiled, score, slices
from paradigms.store.build import Advance
from paradigms.store.store import Store

IN_PLACE = 1 << 20  # tokens per block of documents when stored vectors are read in place
TOKEN_BLOCK = 1 << 18  # document tokens that a token search reads at once


@dataclass(frozen=True)
class Exact:
    """Exhaustive search of any store whose codec keeps vectors."""

    def search(self, store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
        search = _imputed if recipe.search == "impute" else _gathered
        return search(store, recipe, parts, k, advance)

    def token_search(self, store: Store, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the similarities and rows of each query token's k most similar stored tokens, unordered.

        vectors: query tokens [t, h].
        """
        stored = store.columns["vectors"]
        count = min(k, store.living_tokens)
        dead = None if store.dead is None else torch.from_numpy(store.dead)
        _, cells = ranking.SIZES.get(vectors.device.type, ranking.LARGE_SIZES)
        slices = vectors.split(max(1, 16 * cells // max(1, min(TOKEN_BLOCK, len(stored)))))
        top = [(v.new_zeros((len(v), 0)), v.new_zeros((len(v), 0)).long()) for v in slices]
        for start in range(0, len(stored), TOKEN_BLOCK):
            block = torch.from_numpy(np.array(stored[start : start + TOKEN_BLOCK])).to(vectors)
            for n, (part, (scores, tokens)) in enumerate(zip(slices, top, strict=True)):
                S = part @ block.T
                if dead is not None:
                    S.masked_fill_(dead[start : start + TOKEN_BLOCK].to(S.device), -torch.inf)
                new, places = S.topk(min(count, len(block)), sorted=False)
                scores, tokens = torch.cat([scores, new], 1), torch.cat([tokens, places + start], 1)
                scores, places_of_best = scores.topk(min(count, scores.shape[1]), sorted=False)
                top[n] = scores, tokens.gather(1, places_of_best)
        return torch.cat([s for s, _ in top]), torch.cat([t for _, t in top])


def _gathered(store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
    """Score all documents by `core.rel`, keeping one block's scores for one batch of queries in memory."""
    device = parts[0].mask.device
    total = sum(len(queries.mask) for queries in parts)
    read = scanned(store, device) if compiled(recipe) else None
    packed = [read.packed(piece) for queries in parts for piece in slices(queries)] if read else []
    limit, _ = ranking.SIZES.get(device.type, ranking.LARGE_SIZES)
    queries: Sequence[Any] = packed or parts
    top: dict[int, Tensor] = {}  # index of a part of the queries → its k best keys so far
    for block in _in_place(store) if read else store.blocks(limit):
        documents = None if read else store.tokens(block, device)
        for n, piece in enumerate(queries):
            if documents is not None:
                scores = score(recipe, documents, piece)
            elif read is not None:
                [scores] = read.relevances([recipe], piece, block)
            new = keys(store, scores, block)
            both = torch.cat([top[n], new], 1) if n in top else new
            top[n] = both.topk(min(k, both.shape[1])).values
        advance(total * len(block) / len(store))
    return [decoded(store, row) for piece in top.values() for row in piece]


def _imputed(store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
    """Score by `impute.imputed_rel`, with one pass over the stored vectors per slice of queries."""
    read = scanned(store, parts[0].mask.device) if compiled(recipe) else None
    if not read:
        return from_tokens(store, recipe, parts, k, advance, Exact().token_search)
    rows = np.flatnonzero(store.living)
    ranked = []
    for piece in (piece for queries in parts for piece in slices(queries)):
        scores, owns = read.imputed(recipe, read.packed(piece), rows, store.living_tokens)
        for row, mine in zip(scores, owns, strict=True):
            ranked.append(top_documents(store, row[torch.from_numpy(mine)], rows[mine], k))
        advance(len(owns))
    return ranked


def _in_place(store: Store) -> list[np.ndarray]:
    """Divide the documents that a search may return into blocks of about IN_PLACE tokens."""
    rows = store.with_tokens()
    cuts = np.searchsorted(store.offsets[rows], range(IN_PLACE, int(store.offsets[-1]), IN_PLACE))
    return [block for block in np.split(rows, cuts) if len(block)]
