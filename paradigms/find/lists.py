"""top-k_d rel(d, q) from a few lists of coded tokens.

Each centroid of the codec (`store.residuals`) has a list of the documents that contain its tokens. A query
token j probes the lists of its most similar centroids, down to the similarity lⱼ.

1. Bound: Σⱼ max(0, max_c cᵀqⱼ − lⱼ), where c runs over the probed lists that contain d. This reads lists
   alone, not codes (PLAID's first stage, Santhanam et al. 2022, arXiv:2205.09707). The documents with the
   largest bounds, `BOUNDED` per candidate, reach the next stage.
2. Filter: the tokens of these documents that lie in a probed list are decoded to x̂ and scored against all
   query tokens, where i runs over these tokens of d:

       f(d, q) = 1/N Σⱼ max(mⱼ, maxᵢ x̂ᵢᵀqⱼ)    with mⱼ = lⱼ

3. The `candidates` documents with the largest f are scored from all their tokens x̂: gather, by `core.rel`;
   impute, by f where i runs over all tokens of d and mⱼ is the expected k'-th best similarity of query token
   j (`loops.select`), an estimate of `impute.imputed_rel` (Lee et al. 2023, Eq. 4). For k' up to `SMALL`, the
   score is Eq. 4 itself, from the k' best tokens that each query token finds in its probed lists, which is
   slower. If the store has fine codes, f over all tokens of d selects one in `REFINED` candidates, and only
   these are scored, from their fine codes.

Both modes miss documents without a token in the probed lists. Documents that are added later are not in any
list at first: a search compares the centroids of all their tokens with the probed lists. Beyond `UNLISTED`
such tokens, an addition rewrites the lists.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.find.ranking import Queries, Ranked, from_tokens, scanned, scores, top_documents
from paradigms.recipe import Recipe
from paradigms.scoring.stored import EMPTY, PackedQueries, Scanned, divided
from paradigms.scoring.threads import shared, worth
from paradigms.store.build import Advance
from paradigms.store.columns import Files, Writer
from paradigms.store.kind import Derived
from paradigms.store.residuals import FINE, padded
from paradigms.store.store import Store
from paradigms.store.view import ranges

SMALL = 100  # largest k' for which k' tokens are retrieved instead of estimating mⱼ
PROBES = 8  # lists per query token, where no recall was measured
CANDIDATES, EACH = 512, 8  # documents scored in full: the minimum, and the number per wanted document
REFINED = 4  # candidates per document that is scored from fine codes
BOUNDED = 16  # documents per candidate that are scored from their listed tokens
UNLISTED = 1 << 20  # maximum number of tokens outside the lists after an addition: about 1 ms per search
ENTRIES, BEGINS = "entries.bin", "begins.bin"
SORTED = 1 << 27  # entries sorted in memory at once


class OpenLists(NamedTuple):
    """The lists of a store."""

    begins: np.ndarray  # int64 [lists + 1]: where each list begins in `entries`
    entries: np.ndarray  # uint32: the tokens' documents, list by list, in ascending order within a list
    first: int  # the first document whose tokens are not in the lists
    states: threading.local  # each thread's state for `loops.bound`, of zeros between searches


@dataclass(frozen=True)
class Lists(Derived):
    """Files with the concatenated lists; a centroid's list names the documents that contain its tokens."""

    def write(self, writer: Writer, store: Store, anew: bool) -> None:
        from paradigms.find import loops

        if not anew and _unlisted(writer, store) <= UNLISTED:
            return
        centroids = store.columns["centroids"]
        sizes = loops.sizes(centroids, len(store.codec.packed))
        begins = np.concatenate([[0], np.cumsum(sizes)])
        writer.remove(BEGINS)
        writer.append(BEGINS, begins)
        writer.remove(ENTRIES)
        low = 0
        while low < len(sizes):  # as many lists at a time as fit, at least one
            high = max(low + 1, int(np.searchsorted(begins, begins[low] + SORTED, side="right")) - 1)
            entries = np.empty(begins[high] - begins[low], np.uint32)
            loops.sort(centroids, store.offsets, len(sizes), low, begins[low : high + 1], entries)
            writer.append(ENTRIES, entries)
            low = high

    def behind(self, store: Store) -> bool:
        return _unlisted(store.files, store) > 0

    def open(self, store: Store) -> OpenLists:
        """Open the lists. Document numbers are not checked until a search reads them."""
        begins = store.files.array(BEGINS, "int64")
        entries = store.files.array(ENTRIES, "uint32")
        listed = len(entries)
        lists = len(store.codec.packed)
        first = int(np.searchsorted(store.offsets, listed))
        wrong = len(begins) != lists + 1 or begins[0] != 0 or (np.diff(begins) < 0).any()
        if wrong or begins[-1] != listed:
            raise store.files.damaged(BEGINS, f"it does not describe {lists} lists of {listed} tokens")
        if listed > store.offsets[-1] or store.offsets[first] != listed:
            raise store.files.damaged(ENTRIES, f"its {listed} tokens do not end with a whole document")
        return OpenLists(begins, entries, first, threading.local())


