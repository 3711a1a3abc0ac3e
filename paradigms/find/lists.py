"""top-k_d rel(d, q) from a few lists of coded tokens.

Every centroid of the codec (`store.residuals`) has the list of its tokens. A query token probes the lists of
its most similar centroids. All tokens in probed lists are scored against all query tokens, which gives for
every document d with one of these tokens

    f(d, q) = 1/N Σⱼ max(mⱼ, maxᵢ x̂ᵢᵀqⱼ), i over the probed tokens of d,

with x̂ the decoded vectors and mⱼ the k'-th best similarity of query token j if every token were its centroid
(`loops.select`). The two ways to score (`Recipe.search`):

- impute: f approximates `impute.imputed_rel` (Lee et al. 2023, Eq. 4), without candidates. Up to k' = `SMALL`
  the score is Eq. 4 itself, on the k' best tokens that each query token finds in its probed lists, which is
  some five times slower. With 400 queries of pydocs, 1,024 lists and 8 probes, it finds .82, .85 and .85 of
  the first 10 documents of an exact search at k' = 1, 10 and 100; the estimate f finds .66, .64 and .81.
- gather: the `candidates` documents with the largest f are scored by `core.rel` on all of their tokens x̂.

Both miss tokens outside the probed lists.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.find.ranking import Ranked, best, imputed, scanned, scores
from paradigms.recipe import Recipe
from paradigms.scoring.stored import PackedQueries, Scanned
from paradigms.scoring.threads import shared, worth
from paradigms.store.build import Advance
from paradigms.store.columns import Writer
from paradigms.store.residuals import padded
from paradigms.store.store import Store

SMALL = 100  # k' up to which it is a list of tokens
ENTRIES, BEGINS = "entries.bin", "begins.bin"
SORTED = 1 << 24  # tokens that are put into lists at once


class Opened(NamedTuple):
    """The lists of a store."""

    begins: np.ndarray  # int64 [lists + 1]: where each list begins among the entries
    entries: np.ndarray  # uint8 [tokens, bytes]: numbers of tokens, little-endian, list by list
    owners: np.ndarray  # uint32: the documents of tokens 0, STRIDE, 2 STRIDE, …
    marks: threading.local  # of `kernels.probe`, for each thread


@dataclass(frozen=True)
class Lists:
    """Files with every centroid's tokens, ascending, one list after the other."""

    def check(self, dim: int) -> None: ...

    def write(self, writer: Writer, store: Store, anew: bool) -> None:
        codec: Any = store.codec
        centroids = store.columns["centroids"]
        sizes = np.zeros(len(codec.packed), np.int64)
        for first in range(0, len(centroids), SORTED):
            sizes += np.bincount(centroids[first : first + SORTED], minlength=len(sizes))
        begins = np.concatenate([[0], np.cumsum(sizes)])
        writer.remove(BEGINS)
        writer.append(BEGINS, begins)
        writer.remove(ENTRIES)
        low, width = 0, number_bytes(len(centroids))
        while low < len(sizes):  # as many lists at a time as fit, at least one
            high = max(low + 1, int(np.searchsorted(begins, begins[low] + SORTED, side="right")) - 1)
            parts = [np.zeros(0, np.int64)]
            for first in range(0, len(centroids), SORTED):
                part = np.asarray(centroids[first : first + SORTED])
                parts.append(first + np.flatnonzero((part >= low) & (part < high)))
            rows = np.concatenate(parts)
            rows = rows[np.argsort(centroids[rows], kind="stable")].astype("<i8")
            writer.append(ENTRIES, rows.view(np.uint8).reshape(-1, 8)[:, :width])
            low = high

    def open(self, store: Store) -> Opened:
        from paradigms.scoring import kernels

        codec: Any = store.codec
        begins, total = store.files.array(BEGINS, "int64"), int(store.offsets[-1])
        entries, lists = store.files.array(ENTRIES, ("uint8", (number_bytes(total),))), len(codec.packed)
        for file, problem in wrong_lists(begins, entries, lists, total).items():
            raise store.files.damaged(file, problem)
        if store.columns["centroids"].max(initial=0) >= lists:
            raise store.files.damaged("centroids.bin", f"not numbers of {lists} centroids")
        owners = store.owners(np.arange(0, total, kernels.STRIDE)).astype(np.uint32)
        return Opened(begins, entries, owners, threading.local())


