"""Run one system of the token search benchmark in a new process: python -m parts.systems JOB

JOB is a JSON object that names a system, settings, a phase and a folder of vectors: tokens.npy [t, h]
float16, lengths.npy [n], queries.npz (one array [j, h] per query). Phase `build` makes an index in the job's
folder; phase `search` opens the index and times queries one at a time and all together. The answer contains
seconds, peak memory and the results.

This module runs in the environment of the measured system. Systems are imported inside functions, because the
peers' requirements conflict with each other and with ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from parts.shared import cpu_seconds, memory, tell, timed

Ranked = list[list[int]]  # each query's best documents


class Vectors:
    """Document and query vectors of the benchmark, in float32 for the peers."""

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        self.half = np.load(path / "tokens.npy", mmap_mode="r")
        self.lengths = np.load(path / "lengths.npy")
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        with np.load(path / "queries.npz") as queries:
            self.queries = [queries[str(n)] for n in range(len(queries.files))]
        self.candidates: list[list[int]] = json.loads((path / "candidates.json").read_text())

    @property
    def full(self) -> np.ndarray:
        return self.half.astype(np.float32)

    def documents(self) -> list[np.ndarray]:
        return np.split(self.full, self.offsets[1:-1])


class System:
    """Base class of measured systems, which `build` an index, `open` it, and `find` the k best documents."""

    def __init__(self, vectors: Vectors, folder: str, threads: int, settings: dict[str, Any]) -> None:
        self.vectors, self.folder, self.threads, self.settings = vectors, folder, threads, settings

    def build(self) -> None:
        """Build the index in `folder`."""

    def open(self) -> None:
        """Prepare the process for searching."""
        raise NotImplementedError

    def work(self) -> dict[str, float] | None:
        """Return the mean bytes read and FLOPs computed per query, or None if unknown."""
        return None

    def find(self, queries: Sequence[int], k: int) -> Ranked:
        """Return the k best documents for each query, best first."""
        ranked = []
        for n in queries:
            candidates = self.vectors.candidates[n] if "rerank" in self.settings else None
            places = best(self.scores(n, candidates), k)
            ranked.append(places if candidates is None else [candidates[place] for place in places])
        return ranked

    def scores(self, query: int, candidates: list[int] | None) -> np.ndarray:
        """Return the query's scores for the candidates, or for all documents if `candidates` is None."""
        raise NotImplementedError


def best(scores: np.ndarray, k: int) -> list[int]:
    """Return the positions of the k largest scores, best first."""
    chosen = np.argpartition(-scores, min(k, len(scores)) - 1)[:k]
    return [int(n) for n in chosen[np.argsort(-scores[chosen], kind="stable")]]


