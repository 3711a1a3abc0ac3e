"""top-k_d rel(d, q) from codes of 1 to 8 bits per dimension, and from a few lists of them.

Tokens are kept as `codes` say; every centroid has the list of its tokens. A query token probes the lists of
its most similar centroids. All tokens in probed lists are scored against all query tokens, which gives for
every document d that owns one

    f(d, q) = 1/N Σⱼ max(mⱼ, maxᵢ x̂ᵢᵀqⱼ), i over the probed tokens of d,

with x̂ what the codes stand for and mⱼ the k'-th best similarity of query token j if every token stood where
its centroid is (`loops.select`). The two ways to score (`Recipe.search`):

- impute: f approximates `impute.imputed_rel` (Lee et al. 2023, Eq. 4), without candidates. Up to k' = `SMALL`
  it is Eq. 4 itself of the k' best tokens that each query token finds in the lists it probes, some five times
  slower: of the first 10 documents of an exact search (400 of pydocs, 1,024 lists, 8 probed) that finds .82,
  .85 and .85 at k' = 1, 10 and 100, the estimate .66, .64 and .81;
- gather: the `candidates` documents with the largest f are scored by `core.rel` on all of their tokens x̂.

Both miss what no probed list holds.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index.base import Found, TokenIndex
from paradigms.index.codes import padded
from paradigms.index.coding import (
    BEGINS,
    CODEC,
    ENTRIES,
    CompressedSettings,
    code,
    code_columns,
    number_bytes,
    numbers,
    read_codec,
    write_lists,
    wrong_lists,
)
from paradigms.index.columns import Writer
from paradigms.index.grow import Advance
from paradigms.index.store import Rows
from paradigms.recipe import Recipe
from paradigms.scoring.machine import shared, worth
from paradigms.scoring.stored import Codes, Packed, Scanned

SMALL = 100  # k' up to which it is a list of tokens


class CompressedIndex(TokenIndex):
    """An index of codes; `probes` and `candidates` may be set at any time, and trade speed for recall.

    The centroids are those of a sample of the corpus of the build; what is added later is coded by them.
    """

    kind = "compressed"
    Settings = CompressedSettings
    probes: int = 8  # lists that each query token looks into
    candidates: int = 0  # documents that gather scores in full; 0: 64, or 4 for each that is asked for

    @property
    def _building(self) -> bool:
        return "building" in self.manifest

    def _columns(self) -> dict[str, DTypeLike]:
        columns = super()._columns()
        if self._building:
            return columns
        return code_columns(self.manifest["dim"], self.settings.bits) | _without(columns)

    def _encode(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        stored = super()._encode(rows)
        if self._building:
            return stored
        return self._codec.encode(torch.from_numpy(stored["vectors"]).float()) | _without(stored)

    def _decode(self, rows: Rows) -> dict[str, np.ndarray]:
        if self._building:
            return super()._decode(rows)
        found = {name: np.array(column[rows]) for name, column in self.fields.items()}
        coded = [found.pop(name) for name in ("codes", "scales", "centroids")]
        return {"vectors": self._codec.decode(*coded)[:, : self.manifest["dim"]].numpy()} | found

    def _derive(self, writer: Writer, start: int) -> None:
        if self._building:
            code(writer, self.manifest["dim"], self.settings)
        write_lists(writer, self.settings.bits)

    def _map(self, manifest: Mapping[str, Any]) -> None:
        super()._map(manifest)
        if self._building:
            return
        from paradigms.scoring import kernels

        path, bits = self._table.path(CODEC), self.settings.bits
        try:
            self._codec = read_codec(self._table, bits)
            self._codec.check(manifest["dim"])
        except Exception as error:
            raise self._table.damaged(path.name if path else CODEC, error) from error
        self._begins = self._table.array(BEGINS, "int64")
        total, lists = int(self.offsets[-1]), len(self._codec.packed)
        entries = self._table.array(ENTRIES, ("uint8", (number_bytes(total),)))
        for file, wrong in wrong_lists(self._begins, entries, lists, total).items():
            raise self._table.damaged(file, wrong)
        if self.fields["centroids"].max(initial=0) >= lists:
            raise self._table.damaged("centroids.bin", f"not numbers of {lists} centroids")
        owners = np.searchsorted(self.offsets, np.arange(0, total, kernels.STRIDE), side="right") - 1
        self._lists = kernels.Lists(entries, self.offsets, owners.astype(np.uint32), self.living)
        self._marks = threading.local()

    @property
    def _sizes(self) -> np.ndarray:
        """How many tokens of documents that count are in each list."""

        def sizes() -> np.ndarray:
            if self.dead is None:
                return np.diff(self._begins)
            return np.bincount(self.fields["centroids"][~self.dead], minlength=len(self._begins) - 1)

        return self._kept_once("sizes", sizes)

    @property
    def _coded(self) -> Scanned:
        return self._kept_once("scanned", self._scan)

    def _scan(self) -> Scanned:
        from paradigms.scoring import kernels

        codes, scales, centroids = (self.fields[name] for name in ("codes", "scales", "centroids"))
        codec = self._codec
        coded = kernels.Stored(codes, codec.bits, scales, codec.levels, centroids)
        all = Codes(codec.spread, codec.middle, codec.centroids.numpy())
        return Scanned(coded, self.offsets, self.fields, all)

    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As of `TokenIndex`, among the tokens of the lists that each query token probes."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self._check_probes()
        near = padded(vectors.cpu(), self.settings.bits) @ self._codec.centroids.T
        probed = near.topk(min(self.probes, near.shape[1])).indices.tolist()
        scores = vectors.new_full((len(vectors), min(k, int(self.offsets[-1]))), -torch.inf)
        tokens = torch.full(scores.shape, -1, device=scores.device)
        for n, (vector, lists) in enumerate(zip(vectors, probed, strict=True)):
            entries = [self._lists.entries[self._begins[c] : self._begins[c + 1]] for c in lists]
            rows = numbers(np.concatenate(entries))
            rows = rows[self.living[np.searchsorted(self.offsets, rows, side="right") - 1]]
            found = torch.from_numpy(self._decode(rows)["vectors"]).to(vectors) @ vector
            best = found.topk(min(scores.shape[1], len(found)))
            scores[n, : len(best.values)] = best.values
            tokens[n, : len(best.values)] = torch.from_numpy(rows).to(tokens.device)[best.indices]
        return scores, tokens

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As of `TokenIndex`: `core.rel` on x̂ of the documents with the largest f."""
        wanted = max(k, self.candidates or max(64, 4 * k))

        def find(query: Tokens) -> dict[str, float]:
            packed = self._coded.packed(query)
            rows = _largest(*self._near(packed, recipe.search_tokens), wanted)
            return self._best(self._scores([recipe], query, rows, packed)[0], rows, k)

        return self._each(parts, advance, find)

    def _impute(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As `_gather`: the documents with the largest f; with a small k' those of the retrieved tokens."""
        if recipe.search_tokens <= SMALL:
            return super()._impute(recipe, parts, k, advance)
        if recipe.imputation != "kth":
            raise ValueError(
                f"{self.folder} is compressed and estimates the k'-th similarity where search_tokens is "
                f"above {SMALL}: the imputation {recipe.imputation} needs an exact index, or one of FAISS"
            )

        def find(query: Tokens) -> dict[str, float]:
            query = Tokens(query.vectors, query.mask)  # Eq. 4 knows no salience
            near, f = self._near(self._coded.packed(query), recipe.search_tokens)
            return self._best(torch.from_numpy(f / query.mask.shape[-1]), near, k)

        return self._each(parts, advance, find)

    def _each(
        self, parts: list[Tokens], advance: Advance, find: Callable[[Tokens], dict[str, float]]
    ) -> Found:
        """`find` of every query, without its padding: one after the other in all threads, or side by side."""
        self._check_probes()

        def one(query: Tokens) -> dict[str, float]:
            there = query.mask[0, 0]
            found = find(query.map(lambda t: t[:, :, there].cpu())) if there.any() else {}
            advance(1)
            return found

        threads = torch.get_num_threads()
        found: Found = []
        for queries in parts:
            each = [queries[n : n + 1] for n in range(len(queries.mask))]
            found += [one(q) for q in each] if len(each) < threads else shared(one, each, threads)
        return found

    def _check_probes(self) -> None:
        if self.probes < 1:
            raise ValueError(f"each query token has to probe 1 list at least: probes is {self.probes}")

    def _near(self, packed: Packed, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents that own a probed token, and N f of each, weighted by the query's salience if any."""
        from paradigms.index import loops
        from paradigms.scoring import kernels

        query, count = packed.query, int(packed.query.spans[-1])
        missing = np.empty(count, np.float32)
        chosen = np.zeros(len(self._sizes), np.bool_)
        loops.select(query.near, self._sizes, self.probes, k, chosen, missing)
        lists, living = np.flatnonzero(chosen), self._lists._replace(alive=self.living)
        begins, ends = self._begins[lists], self._begins[lists + 1]
        threads = worth(4 * int((ends - begins).sum()))  # scattered ones, with their lists: slower
        # Documents are divided among the threads, so that no two of them meet the same.
        bounds = self.offsets[np.linspace(0, len(self.ids), threads + 1).astype(np.int64)]
        cuts = np.empty((threads + 1, len(lists)), np.int64)
        for n, token in enumerate(bounds):
            kernels.cut(self._lists, begins, ends, token, cuts[n])

        def probe(n: int) -> tuple[np.ndarray, np.ndarray]:
            most = min(len(self.ids), int((cuts[n + 1] - cuts[n]).sum()))
            rows = np.empty(most, np.int64)
            best = np.empty((most, query.near.shape[1]), np.float32)
            given = self._coded.tokens, query, living, lists, cuts[n], cuts[n + 1]
            met = kernels.probe(*given, len(self._codec.spread), self._slots(), rows, best)
            filled = np.maximum(best[:met, :count], missing)
            return rows[:met], np.einsum("nj, j -> n", filled, query.weights[:count])

        found: list[tuple[np.ndarray, np.ndarray]] = shared(probe, range(threads), threads)
        return np.concatenate([rows for rows, _ in found]), np.concatenate([f for _, f in found])

    def _slots(self) -> np.ndarray:
        """The marks of `kernels.probe`, of each thread its own."""
        if not hasattr(self._marks, "slots"):
            self._marks.slots = np.full(len(self.ids), -1, np.int32)
        return self._marks.slots


def _largest(rows: np.ndarray, f: np.ndarray, count: int) -> np.ndarray:
    """The `count` rows with the largest f, ascending: whatever order they come in, of equals the first."""
    if len(rows) > count:
        least = np.partition(f, -count)[-count]
        above, equal = rows[f > least], np.sort(rows[f == least])
        rows = np.concatenate([above, equal[: count - len(above)]])
    return np.sort(rows)


def _without(columns: dict[str, Any]) -> dict[str, Any]:
    """What is not coded."""
    return {name: value for name, value in columns.items() if name != "vectors"}
