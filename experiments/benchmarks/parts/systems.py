"""Worker that runs one stage of an index, ours or a peer's, on documents from `composed`.

A job gives the documents (vectors, form, documents, real, seed), the system with the folder, kind and build
settings of its index, the number of threads, and a stage:

- truth: find the k best documents for each query by exact search, block by block
- build: build the index; measure CPU seconds (excluding document generation), wall seconds, peak memory, and
  peak bytes on disk
- search: measure CPU seconds to open the index and, for each setting, CPU and wall seconds and results per
  query, one query at a time, and wall seconds of all queries together if the job has `batch`
- change (ours only): measure CPU seconds to add one document (median of 3), to add 1% more, to delete one
  document (median of 3), and to compact

Systems are imported inside functions, because the peers' requirements conflict with each other and with ours.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from parts.composed import BLOCK, Composed, by_text
from parts.measuring import Peak, folder_bytes, memory, timed

Ranked = list[list[int]]  # each query's best documents
REPEATS = 3


class System:
    """Base class of measured systems, which `build` an index, `open` it, and `find` the k best documents."""

    spent = 0.0  # CPU seconds of making documents during `build`

    def __init__(self, documents: Composed, job: dict[str, Any]) -> None:
        self.documents = documents
        self.job = job
        self.folder = job.get("folder", "")
        self.setting: dict[str, Any] = {}

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        blocks = (rows for _, rows in self.documents.blocks(0, self.job["documents"]))
        split = (by_text(values.astype(np.float32), lengths) for values, lengths in blocks)
        return [array for part in split for array in part]

    def load(self) -> None:
        """Make what `build` takes, which is not timed."""
        _ = self.arrays

    def build(self) -> None:
        """Build the index in `folder`."""

    def open(self) -> None:
        raise NotImplementedError

    def find(self, queries: Sequence[int]) -> Ranked:
        """Return the best documents for each query, best first."""
        raise NotImplementedError


class Ours(System):
    """An index of this project. A search's setting has fields of its finder and of its recipe."""

    @cached_property
    def recipe(self) -> Any:
        from paradigms.align import AllPairs, EqualIds, QueryToDocument
        from paradigms.recipe import Recipe

        recipes = {
            "tokens": Recipe("colbert", QueryToDocument(), "query_tokens"),
            "pooled": Recipe("dpr", AllPairs(), "one"),
        }
        return recipes.get(self.documents.form, Recipe("splade", EqualIds(), "one"))

    def stored(self, kind: Any, parts: Any, folder: Path | None = None) -> Any:
        """Build a store from parts of the documents, in memory without a folder."""
        from paradigms.find import Store

        width: dict[str, Any] = {"dim": self.documents.dim, "fields": self.documents.fields}
        return Store.build_from(kind, parts, folder, paradigm=self.recipe.name, **width)

    def load(self) -> None:
        pass

    def parts(self) -> Iterator[tuple[list[str], Any]]:
        """Yield the documents, and add the CPU seconds that this takes to `spent`."""
        each = self.documents.parts(0, self.job["documents"])
        while True:
            seconds, part = timed(partial(next, each, None))
            self.spent += seconds
            if part is None:
                return
            yield part

    def build(self) -> None:
        from paradigms.find import INDEXES

        self.stored(INDEXES[self.job["kind"]](**self.job["build"]), self.parts(), Path(self.folder))

    def open(self) -> None:
        from paradigms.find import open_index

        self.index = open_index(self.folder)

    def find(self, queries: Sequence[int]) -> Ranked:
        knobs = {name: self.setting[name] for name in ("probes", "candidates") if name in self.setting}
        index = self.index.with_finder(**knobs) if knobs else self.index
        search = {name: self.setting[name] for name in ("search", "search_tokens") if name in self.setting}
        recipe = replace(self.recipe, **search)
        alone = len(queries) == 1
        encoded = self.documents.queries[queries[0]] if alone else self.documents.query_tokens(queries)
        if "rerank" in self.setting:
            pools = [[str(d) for d in self.job["candidates"][n]] for n in queries]
            runs = index.rerank_tokens([recipe], encoded, pools)[0]
        else:
            runs = index.search_tokens(recipe, encoded, self.job["k"])
        return [[int(id) for id in islice(run, self.job["k"])] for run in runs]