def _unlisted(files: Files | Writer, store: Store) -> int:
    """Return the number of tokens that are not in the lists."""
    return int(store.offsets[-1]) - len(files.array(ENTRIES, "uint32"))


@dataclass(frozen=True)
class Probing:
    """Search the lists of the centroids that are most similar to each query token.

    probes: number of lists to read per query token. candidates: number of documents to score in full; of a
    store with fine codes, a quarter of them by these, at least k. 0 means what the build chose (`recall`) or,
    if nothing was measured, 8 lists and the larger of 512 and 8k.
    """

    probes: int = 0
    candidates: int = 0

    def __post_init__(self) -> None:
        if self.probes < 0:
            raise ValueError(f"probes must be a number of lists for each query token, got {self.probes}")

    def efforts(self, store: Store, k: int) -> Iterator["Probing"]:
        lists = len(store.codec.packed)
        probes = PROBES
        candidates = max(CANDIDATES, EACH * k) // 4
        while True:
            # Not clamped to this store, which may grow.
            yield Probing(self.probes or probes, self.candidates or candidates)
            if probes >= lists and candidates >= len(store):
                return
            probes *= 2
            candidates *= 2

    def exhaustive(self, store: Store) -> "Probing":
        return Probing(len(store.codec.packed), REFINED * len(store))

    def search(self, store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
        candidates = max(k, self.candidates or max(CANDIDATES, EACH * k))
        imputes = recipe.search == "impute"
        if imputes and recipe.search_tokens <= SMALL:
            return from_tokens(store, recipe, parts, k, advance, self.token_search)
        if imputes and recipe.imputation != "kth":
            raise ValueError(
                f"{store} is compressed and estimates the k'-th similarity where search_tokens is above "
                f"{SMALL}: the imputation {recipe.imputation} needs an exact index, or one of FAISS"
            )

        def search(query: Tokens) -> dict[str, float]:
            # Eq. 4 knows no salience.
            coarse, fine = _codes(store)
            packed = coarse.packed(Tokens(query.vectors, query.mask) if imputes else query)
            probed = _probe(store, packed, self.probes or PROBES, recipe.search_tokens if imputes else 0)
            rows = _bounded(store, packed, probed, BOUNDED * candidates)
            rows = _largest(rows, _f(coarse, packed, rows, probed.chosen, probed.least), candidates)
            every = np.ones_like(probed.chosen)
            if fine.tokens.bits > coarse.tokens.bits:
                # All tokens are scored, so that only imputation has a floor.
                floors = probed.missing if imputes else np.full_like(probed.least, -np.inf)
                f = _f(coarse, packed, rows, every, floors)
                rows = _largest(rows, f, max(k, candidates // REFINED))
                packed = fine.repacked(packed)
            if not imputes:
                return top_documents(store, scores(store, [recipe], query, rows, packed)[0], rows, k)
            f = _f(fine, packed, rows, every, probed.missing)
            return top_documents(store, torch.from_numpy(f) / query.mask.shape[-1], rows, k)

        return _each(parts, advance, search)

    def token_search(self, store: Store, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the similarities and rows of each query token's k most similar tokens in its probed lists.

        vectors: query tokens [t, h].
        """
        products = padded(vectors.cpu(), store.codec.bits) @ store.codec.centroids.T
        probed = products.topk(min(self.probes or PROBES, products.shape[1])).indices.tolist()
        values = vectors.new_full((len(vectors), min(k, int(store.offsets[-1]))), -torch.inf)
        tokens = torch.full(values.shape, -1, device=values.device)
        for n, (vector, chosen) in enumerate(zip(vectors, probed, strict=True)):
            rows = _tokens(store, chosen)
            similarities = torch.from_numpy(store.decoded(rows)["vectors"]).to(vectors) @ vector
            top = similarities.topk(min(values.shape[1], len(similarities)))
            values[n, : len(top.values)] = top.values
            tokens[n, : len(top.values)] = torch.from_numpy(rows).to(tokens.device)[top.indices]
        return values, tokens


class ProbedLists(NamedTuple):
    """The lists that a query's tokens probe, as pairs of a query token j and a list c."""

    tokens: np.ndarray  # int64 [pairs]: j, ascending
    lists: np.ndarray  # int64 [pairs]: c, the most similar first
    chosen: np.ndarray  # bool [K]: whether any query token probes the list
    least: np.ndarray  # float32 [j]: lⱼ, the similarity of the last list that query token j probes
    missing: np.ndarray  # float32 [j]: the expected k-th best similarity


def _probe(store: Store, packed: PackedQueries, probes: int, k: int) -> ProbedLists:
    """Select `probes` lists for each query token. k: rank of the similarity `missing`; 0 means none."""
    from paradigms.find import loops

    query = packed.query
    count = int(query.spans[-1])
    least = np.empty(count, np.float32)
    missing = np.empty(count, np.float32)
    # Standard deviation of the products of residuals, whose spread is σ, with a query token.
    noise = np.linalg.norm(packed.vectors, axis=1).astype(np.float32)
    loops.select(query.centroid_products, store.once(list_sizes), probes, k, noise, least, missing)
    lists, tokens = np.divmod(np.flatnonzero(query.centroid_products[:, :count] >= least), count)
    order = np.lexsort((-query.centroid_products[lists, tokens], tokens))
    lists = lists[order]
    tokens = tokens[order]
    chosen = np.zeros(len(query.centroid_products), np.bool_)
    chosen[lists] = True
    return ProbedLists(tokens, lists, chosen, least, missing)


def _bounded(store: Store, packed: PackedQueries, probed: ProbedLists, limit: int) -> np.ndarray:
    """Return, in ascending order, the `limit` documents with the largest bounds.

    Bounds are weighted by the query's salience, if any. Each thread has documents of its own.
    """
    from paradigms.find import loops

    query = packed.query
    lists: OpenLists = store.derived
    begins = lists.begins[probed.lists]
    ends = lists.begins[probed.lists + 1]
    unlisted = int(store.offsets[-1]) - len(lists.entries)
    threads = worth((int((ends - begins).sum()) + unlisted) // 4)  # entries are read faster than codes
    documents = len(store.living)
    edges = [documents * n // threads for n in range(threads + 1)]
    cuts = np.empty((threads + 1, len(begins)), np.int64)  # where each thread's documents begin in each list
    for n, document in enumerate(edges):
        loops.cut(lists.entries, begins, ends, document, cuts[n])
    cuts[0] = begins
    cuts[threads] = ends
    similarities = query.centroid_products, probed.least, query.weights

    def bound(n: int) -> tuple[np.ndarray, np.ndarray]:
        # Removed until it is cleared again, so that an interrupted search cannot leave a dirty state.
        state = lists.states.__dict__.pop("state", None)
        if state is None:
            state = np.zeros((documents, 2), np.float32)
        first = max(lists.first, edges[n])
        most = int(np.maximum(cuts[n + 1] - cuts[n], 0).sum()) + max(0, edges[n + 1] - first)
        rows = np.empty(min(documents, most), np.int64)
        ranges = probed.tokens, probed.lists, cuts[n], cuts[n + 1], lists.entries
        count = loops.bound(*similarities, *ranges, store.living[: lists.first], state, rows)
        tail = probed.chosen, store.columns["centroids"], store.offsets, first, edges[n + 1], store.living
        count = loops.bound_unlisted(*similarities, *tail, state, rows, count)
        rows = rows[:count]
        bounds = state[rows, 0]
        state[rows] = 0  # all that was written: zeros for every search would cost more, with many documents
        lists.states.state = state
        if count > limit:
            best = bounds >= np.partition(bounds, -limit)[-limit]
            rows, bounds = rows[best], bounds[best]
        return rows, bounds

    parts = shared(bound, range(threads), threads)
    rows, bounds = (np.concatenate(values) for values in zip(*parts, strict=True))
    return np.unique(_largest(rows, bounds, limit))


def _f(
    read: Scanned, packed: PackedQueries, rows: np.ndarray, chosen: np.ndarray, missing: np.ndarray
) -> np.ndarray:
    """Compute N · f of the documents at `rows` with m = missing, weighted by the query's salience if any.

    read: codes, for which the query is packed. chosen [K]: the lists whose tokens are scored.
    """
    from paradigms.scoring import kernels

    maxima = np.empty((len(rows), packed.query.centroid_products.shape[1]), np.float32)
    starts = read.offsets[rows]
    stops = read.offsets[rows + 1]
    width = packed.vectors.shape[1]

    def probe(part: slice) -> None:
        documents = kernels.Documents(starts[part], stops[part], EMPTY)
        kernels.probe(read.tokens, packed.query, documents, width, chosen, maxima[part])

    divided(probe, len(rows), int((stops - starts).sum()) // 4)
    filled = np.maximum(maxima[:, : len(missing)], missing)
    return np.einsum("nj, j -> n", filled, packed.query.weights[: len(missing)])


def list_sizes(store: Store) -> np.ndarray:
    """Count each list's tokens, excluding those of deleted documents."""
    from paradigms.find import loops

    begins = store.derived.begins
    centroids = store.columns["centroids"]
    offsets = store.offsets

    def counted(documents: np.ndarray) -> np.ndarray:
        places = ranges(offsets[documents], offsets[documents + 1])
        return loops.sizes(centroids[places], len(begins) - 1)

    if 2 * len(store) < len(store.living):
        return counted(np.flatnonzero(store.living))
    added = np.arange(store.derived.first, len(store.living))
    return np.diff(begins) + counted(added) - counted(np.flatnonzero(~store.living))


def _tokens(store: Store, chosen: Sequence[int]) -> np.ndarray:
    """Return the tokens in the chosen lists in ascending order, excluding those of deleted documents."""
    lists: OpenLists = store.derived
    entries = [lists.entries[lists.begins[c] : lists.begins[c + 1]] for c in chosen]
    documents = np.unique(np.concatenate([*entries, np.arange(lists.first, len(store.living))]))
    documents = documents[documents < len(store.living)].astype(np.int64)
    documents = documents[store.living[documents]]
    tokens = ranges(store.offsets[documents], store.offsets[documents + 1])
    return tokens[np.isin(store.columns["centroids"][tokens], chosen)]


def _codes(store: Store) -> tuple[Scanned, Scanned]:
    """Return the coarse and the fine codes, which are the same codes if a store has one of each token."""
    fine = scanned(store, torch.device("cpu"))
    assert fine is not None
    return store.whole.once(_coarse) if FINE in store.codec.codes else fine, fine


def _coarse(store: Store) -> Scanned:
    return store.codec.scanned(store.columns, store.offsets, coarse=True)


def _each(parts: Queries, advance: Advance, search: Callable[[Tokens], dict[str, float]]) -> Ranked:
    """Call `search` for each query without its padding, in parallel if there are enough queries."""

    def one(query: Tokens) -> dict[str, float]:
        real = query.mask[0, 0]
        row = search(query.map(lambda t: t[:, :, real].cpu())) if real.any() else {}
        advance(1)
        return row

    threads = torch.get_num_threads()
    ranked: Ranked = []
    for queries in parts:
        each = [queries[n : n + 1] for n in range(len(queries.mask))]
        ranked += [one(q) for q in each] if len(each) < threads else shared(one, each, threads)
    return ranked


def _largest(rows: np.ndarray, f: np.ndarray, count: int) -> np.ndarray:
    """Return, in ascending order, the `count` rows with the largest f. Ties go to the lowest rows."""
    if len(rows) > count:
        least = np.partition(f, -count)[-count]
        above = rows[f > least]
        equal = np.sort(rows[f == least])
        rows = np.concatenate([above, equal[: count - len(above)]])
    return np.sort(rows)
