"""top-k_d rel(d, q) over several indexes, searched as if they were one index of all their documents.

The indexes hold different documents encoded by one model, in folders on one or several disks. If candidates
are scored in full (gather), the results of all indexes are merged. If missing similarities are imputed (Lee
et al. 2023, Eq. 4), each query token retrieves its k' best tokens from all indexes together; these tokens
determine mⱼ and the documents to score. Exact indexes return the same results as one exact index. Indexes of
other kinds each search for candidates separately.
"""

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import TENSORS, Tokens
from paradigms.data import Corpus, best_first
from paradigms.find.index import Index
from paradigms.find.predictors import NearDocuments
from paradigms.find.ranking import Ranked, best, by_id, retrieved_each, scanned
from paradigms.find.scan import Exact
from paradigms.identity import differing
from paradigms.impute import retrieved_rel
from paradigms.io.checks import check_several
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.scoring.stored import Scanned, filled, score, slices
from paradigms.store.build import Advance
from paradigms.store.store import Store

SAME = ("paradigm", "dim", "fields")  # manifest entries that must agree, besides the identity


class Stores:
    """The stores of several indexes, usable like a single store.

    Raises ValueError if two stores contain the same document or were built by different models.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)
        self._owners: dict[str, int] = {}  # id → position of its store
        first = self.stores[0]
        for n, store in enumerate(self.stores):
            if other := differing(_made(store), _made(first)):
                raise ValueError(
                    f"{store} and {first} were not made by one model ({other}): search each alone"
                )
            if twice := next((id for id in store.rows_by_id if id in self._owners), None):
                where = self.stores[self._owners[twice]]
                raise ValueError(f"document {twice!r} is both in {where} and in {store}: delete it from one")
            self._owners |= dict.fromkeys(store.rows_by_id, n)

    def __len__(self) -> int:
        return len(self._owners)

    def __str__(self) -> str:
        return ", ".join(map(str, self.stores))

    @property
    def bytes_per_document(self) -> float:
        return sum(store.bytes_per_document * len(store) for store in self.stores) / max(1, len(self))

    def check(self, paradigm: Paradigm) -> None:
        """Call `Store.check` on each store."""
        for store in self.stores:
            store.check(paradigm)

    def check_texts(self, corpus: Corpus) -> None:
        """Call `Store.check_texts` on each store."""
        for store in self.stores:
            store.check_texts(corpus)

    def owner(self, id: str) -> int:
        """Return the position of the store that contains a document. Raises KeyError if there is none."""
        if id not in self._owners:
            raise KeyError(f"document {id!r} is in none of the indexes {self} of {len(self)} documents")
        return self._owners[id]

    def positions(self, ids: Iterable[str]) -> list[int]:
        """Return the position of the store that contains each document, as `owner` does for one."""
        check_several(ids, "document ids")
        return [self.owner(id) for id in ids]

    def divided(self, ids: Iterable[str]) -> list[list[str]]:
        """Group documents by store, keeping their order."""
        parts: list[list[str]] = [[] for _ in self.stores]
        check_several(ids, "document ids")
        for id in ids:
            parts[self.owner(id)].append(id)
        return parts

    def tokens_of(self, ids: Sequence[str], device: torch.device | str = "cpu") -> Tokens:
        """Read the tokens of documents from their stores, in the order of `ids`; see `Store.tokens_of`."""
        parts = self.divided(ids)
        named = [id for part in parts for id in part]
        read = [store.tokens_of(some, device) for store, some in zip(self.stores, parts, strict=True) if some]
        joined = reduce(_joined, read) if read else self.stores[0].tokens_of([], device)
        place = {id: n for n, id in enumerate(named)}
        order = torch.tensor([place[id] for id in ids], dtype=torch.long, device=joined.mask.device)
        return joined.map(lambda t: t[:, order])


class Indexes:
    """Several indexes of one kind, with the methods of a single `Index`."""

    def __init__(self, indexes: Sequence[Index]) -> None:
        if not indexes:
            raise ValueError("there is no index to search")
        self.indexes, self.store = tuple(indexes), Stores([index.store for index in indexes])

    def __len__(self) -> int:
        return len(self.store)

    def with_finder(self, **settings: Any) -> "Indexes":
        """Return indexes with changed finder settings, such as probes=16."""
        return Indexes([index.with_finder(**settings) for index in self.indexes])

    def only(self, ids: Iterable[str]) -> "Indexes":
        """Return indexes restricted to these documents. Raises KeyError if a document is unknown."""
        parts = zip(self.indexes, self.store.divided(ids), strict=True)
        return Indexes([index.only(some) for index, some in parts])

    def search_tokens(
        self,
        recipe: Recipe,
        queries: Tokens | Sequence[Tokens],
        k: int = 100,
        *,
        advance: Advance = lambda n: None,
    ) -> Ranked:
        """Return the k best documents for each query; see `Index.search_tokens` for the arguments.

        For imputation, compressed indexes retrieve the k' best tokens from their probed lists, however large
        k' is, so mⱼ is not estimated. Raises ValueError if `recipe` imputes and the indexes differ in kind.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        count = len(self.indexes)
        parts = [queries] if isinstance(queries, Tokens) else list(queries)
        if recipe.search == "impute":
            parts = [self.indexes[0].checked(recipe, part) for part in parts]
            full = [index for index in self.indexes if index.store.living_tokens]
            if not full or not any(part.mask.any() for part in parts):
                return [{} for part in parts for _ in part.mask]
            with torch.inference_mode():
                ranked = _imputed(full, recipe, parts, k, advance)
            there = [some for part in parts for some in part.mask.flatten(1).any(1).tolist()]
            return [row if some else {} for row, some in zip(ranked, there, strict=True)]
        runs = [
            index.search_tokens(recipe, parts, k, advance=lambda n: advance(n / count))
            for index in self.indexes
        ]
        return _best_of(runs, k)

    @torch.inference_mode()
    def rerank_tokens(
        self, recipes: Sequence[Recipe], queries: Tokens, candidates: Sequence[Sequence[str]]
    ) -> list[Ranked]:
        """Rescore each query's candidates with each recipe; see `Index.rerank_tokens` for the arguments."""
        if any(recipe.reads_pool for recipe in recipes):
            return [
                [self._pooled(r, queries[n : n + 1], ids) for n, ids in enumerate(candidates)]
                for r in recipes
            ]
        divided = [self.store.divided(ids) for ids in candidates]
        ranked: list[list[Ranked]] = []
        for n, index in enumerate(self.indexes):
            ranked.append(index.rerank_tokens(recipes, queries, [parts[n] for parts in divided]))
        return [_best_of(runs, None) for runs in zip(*ranked, strict=True)]

    def _pooled(self, recipe: Recipe, query: Tokens, ids: Sequence[str]) -> dict[str, float]:
        """Rescore one query's candidates, which form the pool for the recipe."""
        query = self.indexes[0].checked(recipe, query)
        if not ids:
            return {}
        documents = self.store.tokens_of(ids, query.mask.device)
        scores = score(recipe, documents, query)[0].masked_fill(~documents.mask[0].any(-1), -torch.inf)
        return best_first(dict(zip(ids, scores.tolist(), strict=True)))


