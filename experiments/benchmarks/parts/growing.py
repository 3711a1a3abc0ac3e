"""Run one stage of the scale benchmark in a separate process: python -m parts.growing JOB

JOB is a JSON object that gives the documents' form (see `composed`), their number, a folder and a stage:

- truth: find the 10 best documents for each query by exact search, block by block
- build: build an index from a stream of documents; measure CPU seconds (excluding document generation), peak
  memory, and peak bytes on disk
- search: measure CPU seconds to open the index and, for each setting, CPU seconds and results per query, one
  query at a time
- change: measure CPU seconds to add one document (median of 3), to add 1% more, to delete one document
  (median of 3), and to compact

The answer is printed as JSON on the last line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from parts.composed import BLOCK, Composed
from parts.shared import cpu_seconds, memory, tell

from paradigms.align import AllPairs, EqualIds, QueryToDocument
from paradigms.data import best_first
from paradigms.find import INDEXES, Index, Store, kinds, open_index
from paradigms.recipe import Recipe

K = 10
RECIPES = {
    "tokens": Recipe("colbert", QueryToDocument(), "query_tokens"),
    "pooled": Recipe("dpr", AllPairs(), "one"),
    "words": Recipe("splade", EqualIds(), "one"),
    "splade": Recipe("splade", EqualIds(), "one"),
}
REPEATS = 3


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Call `work` with `arguments`, and return (CPU seconds, result)."""
    began = cpu_seconds()
    made = work(*arguments)
    return cpu_seconds() - began, made


class Peak:
    """Peak disk usage of a folder in bytes, sampled ten times per second."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes, self._ended = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.bytes

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.bytes = max(self.bytes, folder_bytes(self.folder))


def folder_bytes(folder: Path) -> int:
    """Return the disk usage of a folder's files in bytes; files may be moved or deleted meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):  # os.walk ignores a missing folder; Path.rglob raises
        for name in names:
            with suppress(FileNotFoundError):
                size += 512 * os.stat(os.path.join(place, name)).st_blocks
    return size


def truth(documents: Composed, job: dict[str, Any]) -> dict[str, Any]:
    recipe, best = RECIPES[documents.form], [{} for _ in documents.queries]
    kind = kinds.inverted(16) if "ids" in documents.fields else kinds.exact()
    for first in range(0, job["documents"], 16 * BLOCK):
        parts = documents.parts(first, min(first + 16 * BLOCK, job["documents"]))
        index = Index(Store.build_from(kind, parts, **how(documents)))
        found = index.search_tokens(recipe, documents.queries, K)
        best = [best_first(one | more, K) for one, more in zip(best, found, strict=True)]
    return {"best": [list(one) for one in best]}


def how(documents: Composed) -> dict[str, Any]:
    return {"paradigm": RECIPES[documents.form].name, "dim": documents.dim, "fields": documents.fields}


def build(documents: Composed, job: dict[str, Any]) -> dict[str, Any]:
    folder, spent, tokens = Path(job["folder"]), 0.0, 0

    def parts() -> Iterator[tuple[list[str], Any]]:
        nonlocal spent, tokens
        each = documents.parts(0, job["documents"])
        while True:
            seconds, part = timed(next, each, None)
            spent += seconds
            if part is None:
                return
            tokens += int(part[1].mask.sum())
            yield part

    folder.parent.mkdir(parents=True, exist_ok=True)
    peak = Peak(folder.parent)
    kind = INDEXES[job["kind"]](**job["build"])
    began = time.perf_counter()
    seconds, store = timed(lambda: Store.build_from(kind, parts(), folder, **how(documents)))
    answer = {
        "seconds": seconds - spent,
        "wall": time.perf_counter() - began,
        "made": spent,
        "tokens": tokens,
    }
    lists = len(store.codec.packed) if job["kind"] == "compressed" else None
    stored = folder_bytes(folder)
    return answer | {
        "memory": memory("VmHWM"),
        "peak": max(peak.end(), stored),  # a short build may end before the first sample
        "bytes": stored,
        "lists": lists,
    }


def search(documents: Composed, job: dict[str, Any]) -> dict[str, Any]:
    opened, index = timed(open_index, job["folder"])
    before = memory("VmRSS")
    recipe, rows = RECIPES[documents.form], []
    for setting in job["settings"]:
        knobs = {name: setting[name] for name in ("probes", "candidates") if name in setting}
        finding = index.with_finder(**knobs) if knobs else index
        scored = recipe_of(recipe, setting)
        for query in documents.queries[:2]:
            finding.search_tokens(scored, query, K)
        timings = [timed(finding.search_tokens, scored, query, K) for query in documents.queries]
        found = [list(islice(ranked, K)) for _, [ranked] in timings]
        rows.append({"setting": setting, "seconds": [seconds for seconds, _ in timings], "found": found})
    return {"open": opened, "opened memory": before, "memory": memory("VmHWM"), "rows": rows}


def recipe_of(recipe: Recipe, setting: dict[str, Any]) -> Recipe:
    chosen = {name: setting[name] for name in ("search", "search_tokens") if name in setting}
    return replace(recipe, **chosen)


def change(documents: Composed, job: dict[str, Any]) -> dict[str, Any]:
    store, count = open_index(job["folder"], verify=False).store, job["documents"]
    more = [id for id in store.rows_by_id if int(id) >= count]
    if more:  # an earlier run was interrupted
        store = store.delete(more).compact()
    ones, gone = [], []
    for n in range(REPEATS):
        part = list(documents.parts(count + n, count + n + 1))
        seconds, store = timed(store.add_from, part)
        ones.append(seconds)
    parts = list(documents.parts(count + REPEATS, count + REPEATS + max(1, count // 100)))
    share, store = timed(store.add_from, parts)
    for n in range(REPEATS):
        seconds, store = timed(store.delete, [str(n)])
        gone.append(seconds)
    grown = search_seconds(store, documents)
    compacted, store = timed(store.compact)
    answer = {"add one": statistics.median(ones), "add 1%": share, "delete one": statistics.median(gone)}
    answer |= {"compact": compacted, "grown query": grown, "query": search_seconds(store, documents)}
    return answer | {"memory": memory("VmHWM")}


def search_seconds(store: Store, documents: Composed) -> float:
    """Return the median CPU seconds per query, with the index kind's default settings."""
    index, recipe = Index(store), RECIPES[documents.form]
    index.search_tokens(recipe, documents.queries[0], K)
    return statistics.median(timed(index.search_tokens, recipe, q, K)[0] for q in documents.queries[:32])


STAGES = {"truth": truth, "build": build, "search": search, "change": change}


def main(job: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(job["threads"])
    documents = Composed(job["vectors"], job["form"], job["real"], job["seed"])
    return STAGES[job["stage"]](documents, job)


if __name__ == "__main__":
    tell(main(json.loads(sys.argv[1])))
