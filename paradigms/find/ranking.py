"""Functions that all finders share to score and rank documents. Equal scores are ordered by document id."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.core import Tokens
from paradigms.data import best_first
from paradigms.impute import retrieved_rel
from paradigms.recipe import Recipe
from paradigms.scoring.stored import PackedQueries, Scanned, compiled, score
from paradigms.store.build import Advance
from paradigms.store.kind import DOCUMENTS
from paradigms.store.store import Store

RETRIEVED = 1 << 22  # maximum number of retrieved tokens in memory, for all tokens of a slice of queries
CANDIDATES = 1 << 17  # padded tokens of one query's candidates that are scored at once
# Padded tokens in a block of documents, and entries of S at once. For a CPU, these fit its cache.
SIZES = {"cpu": (1 << 12, 1 << 20)}
LARGE_SIZES = (1 << 17, 1 << 26)

Queries = Sequence[Tokens]
"""Batches of queries [b, 1, j, h]."""
Ranked = list[dict[str, float]]
"""One dictionary per query: document id → score, best first."""
Retrieve = Callable[[Store, Tensor, int], tuple[Tensor, Tensor]]
"""(store, query tokens [t, h], k) → similarities and rows [t, k'] with k' ≤ k: each query token's most
similar stored tokens, unordered, without deleted documents. Missing tokens have similarity −∞ and row −1."""


def from_tokens(
    store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance, retrieve: Retrieve
) -> Ranked:
    """Retrieve tokens, and score the documents that contain one of them.

    gather scores by `core.rel`; impute from these tokens alone: `impute.retrieved_rel` (Lee et al., Eq. 4).
    """
    ranked = []
    for query, similarities, tokens in _retrieved(store, parts, recipe.search_tokens, retrieve):
        if recipe.search == "impute":
            owners = torch.from_numpy(store.owners(tokens.cpu().numpy())).to(tokens.device)
            documents, values = retrieved_rel(similarities, owners, store.living_tokens, recipe.imputation)
            rows = documents.cpu().numpy()
        else:
            rows = np.unique(store.owners(tokens[tokens >= 0].cpu().numpy()))
            values = scores(store, [recipe], query, rows)[0]
        ranked.append(top_documents(store, values, rows, k))
        advance(1)
    return ranked


def _retrieved(
    store: Store, parts: Queries, k: int, retrieve: Retrieve
) -> Iterator[tuple[Tokens, Tensor, Tensor]]:
    """Yield each query, without padding, and the similarities and rows that `retrieve` returns for it."""
    most = RETRIEVED // min(k, store.living_tokens)
    for queries in parts:
        step = max(1, most // max(1, queries.mask.shape[-1]))
        for start in range(0, len(queries.mask), step):
            piece = queries[start : start + step]
            lengths = piece.mask[:, 0].sum(-1).tolist()
            retrieved = retrieve(store, piece.vectors[:, 0][piece.mask[:, 0]], k)
            similarities, tokens = (t.split(lengths) for t in retrieved)
            single = (piece[n : n + 1] for n in range(len(lengths)))
            yield from zip(single, similarities, tokens, strict=True)


def scores(
    store: Store,
    recipes: Sequence[Recipe],
    query: Tokens,
    rows: np.ndarray,
    packed: PackedQueries | None = None,
) -> Float[Tensor, "s n"]:
    """Score documents for one query with each recipe, as `stored.score` does.

    rows: the documents' rows. packed: the query, if already packed for the kernels. The kernels compute S
    once for all recipes that they support; for the other recipes, the tokens are read once.
    """
    values = torch.empty((len(recipes), len(rows)), device=query.mask.device)
    if not len(rows):
        return values
    read = scanned(store, query.mask.device)
    compilable = [n for n, recipe in enumerate(recipes) if read and compiled(recipe)]
    others = [n for n in range(len(recipes)) if n not in compilable]
    if read and compilable:
        packed = read.packed(query) if packed is None else packed
        values[compilable] = read.relevances([recipes[n] for n in compilable], packed, rows)[:, 0]
    if others:
        pooled = any(recipes[n].reads_pool for n in others)
        parts = []
        for block in [rows] if pooled else store.blocks(CANDIDATES, rows):
            documents = store.tokens(block, query.mask.device)
            parts.append(torch.cat([score(recipes[n], documents, query) for n in others]))
        values[others] = torch.cat(parts, 1)
    return values


def scanned(store: Store, device: torch.device) -> Scanned | None:
    """Return the input of the compiled kernels, or None if they cannot score this store on the device."""
    return store.whole.once(_scanned) if device.type == "cpu" else None


def _scanned(store: Store) -> Scanned | None:
    store.check_salience(store.columns)
    return store.codec.scanned(store.columns, store.offsets)


# A key combines score and id in one integer, so that the largest keys are the best documents despite ties.
# The high bits hold the score, converted so that integers sort like floats; the low bits hold the id's rank.


def keys(store: Store, scores: Float[Tensor, "b n"], rows: np.ndarray) -> Int[Tensor, "b n"]:
    """Return sort keys for the documents at `rows`, with a larger key for a better document."""
    bits = (scores.float() + 0.0).view(torch.int32).long()  # adding 0 turns −0 into 0
    rank = torch.from_numpy(store.whole.once(_order)[1][rows]).to(scores.device)
    return (bits.where(bits >= 0, bits ^ 0x7FFFFFFF) << 32) | (0xFFFFFFFF - rank)


def decoded(store: Store, keys: Int[Tensor, " k"]) -> dict[str, float]:
    """Convert keys to a dictionary, document id → score, in the same order."""
    high = keys >> 32
    rank = 0xFFFFFFFF - (keys & 0xFFFFFFFF)
    scores = high.where(high >= 0, high ^ 0x7FFFFFFF).int().view(torch.float32)
    rows = store.whole.once(_order)[0][rank.cpu().numpy()]
    return by_id(store, rows, scores.tolist())


def top_documents(store: Store, scores: Float[Tensor, " n"], rows: np.ndarray, k: int) -> dict[str, float]:
    """Return the k best documents among `rows`, best first, or all if there are fewer."""
    if not len(rows):
        return {}
    scores = scores.float().cpu() + 0.0  # adding 0 turns −0 into 0
    least = scores.topk(min(k, len(rows))).values[-1]
    top = (scores >= least).numpy()
    return best_first(by_id(store, rows[top], scores[top].tolist()), k)


def by_id(store: Store, rows: np.ndarray, scores: Sequence[float]) -> dict[str, float]:
    """Map the ids of the documents at `rows` to their scores. Raises ValueError if two have one id."""
    ids = store.names(rows)
    if len(set(ids)) != len(ids):
        raise store.files.damaged(DOCUMENTS, "two documents have one id")
    return dict(zip(ids, scores, strict=True))


def _order(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows sorted by id, and each row's position in that order."""
    ids = store.ids
    by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    return by_id, np.argsort(by_id)