def _imputed(
    indexes: Sequence[Index], recipe: Recipe, parts: Sequence[Tokens], k: int, advance: Advance
) -> Ranked:
    """Score from the tokens that each query token retrieves from all indexes (Lee et al. 2023, Eq. 4)."""
    stores, finders = [index.store for index in indexes], [index.finder for index in indexes]
    kinds = {type(finder) for finder in finders}
    if len(kinds) > 1:
        raise ValueError(f"{Stores(stores)} are of several kinds, which cannot impute together")
    reads = [read for store in stores if (read := scanned(store, parts[0].mask.device))]
    if kinds == {Exact} and len(reads) == len(stores):
        return _scanned(stores, reads, recipe, parts, k, advance)
    if kinds == {NearDocuments}:
        return _near(indexes, recipe, parts, k, advance)
    ranked = []
    pairs: list[tuple[Store, Any]] = list(zip(stores, finders, strict=True))
    each = [retrieved_each(s, parts, recipe.search_tokens, f.token_search) for s, f in pairs]
    firsts = np.cumsum([0, *(len(store.living) for store in stores)])
    total = sum(store.living_tokens for store in stores)
    for retrieved in zip(*each, strict=True):
        found = torch.cat([similarities for _, similarities, _ in retrieved], 1)
        owners = [
            store.owners(tokens.cpu().numpy()) for store, (*_, tokens) in zip(stores, retrieved, strict=True)
        ]
        owners = [np.where(rows >= 0, rows + first, -1) for rows, first in zip(owners, firsts, strict=False)]
        top, places = found.topk(min(recipe.search_tokens, found.shape[1]), sorted=False)
        of = torch.from_numpy(np.concatenate(owners, 1)).to(places.device).gather(1, places)
        rows, scores = retrieved_rel(top, of, total, recipe.imputation)
        runs = []
        for store, low, high in zip(stores, firsts, firsts[1:], strict=False):
            mine = (rows >= low) & (rows < high)
            runs.append(best(store, scores[mine], rows[mine].cpu().numpy() - low, k))
        ranked.append(best_first(reduce(operator.or_, runs), k))
        advance(1)
    return ranked


