"""top-k_d rel(d, q) from codes of 1 to 8 bits per dimension, and from a few lists of them.

Tokens are kept as `codes` say, in the order of their documents; every centroid has the list of its tokens. A
query token probes the lists of the centroids that are most similar to it. All tokens in a list that some
token of the query probes are scored against all of them, which gives for every document d that owns one

    f(d, q) = 1/N Σⱼ max(mⱼ, maxᵢ x̂ᵢᵀqⱼ), i over the probed tokens of d,

with x̂ what the codes stand for and mⱼ the k'-th best similarity of query token j if every token stood where
its centroid is. The two ways to score (`Recipe.search`):

- impute: f approximates `xtr.imputed_rel` (Lee et al. 2023, Eq. 4); no candidate is gathered, and k' may be
  as large as one likes, for it is never a list. In the limit of all lists, tokens at their centroids and no
  loss of coding f is that rel (its ties apart);
- gather: the `candidates` documents with the largest f are scored by `core.rel` on all of their tokens x̂.

Missing from both is what no list that was probed holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index.base import TokenIndex
from paradigms.index.codes import PER_CENTROID, STEPS, Codec, centroids_for, padded, padded_width
from paradigms.index.columns import Column, ColumnFolder, Writer
from paradigms.index.maxima import keeps_lengths, of_lengths, rel_of_maxima
from paradigms.index.store import LENGTHS, Rows
from paradigms.index.threads import shared
from paradigms.model import Recipe

if TYPE_CHECKING:
    from paradigms.index import kernels

CODEC, ENTRIES, BEGINS = "codec.safetensors", "entries.bin", "begins.bin"
CODED = 1 << 15  # tokens that are coded at once
SAMPLED = 1 << 12  # tokens of the sample that are read at once: their pages are many times as large
COMMIT = 1 << 21  # tokens of a build after which a killed one goes on coding
SORTED = 1 << 24  # tokens that are put into lists at once


@dataclass(frozen=True)
class CompressedSettings:
    """How tokens are coded: in dim · bits / 8 + 6 bytes, 7 from 2^24 tokens on, and dim for every list."""

    bits: int = 4  # per dimension: 1, 2, 4 or 8
    lists: int = 0  # centroids; 0: the power of two nearest to 4√tokens
    rounds: int = 5  # of k-means
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in STEPS:
            raise ValueError(f"bits must be one of {', '.join(map(str, STEPS))}, got {self.bits}")
        if not 0 <= self.lists <= 1 << 16:
            raise ValueError(f"lists must lie in 1 to 65,536, or be 0 for a number by size, got {self.lists}")


class CompressedIndex(TokenIndex):
    """An index of codes; `probes` and `candidates` may be set at any time, and trade speed for recall.

    Building keeps the tokens as float16 in the hidden folder until all are there, then codes them: the
    centroids are those of a sample of the whole corpus. What is added later is coded by the same centroids.
    """

    kind = "compressed"
    Settings = CompressedSettings
    probes: int = 8
    """lists that each query token looks into"""
    candidates: int = 0
    """documents that gather scores in full; 0: 64, or 4 for each that is asked for"""

    # --- columns --------------------------------------------------------------------------------------

    @property
    def _building(self) -> bool:
        return "building" in self.manifest

    def _columns(self) -> dict[str, Column]:
        columns = super()._columns()
        return columns if self._building else self._code_columns() | _without(columns)

    def _code_columns(self) -> dict[str, Column]:
        bits = self.settings.bits
        width = padded_width(self.manifest["dim"], bits) * bits // 8
        return {"codes": Column("uint8", width), "scales": Column("uint8"), "centroids": Column("uint16")}

    def _encode(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        stored = super()._encode(rows)
        if self._building:
            return stored
        coded = self._codec.encode(torch.from_numpy(rows["vectors"]).float())
        return dict(zip(self._code_columns(), coded, strict=True)) | _without(stored)

    def _decode(self, rows: Rows) -> dict[str, np.ndarray]:
        if self._building:
            return super()._decode(rows)
        found = {name: np.array(column[rows]) for name, column in self.fields.items()}
        coded = [found.pop(name) for name in self._code_columns()]
        return {"vectors": self._codec.decode(*coded)[:, : self.manifest["dim"]].numpy()} | found

    def _derive(self, writer: Writer, start: int) -> None:
        if self._building:
            self._code(writer)
        centroids = writer.array("centroids.bin", self._code_columns()["centroids"])
        sizes = np.zeros(len(_codec(writer, self.settings.bits).packed), np.int64)
        for first in range(0, len(centroids), SORTED):
            sizes += np.bincount(centroids[first : first + SORTED], minlength=len(sizes))
        begins = np.concatenate([[0], np.cumsum(sizes)])
        writer.restart(BEGINS)
        writer.append(BEGINS, begins)
        writer.restart(ENTRIES)
        low = 0
        while low < len(sizes):  # as many lists at a time as fit, one at least
            high = max(low + 1, int(np.searchsorted(begins, begins[low] + SORTED, side="right")) - 1)
            rows = np.concatenate(
                [
                    first + np.flatnonzero((part >= low) & (part < high))
                    for first in range(0, len(centroids), SORTED)
                    for part in [np.asarray(centroids[first : first + SORTED])]
                ]
                or [np.zeros(0, np.int64)]
            )
            rows = rows[np.argsort(centroids[rows], kind="stable")].astype("<i8")
            writer.append(
                ENTRIES, rows.view(np.uint8).reshape(-1, 8)[:, : number_bytes(len(centroids))].copy()
            )
            low = high

    def _code(self, writer: Writer) -> None:
        """Codes of all tokens in place of their float16, from where a killed build stopped."""
        columns = self._code_columns()
        lengths = writer.array(LENGTHS, Column("int32"))
        state = {"documents": len(lengths), "tokens": int(lengths.sum(dtype=np.int64))}
        if writer.path(CODEC) is None:
            self._fit(writer, state["tokens"])
            writer.commit(**state)
        codec = _codec(writer, self.settings.bits)
        coded = since = len(writer.array("codes.bin", columns["codes"]))
        while coded < state["tokens"]:
            block = self._stored(writer, slice(coded, coded + CODED))
            for name, values in zip(columns, codec.encode(block), strict=True):
                writer.append(f"{name}.bin", values)
            coded += len(block)
            if coded - since >= COMMIT:
                writer.commit(**state)
                since = coded
        writer.remove("vectors.bin")

    def _fit(self, writer: Writer, tokens: int) -> None:
        """The codec, from a sample of the tokens."""
        settings = self.settings
        count = settings.lists or centroids_for(tokens)
        random = np.random.default_rng(settings.seed)
        chosen = np.sort(random.choice(tokens, min(tokens, count * PER_CENTROID), replace=False))
        parts = np.array_split(chosen, 1 + len(chosen) // SAMPLED)
        sample = torch.cat([self._stored(writer, rows) for rows in parts])
        codec = Codec.fit(sample, count, settings.bits, seed=settings.seed, rounds=settings.rounds)
        with writer.replacing(CODEC) as file:
            save_file({"centroids": codec.packed, "units": codec.units, "spread": codec.spread}, file)

    def _stored(self, writer: Writer, rows: Rows) -> Tensor:
        """Vectors of a build, float32; what is mapped to read them is let go of at once."""
        vectors = writer.array("vectors.bin", super()._columns()["vectors"])
        return torch.from_numpy(np.array(vectors[rows])).float()

    def _map(self, manifest: dict[str, Any]) -> None:
        super()._map(manifest)
        if self._building:
            return
        from paradigms.index import kernels

        path = self._table.path(CODEC)
        try:
            self._codec = _codec(self._table, self.settings.bits)
        except Exception as error:
            raise self._table.damaged(path.name if path else CODEC, str(error)) from error
        self._begins = self._array(BEGINS, Column("int64"))
        total, lists = int(self.offsets[-1]), len(self._codec.packed)
        entries = self._array(ENTRIES, Column("uint8", number_bytes(total)))
        if len(self._begins) != lists + 1 or self._begins[-1] != total or len(entries) != total:
            raise self._table.damaged(ENTRIES, f"not {lists} lists of {total} tokens")
        self._marks = threading.local()
        self._coded = kernels.Coded(
            self.fields["codes"],
            self.settings.bits,
            self.fields["scales"],
            self._codec.levels,
            self.fields["centroids"],
        )
        owners = np.searchsorted(self.offsets, np.arange(0, total, kernels.STRIDE), side="right") - 1
        self._lists = kernels.Lists(entries, self.offsets, owners.astype(np.uint32), self.living)

    # --- search ---------------------------------------------------------------------------------------

    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As of `TokenIndex`, among the tokens of the lists that each query token probes."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        near = padded(vectors.cpu(), self.settings.bits) @ self._codec.centroids.T
        probed = near.topk(min(self.probes, near.shape[1])).indices.tolist()
        scores = vectors.new_full((len(vectors), min(k, int(self.offsets[-1]))), -torch.inf)
        tokens = torch.full(scores.shape, -1, device=scores.device)
        for n, (vector, lists) in enumerate(zip(vectors, probed, strict=True)):
            entries = [self._lists.entries[self._begins[c] : self._begins[c + 1]] for c in lists]
            rows = _numbers(np.concatenate(entries))
            rows = rows[self.living[np.searchsorted(self.offsets, rows, side="right") - 1]]
            found = torch.from_numpy(self._decode(rows)["vectors"]).to(vectors) @ vector
            best = found.topk(min(scores.shape[1], len(found)))
            scores[n, : len(best.values)] = best.values
            tokens[n, : len(best.values)] = torch.from_numpy(rows).to(tokens.device)[best.indices]
        return scores, tokens

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """For each part and query the `_best` keys: `core.rel` on x̂ of the documents with the largest f."""
        from paradigms.index import kernels

        wanted = self.candidates or max(64, 4 * k)
        by_kernel = keeps_lengths(recipe, self.manifest["fields"])

        def find(query: Tokens, threads: int) -> Tensor:
            coded = self._coded_query(query)
            near, f = self._near(coded, query, recipe.search_tokens, threads)
            rows = near[np.argpartition(-f, wanted)[:wanted]] if len(near) > wanted else near
            if not by_kernel:
                return self._best(self._score_rows(recipe, query, rows), rows, k)
            lanes = coded.similarities.shape[1]

            def maxima(rows: np.ndarray) -> np.ndarray:
                best = np.empty((len(rows), lanes), np.float32)
                starts, stops = self.offsets[rows], self.offsets[rows + 1]
                kernels.coded_maxima(self._coded, coded, starts, stops, best)
                return best

            best: np.ndarray = np.concatenate(shared(maxima, np.array_split(rows, threads), threads))
            found = torch.from_numpy(best[:, : query.mask.shape[-1]])
            documents = of_lengths(self.offsets[rows + 1] - self.offsets[rows])
            return self._best(rel_of_maxima(recipe, found, None, documents, query), rows, k)

        return self._each(recipe, parts, bar, find)

    def _impute(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """As `_gather`: the documents with the largest f."""
        if recipe.imputation != "kth":
            raise ValueError(
                f"{self.folder} is compressed and knows an estimate of the k'-th similarity alone: the "
                f"imputation {recipe.imputation} needs an exact index, or one of FAISS"
            )

        def find(query: Tokens, threads: int) -> Tensor:
            near, f = self._near(self._coded_query(query), query, recipe.search_tokens, threads)
            return self._best(torch.from_numpy(f / query.mask.shape[-1]), near, k)

        return self._each(recipe, parts, bar, find)

    def _each(
        self, recipe: Recipe, parts: list[Tokens], bar: Any, find: Callable[[Tokens, int], Tensor]
    ) -> list[list[Tensor]]:
        """`find` of every query, without its padding: one after the other in all threads, or side by side."""
        task = bar.add_task(f"search {recipe.name}", total=sum(len(q.mask) for q in parts))
        threads = torch.get_num_threads()

        def one(query: Tokens, threads: int) -> Tensor:
            there = query.mask[0, 0]
            real = query.map(lambda t: t[:, :, there].cpu())
            found = find(real, threads) if there.any() else torch.zeros(0, dtype=torch.long)
            bar.advance(task)
            return found

        keys = []
        for queries in parts:
            each = [queries[n : n + 1] for n in range(len(queries.mask))]
            alone = len(each) < threads
            keys.append(
                [one(q, threads) for q in each] if alone else shared(lambda q: one(q, 1), each, threads)
            )
        return keys

    def _coded_query(self, query: Tokens) -> kernels.CodedQuery:
        """What scores codes, of one query without padding."""
        from paradigms.index import kernels

        vectors = padded(query.vectors[0, 0], self.settings.bits).numpy()
        tiles = kernels.pack(vectors * self._codec.spread)
        similarities = np.empty((len(self._begins) - 1, len(tiles) * kernels.LANES), np.float32)
        kernels.products(self._codec.centroids.numpy(), kernels.pack(vectors), similarities)
        return kernels.CodedQuery(similarities, tiles, tiles.sum(1).ravel() * np.float32(self._codec.middle))

    def _near(
        self, coded: kernels.CodedQuery, query: Tokens, k: int, threads: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The documents that own a probed token, and N f of each, weighted by the query's salience if any."""
        from paradigms.index import kernels, loops

        count = query.mask.shape[-1]
        missing = np.empty(count, np.float32)
        chosen = np.zeros(len(self._begins) - 1, np.bool_)
        loops.select(coded.similarities, np.diff(self._begins), self.probes, k, chosen, missing)
        weights = np.ones(count, np.float32) if query.salience is None else query.salience[0, 0].numpy()
        lists = np.flatnonzero(chosen)
        begins, ends = self._begins[lists], self._begins[lists + 1]
        # Documents are divided among the threads, so that no two of them meet the same.
        bounds = self.offsets[np.linspace(0, len(self.ids), threads + 1).astype(np.int64)]
        cuts = np.empty((threads + 1, len(lists)), np.int64)
        for n, token in enumerate(bounds):
            kernels.cut(self._lists, begins, ends, token, cuts[n])

        def probe(n: int) -> tuple[np.ndarray, np.ndarray]:
            most = min(len(self.ids), int((cuts[n + 1] - cuts[n]).sum()))
            rows, f = np.empty(most, np.int64), np.empty(most, np.float32)
            best = np.empty((most, coded.similarities.shape[1]), np.float32)
            met = kernels.probe(
                self._coded, coded, self._lists, lists, cuts[n], cuts[n + 1], self._slots(), rows, best
            )
            loops.sums(best, missing, weights, f[:met])
            return rows[:met], f[:met]

        found: list[tuple[np.ndarray, np.ndarray]] = shared(probe, range(threads), threads)
        return np.concatenate([rows for rows, _ in found]), np.concatenate([f for _, f in found])

    def _slots(self) -> np.ndarray:
        """The marks of `kernels.probe`, of each thread its own."""
        if not hasattr(self._marks, "slots"):
            self._marks.slots = np.full(len(self.ids), -1, np.int32)
        return self._marks.slots


def number_bytes(count: int) -> int:
    """Bytes that hold the numbers 0 … count − 1."""
    return max(1, ((count - 1).bit_length() + 7) // 8)


def _numbers(entries: np.ndarray) -> np.ndarray:
    """Little-endian bytes [n, w] → int64 [n]."""
    full = np.zeros((len(entries), 8), np.uint8)
    full[:, : entries.shape[1]] = entries
    return full.view("<i8").ravel().astype(np.int64)


def _without(columns: dict[str, Any]) -> dict[str, Any]:
    """What is not coded."""
    return {name: value for name, value in columns.items() if name != "vectors"}


def _codec(files: Writer | ColumnFolder, bits: int) -> Codec:
    """The codec that a folder, or what is written to it, has."""
    path = files.path(CODEC)
    if path is None:
        raise ValueError("it is missing")
    return Codec(**load_file(path), bits=bits)