class MaxSimCpu(System):
    """Score all documents, or the candidates, with maxsim-cpu, which takes a list of arrays."""

    def open(self) -> None:
        self.tokens = [np.ascontiguousarray(array) for array in self.arrays]

    def find(self, queries: Sequence[int]) -> Ranked:
        import maxsim_cpu

        k = self.job["k"]
        rows = self.tokens
        ranked = []
        for n in queries:
            candidates: Sequence[int] = range(len(self.tokens))
            if "rerank" in self.setting:
                candidates = self.job["candidates"][n]
                rows = [self.tokens[d] for d in candidates]
            scores = maxsim_cpu.maxsim_scores_variable(self.documents.query_arrays[n], rows)
            chosen = np.argpartition(-scores, min(k, len(scores)) - 1)[:k]
            best = chosen[np.argsort(-scores[chosen], kind="stable")]
            ranked.append([candidates[place] for place in best])
        return ranked


class FastPlaid(System):
    """fast-plaid; a setting has arguments of its search."""

    def build(self) -> None:
        import torch

        self.open()
        documents = [torch.from_numpy(array) for array in self.arrays]
        self.index.create(documents_embeddings=documents, **self.job["build"])

    def open(self) -> None:
        from fast_plaid import search

        self.index = search.FastPlaid(index=self.folder, device="cpu")

    def find(self, queries: Sequence[int]) -> Ranked:
        import torch

        rows = [torch.from_numpy(self.documents.query_arrays[n]) for n in queries]
        ranked = self.index.search(rows, top_k=self.job["k"], show_progress=False, **self.setting)
        return [[document for document, _ in row] for row in ranked]


SYSTEMS: dict[str, type[System]] = {"ours": Ours, "maxsim_cpu": MaxSimCpu, "fast_plaid": FastPlaid}


def build(system: System) -> dict[str, Any]:
    folder = Path(system.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    system.load()
    peak = Peak(folder.parent)
    began = time.perf_counter()
    seconds, _ = timed(system.build)
    wall = time.perf_counter() - began
    size = folder_bytes(folder)
    return {
        "seconds": seconds - system.spent,
        "wall": wall - system.spent,
        "memory": memory(),
        "peak": max(peak.end(), size),  # a short build may end before the first sample
        "bytes": size,
    }


def search(system: System) -> dict[str, Any]:
    index, _ = timed(system.open)
    every = range(len(system.documents.query_arrays))
    rows = []
    for setting in system.job["settings"]:
        system.setting = setting
        for n in every[:2]:
            system.find([n])
        row: dict[str, Any] = {"setting": setting, "seconds": [], "wall": [], "found": []}
        if system.job.get("batch"):  # first, so that single queries find every page of the index in memory
            system.find(every[:3])
            row["batch"], _ = timed(partial(system.find, every), time.perf_counter)
        for n in every:
            began = time.perf_counter()
            seconds, [ranked] = timed(partial(system.find, [n]))
            row["wall"].append(time.perf_counter() - began)
            row["seconds"].append(seconds)
            row["found"].append(ranked)
        rows.append(row)
    return {"open": index, "memory": memory(), "rows": rows}


def truth(system: Ours) -> dict[str, Any]:
    from paradigms.data import best_first
    from paradigms.find import Index, kinds

    documents = system.documents
    count = system.job["documents"]
    ranked: list[dict[str, float]] = [{} for _ in documents.queries]
    kind = kinds.inverted(16) if "ids" in documents.fields else kinds.exact()
    for first in range(0, count, 16 * BLOCK):
        parts = documents.parts(first, min(first + 16 * BLOCK, count))
        scores = Index(system.stored(kind, parts)).search_tokens(
            system.recipe, documents.queries, system.job["k"]
        )
        ranked = [best_first(one | more, system.job["k"]) for one, more in zip(ranked, scores, strict=True)]
    return {"best": [[int(id) for id in row] for row in ranked]}


def change(system: Ours) -> dict[str, Any]:
    from paradigms.find import open_index

    documents = system.documents
    count = system.job["documents"]
    store = open_index(system.folder, verify=False).store
    more = [id for id in store.rows_by_id if int(id) >= count]
    if more:  # an earlier run was interrupted
        store = store.delete(more).compact()
    added = []
    for n in range(count, count + REPEATS):
        seconds, store = timed(partial(store.add_from, list(documents.parts(n, n + 1))))
        added.append(seconds)
    first = count + REPEATS
    parts = list(documents.parts(first, first + max(1, count // 100)))
    share, store = timed(partial(store.add_from, parts))
    deleted = []
    for n in range(REPEATS):
        seconds, store = timed(partial(store.delete, [str(n)]))
        deleted.append(seconds)
    compacted, _ = timed(store.compact)
    row = {"add one": statistics.median(added), "add 1%": share}
    return row | {"delete one": statistics.median(deleted), "compact": compacted}


STAGES: dict[str, Any] = {"truth": truth, "build": build, "search": search, "change": change}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(job["threads"])
    documents = Composed(job["vectors"], job["form"], job["real"], job["seed"])
    return STAGES[job["stage"]](SYSTEMS[job["system"]](documents, job))