def _scanned(
    stores: Sequence[Store],
    reads: Sequence[Scanned],
    recipe: Recipe,
    parts: Sequence[Tokens],
    k: int,
    advance: Advance,
) -> Ranked:
    """Score the documents of exact indexes with the compiled kernels (Lee et al. 2023, Eq. 4)."""
    ranked, rows = [], [np.flatnonzero(store.living) for store in stores]
    total = sum(store.living_tokens for store in stores)
    for some in (some for queries in parts for some in slices(queries)):
        packed = reads[0].packed(some)  # the same for all exact stores
        pools = [
            read.retrieved(recipe.search_tokens, packed, mine) for read, mine in zip(reads, rows, strict=True)
        ]
        made, _ = filled(recipe, packed.query.spans, pools, total)
        for n in range(len(some.mask)):
            runs = [
                best(store, scores[n][owns[n]], mine[pool.documents[owns[n]]], k)
                for store, mine, pool, (scores, owns) in zip(stores, rows, pools, made, strict=True)
            ]
            ranked.append(best_first(reduce(operator.or_, runs), k))
            advance(1)
    return ranked


def _near(
    indexes: Sequence[Index], recipe: Recipe, parts: Sequence[Tokens], k: int, advance: Advance
) -> Ranked:
    """Find the documents in all indexes with the largest inner products of encodings, and rerank them."""
    ranked, all_of = [], Indexes(indexes)
    for queries in parts:
        finders: list[Any] = [index.finder for index in indexes]
        wanted = max(k, finders[0].candidates or max(64, 4 * k))
        near = [
            finder.nearest(index.store, queries, wanted)
            for finder, index in zip(finders, indexes, strict=True)
        ]
        for n in range(len(queries.mask)):
            products: dict[str, float] = {}
            for index, (values, rows) in zip(indexes, near, strict=True):
                there = rows[n] >= 0
                products |= by_id(index.store, rows[n][there], values[n][there].tolist())
            ids = list(best_first(products, wanted))
            ranked.append(best_first(all_of.rerank_tokens([recipe], queries[n : n + 1], [ids])[0][0], k))
            advance(1)
    return ranked


def _best_of(runs: Sequence[Ranked], k: int | None) -> Ranked:
    """Merge the runs of several indexes, and keep the k best documents per query. k: None keeps all."""
    return [best_first(reduce(operator.or_, rows), k) for rows in zip(*runs, strict=True)]


def _made(store: Store) -> dict[str, Any]:
    """Return what must agree between stores that are searched together."""
    return {name: store.manifest[name] for name in SAME} | store.manifest.get("identity", {})


def _joined(one: Tokens, other: Tokens) -> Tokens:
    """Concatenate the documents of two Tokens [1, n, i, h], padded to the larger i."""
    longest = max(one.mask.shape[2], other.mask.shape[2])

    def wide(t: Tensor) -> Tensor:
        more = t.new_zeros((*t.shape[:2], longest - t.shape[2], *t.shape[3:]))
        return torch.cat([t, more], 2)

    def both(name: str) -> Tensor | None:
        values = getattr(one, name), getattr(other, name)
        return None if values[0] is None else torch.cat([wide(value) for value in values], 1)

    fields = {name: both(name) for name in TENSORS}
    return Tokens(**fields)  # type: ignore[arg-type]