class Ours(System):
    """An index of this project; settings['build'] configures the index, and settings['knobs'] the search."""

    def build(self) -> None:
        from paradigms.find import INDEXES, Store

        kind = INDEXES[self.settings["kind"]](**self.settings.get("build", {}))
        dim = self.vectors.half.shape[1]
        Store.build_from(kind, self._parts(), self.folder, paradigm="colbert", dim=dim)

    def open(self) -> None:
        from paradigms.align import QueryToDocument
        from paradigms.find import open_index
        from paradigms.recipe import Recipe

        index = open_index(self.folder, verify=False)
        self.index = index.with_finder(**self.settings.get("knobs", {}))
        self.recipe = Recipe(
            "colbert",
            QueryToDocument(),
            "query_tokens",
            search="impute" if self.settings.get("impute") else "gather",
            search_tokens=self.settings.get("search_tokens", 1000),
        )

        # Inputs of all systems are prepared before timing: here, queries as `Tokens` and candidates by id.
        self.single = [self._tokens([query]) for query in self.vectors.queries]
        self.names = [[str(d) for d in candidates] for candidates in self.vectors.candidates]

    def find(self, queries: Sequence[int], k: int) -> Ranked:
        alone, rows = len(queries) == 1, [self.vectors.queries[n] for n in queries]
        encoded = self.single[queries[0]] if alone else self._tokens(rows)
        if "rerank" in self.settings:
            runs = self.index.rerank_tokens([self.recipe], encoded, [self.names[n] for n in queries])[0]
        else:
            runs = self.index.search_tokens(self.recipe, encoded, k)
        return [[int(id) for id in islice(run, k)] for run in runs]

    def work(self) -> dict[str, float]:
        from paradigms.find import lists, loops, ranking

        dim, lengths, bytes, flops = self.vectors.half.shape[1], self.vectors.lengths, 0.0, 0.0
        for n, query in enumerate(self.vectors.queries):
            read = lengths[self.vectors.candidates[n]] if "rerank" in self.settings else lengths
            tokens, size, once = int(read.sum()), 2 * dim, 0
            if self.settings["kind"] == "compressed":
                index, finder, codec = self.index, self.index.finder, self.index.store.codec
                asked = self._tokens([query])
                packed = ranking.scanned(index.store, asked.mask.device).packed(asked)
                near, sizes = packed.query.near, index.store.once(lists.list_sizes)
                least, missing = np.empty(len(query), np.float32), np.empty(len(query), np.float32)
                wanted, noise = self.settings["search_tokens"], np.zeros(len(query), np.float32)
                loops.select(near, sizes, finder.probes, wanted, noise, least, missing)
                probed = loops.probed(near, least)[1]
                share = sizes[np.unique(probed)].sum() / sizes.sum() if self.settings.get("impute") else 1
                scored = min(len(lengths), finder.candidates or lists.CANDIDATES) * lengths.mean()
                tokens, size = int(scored * share), codec.code_bytes + 3
                once = 4 * codec.centroids.numel() + 4 * int(sizes[probed].sum())
                flops += 2 * len(query) * codec.centroids.numel()
            bytes += once + size * tokens
            flops += 2 * dim * len(query) * tokens
        count = len(self.vectors.queries)
        return {"bytes": bytes / count, "flops": flops / count}

    def _parts(self) -> Any:
        documents = np.split(self.vectors.half, self.vectors.offsets[1:-1])
        for first in range(0, len(documents), 256):
            rows = documents[first : first + 256]
            yield [str(first + n) for n in range(len(rows))], self._tokens(rows, documents=True)

    def _tokens(self, rows: Sequence[np.ndarray], documents: bool = False) -> Any:
        import torch

        from paradigms.core import Tokens

        vectors = [torch.from_numpy(np.asarray(row, np.float32)) for row in rows]
        padded, axis = torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True), 0 if documents else 1
        mask = torch.arange(padded.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        return Tokens(padded.unsqueeze(axis), mask.unsqueeze(axis))


class GemmScatter(System):
    """Compute all similarities in one product, then the maximum per document (scatter_reduce)."""

    def open(self) -> None:
        import torch

        self.tokens = torch.from_numpy(self.vectors.full)
        owners = np.repeat(np.arange(len(self.vectors.lengths)), self.vectors.lengths)
        self.owners = torch.from_numpy(owners)

    def scores(self, query: int, candidates: list[int] | None) -> np.ndarray:
        import torch

        similarity = self.tokens @ torch.from_numpy(self.vectors.queries[query]).T
        index = self.owners[:, None].expand_as(similarity)
        empty = similarity.new_full((len(self.vectors.lengths), similarity.shape[1]), -torch.inf)
        return empty.scatter_reduce_(0, index, similarity, "amax").sum(1).numpy()


class PaddedEinsum(System):
    """Score candidates, padded to the longest candidate, with one einsum and a masked maximum."""

    def open(self) -> None:
        import torch

        self.tokens = [torch.from_numpy(d) for d in self.vectors.documents()]

    def scores(self, query: int, candidates: list[int] | None) -> np.ndarray:
        import torch

        rows = [self.tokens[d] for d in candidates or ()]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        there = torch.arange(padded.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        similarity = torch.einsum("jh,nih->nji", torch.from_numpy(self.vectors.queries[query]), padded)
        return similarity.masked_fill_(~there[:, None], -torch.inf).amax(-1).sum(-1).numpy()


class MaxSimCpu(System):
    """Score all documents, or the candidates, with maxsim-cpu, which takes a list of arrays."""

    def open(self) -> None:
        self.tokens = [np.ascontiguousarray(d) for d in self.vectors.documents()]

    def scores(self, query: int, candidates: list[int] | None) -> np.ndarray:
        import maxsim_cpu

        rows = self.tokens if candidates is None else [self.tokens[d] for d in candidates]
        return maxsim_cpu.maxsim_scores_variable(self.vectors.queries[query], rows)


class FastPlaid(System):
    def open(self) -> None:
        from fast_plaid import search

        self.index = search.FastPlaid(index=self.folder, device="cpu")

    def build(self) -> None:
        import torch

        self.open()
        documents = [torch.from_numpy(d) for d in self.vectors.documents()]
        self.index.create(documents_embeddings=documents, **self.settings["build"])

    def find(self, queries: Sequence[int], k: int, **more: Any) -> Ranked:
        import torch

        rows = [torch.from_numpy(self.vectors.queries[n]) for n in queries]
        ranked = self.index.search(rows, top_k=k, show_progress=False, **more, **self.settings["search"])
        return [[document for document, _ in row] for row in ranked]


class Warp(FastPlaid):
    def build(self) -> None:
        import torch
        from xtr_warp.search import XTRWarp

        documents = [torch.from_numpy(d) for d in self.vectors.documents()]
        index = XTRWarp(index=self.folder, device="cpu")
        index.create(documents, device="cpu", show_progress=False, **self.settings["build"])

    def open(self) -> None:
        from xtr_warp.search import XTRWarp

        self.index = XTRWarp(index=self.folder, device="cpu")
        self.index.load("cpu")

    def find(self, queries: Sequence[int], k: int, **more: Any) -> Ranked:
        return super().find(queries, k, num_threads=self.threads)


SYSTEMS: dict[str, type[System]] = {
    "ours": Ours,
    "gemm_scatter": GemmScatter,
    "padded_einsum": PaddedEinsum,
    "maxsim_cpu": MaxSimCpu,
    "fast_plaid": FastPlaid,
    "warp": Warp,
}


def main(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(job["threads"])
    system = SYSTEMS[job["system"]](Vectors(job["vectors"]), job["folder"], job["threads"], job["settings"])
    if job["phase"] == "build":
        seconds, _ = timed(system.build)
        size = sum(file.stat().st_size for file in Path(job["folder"]).rglob("*") if file.is_file())
        return {"seconds": seconds, "cpu": cpu_seconds(), "memory": memory("VmHWM"), "bytes": size}
    system.open()
    opened = cpu_seconds()
    every = range(len(system.vectors.queries))
    system.find(every[:3], job["k"])
    system.find(every[:1], job["k"])
    alone, clocks = [], [cpu_seconds()]
    for n in every:
        alone.append(timed(lambda n=n: system.find([n], job["k"])))
        clocks.append(cpu_seconds())
    cpu = {"opened": opened, "single": np.diff(clocks).tolist()}
    single, ranked = [seconds for seconds, _ in alone], [rows for _, [rows] in alone]
    batch, _ = timed(lambda: system.find(every, job["k"]))
    answer = {"single": single, "batch": batch, "found": ranked, "memory": memory("VmHWM")}
    return answer | {"work": system.work(), "cpu": cpu}


if __name__ == "__main__":
    tell(main(json.loads(sys.argv[1])))