@dataclass(frozen=True)
class Probing:
    """Search a few lists. probes: lists per query token. candidates: documents that gather scores in full; 0
    means 64, or 4 per wanted document."""

    probes: int = 8
    candidates: int = 0

    def __post_init__(self) -> None:
        if self.probes < 1:
            raise ValueError(f"probes must be at least 1 list for each query token, got {self.probes}")

    def search(
        self, store: Store, recipe: Recipe, parts: Sequence[Tokens], k: int, advance: Advance
    ) -> Ranked:
        if recipe.search != "impute":
            wanted = max(k, self.candidates or max(64, 4 * k))

            def search(query: Tokens) -> dict[str, float]:
                packed = _read(store).packed(query)
                rows = _largest(*self._near(store, packed, recipe.search_tokens), wanted)
                return best(store, scores(store, [recipe], query, rows, packed)[0], rows, k)

        elif recipe.search_tokens <= SMALL:
            return imputed(store, recipe, parts, k, advance, self.token_search)
        elif recipe.imputation != "kth":
            raise ValueError(
                f"{store} is compressed and estimates the k'-th similarity where search_tokens is above "
                f"{SMALL}: the imputation {recipe.imputation} needs an exact index, or one of FAISS"
            )
        else:

            def search(query: Tokens) -> dict[str, float]:
                query = Tokens(query.vectors, query.mask)  # Eq. 4 knows no salience
                near, f = self._near(store, _read(store).packed(query), recipe.search_tokens)
                return best(store, torch.from_numpy(f / query.mask.shape[-1]), near, k)

        return _each(parts, advance, search)

    def token_search(self, store: Store, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the k most similar stored tokens of each query token [t, h], in its probed lists."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        codec: Any = store.codec
        lists: Opened = store.derived
        near = padded(vectors.cpu(), codec.bits) @ codec.centroids.T
        probed = near.topk(min(self.probes, near.shape[1])).indices.tolist()
        values = vectors.new_full((len(vectors), min(k, int(store.offsets[-1]))), -torch.inf)
        tokens = torch.full(values.shape, -1, device=values.device)
        for n, (vector, chosen) in enumerate(zip(vectors, probed, strict=True)):
            entries = [lists.entries[lists.begins[c] : lists.begins[c + 1]] for c in chosen]
            rows = numbers(np.concatenate(entries))
            rows = rows[store.living[store.owners(rows)]]
            near = torch.from_numpy(store.decoded(rows)["vectors"]).to(vectors) @ vector
            top = near.topk(min(values.shape[1], len(near)))
            values[n, : len(top.values)] = top.values
            tokens[n, : len(top.values)] = torch.from_numpy(rows).to(tokens.device)[top.indices]
        return values, tokens

    def _near(self, store: Store, packed: PackedQueries, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find documents with a probed token, and N · f of each, weighted by the query's salience if any."""
        from paradigms.find import loops
        from paradigms.scoring import kernels

        query, count, lists = packed.query, int(packed.query.spans[-1]), store.derived
        sizes, read = store.once(list_sizes), _read(store)
        missing = np.empty(count, np.float32)
        probed = np.zeros(len(sizes), np.bool_)
        loops.select(query.near, sizes, self.probes, k, probed, missing)
        chosen, opened = np.flatnonzero(probed), store.once(_opened_lists)
        begins, ends = lists.begins[chosen], lists.begins[chosen + 1]
        threads = worth(4 * int((ends - begins).sum()))  # scattered tokens, with their lists: slower
        # Documents are divided among the threads, so that no two of them meet the same.
        documents = len(store.living)
        bounds = store.offsets[np.linspace(0, documents, threads + 1).astype(np.int64)]
        cuts = np.empty((threads + 1, len(chosen)), np.int64)
        for n, token in enumerate(bounds):
            kernels.cut(opened, begins, ends, token, cuts[n])

        def probe(n: int) -> tuple[np.ndarray, np.ndarray]:
            most = min(documents, int((cuts[n + 1] - cuts[n]).sum()))
            rows = np.empty(most, np.int64)
            top = np.empty((most, query.near.shape[1]), np.float32)
            if not hasattr(lists.marks, "slots"):
                lists.marks.slots = np.full(documents, -1, np.int32)
            begin, end, width = cuts[n], cuts[n + 1], packed.vectors.shape[1]
            slots = lists.marks.slots
            met = kernels.probe(read.tokens, query, opened, chosen, begin, end, width, slots, rows, top)
            filled = np.maximum(top[:met, :count], missing)
            return rows[:met], np.einsum("nj, j -> n", filled, query.weights[:count])

        parts: list[tuple[np.ndarray, np.ndarray]] = shared(probe, range(threads), threads)
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([f for _, f in parts])


def list_sizes(store: Store) -> np.ndarray:
    """Each list's number of tokens, without deleted documents."""
    begins = store.derived.begins
    if store.dead is None:
        return np.diff(begins)
    return np.bincount(store.columns["centroids"][~store.dead], minlength=len(begins) - 1)


def _opened_lists(store: Store) -> Any:
    from paradigms.scoring import kernels

    return kernels.Lists(store.derived.entries, store.offsets, store.derived.owners, store.living)


def _read(store: Store) -> Scanned:
    read = scanned(store, torch.device("cpu"))
    assert read is not None
    return read


def _each(parts: Sequence[Tokens], advance: Advance, search: Callable[[Tokens], dict[str, float]]) -> Ranked:
    """Call `search` for each query without padding: one query in all threads, or several in parallel."""

    def one(query: Tokens) -> dict[str, float]:
        there = query.mask[0, 0]
        row = search(query.map(lambda t: t[:, :, there].cpu())) if there.any() else {}
        advance(1)
        return row

    threads = torch.get_num_threads()
    ranked: Ranked = []
    for queries in parts:
        each = [queries[n : n + 1] for n in range(len(queries.mask))]
        ranked += [one(q) for q in each] if len(each) < threads else shared(one, each, threads)
    return ranked


def wrong_lists(begins: np.ndarray, entries: np.ndarray, lists: int, tokens: int) -> dict[str, str]:
    """Check that the files are `lists` lists of ascending tokens: file → problem, or {} if they are.

    The compiled search relies on this check.
    """
    if len(begins) != lists + 1 or begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] != tokens:
        return {BEGINS: f"not the places of {lists} lists of {tokens} tokens"}
    starts = np.zeros(tokens + 1, bool)  # where an entry may be smaller than the one before it
    starts[begins] = True
    last, wrong = -1, len(entries) != tokens
    for first in range(0, len(entries) * (not wrong), SORTED):
        part = numbers(entries[first : first + SORTED])
        falls = np.diff(part, prepend=last) <= 0
        wrong |= bool((part >= tokens).any() or (falls & ~starts[first : first + len(part)]).any())
        last = int(part[-1])
    return {ENTRIES: f"not {lists} lists of ascending tokens below {tokens}"} if wrong else {}


def number_bytes(count: int) -> int:
    """The number of bytes needed to store any one of the numbers 0 … count − 1."""
    return max(1, ((count - 1).bit_length() + 7) // 8)


def numbers(entries: np.ndarray) -> np.ndarray:
    """Little-endian bytes [n, w] → int64 [n]."""
    full = np.zeros((len(entries), 8), np.uint8)
    full[:, : entries.shape[1]] = entries
    return full.view("<i8").ravel().astype(np.int64)


def _largest(rows: np.ndarray, f: np.ndarray, count: int) -> np.ndarray:
    """The `count` rows with the largest f, ascending. Ties go to the lowest rows, in any input order."""
    if len(rows) > count:
        least = np.partition(f, -count)[-count]
        above, equal = rows[f > least], np.sort(rows[f == least])
        rows = np.concatenate([above, equal[: count - len(above)]])
    return np.sort(rows)
