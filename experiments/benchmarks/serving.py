"""The service under load: queries a second and latencies by number of clients, and mixed requests.

The service runs in a separate process over exact indexes of one collection. Each client keeps a connection
and sends a search for k documents as soon as it has the previous answer; every answer is compared with a
direct search by the retriever. With --mixed SECONDS, clients then search and explain with all systems while
documents are added to the index folders, and memory is read before and after. Encoders are untrained: times
do not depend on training. Results are printed as a table and written as JSON.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings: the served systems and the clients."""

    collection: str = "pydocs"
    split: str = "test"
    documents: int = 0
    """size of a fixed subset of pydocs; 0: the whole collection"""
    systems: list[str] = field(default_factory=lambda: ["bm25", "dpr", "colbert", "xtr"])
    clients: list[int] = field(default_factory=lambda: [1, 8, 64])
    seconds: float = 10.0
    """seconds per system and number of clients; the first tenth does not count"""
    queries: int = 64
    """different queries, from the split"""
    k: int = 10
    mixed: float = 0.0
    """seconds of mixed load with the last number of clients; 0: none"""
    output: str = "results/benchmarks/serving"


if __name__ == "__main__":  # before the imports that take seconds
    arguments = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from parts.shared import MiB, memory
from rich.table import Table

from paradigms import PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Corpus, load_collection
from paradigms.find import open_index
from paradigms.io.device import processor
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal
from paradigms.model import Paradigm
from paradigms.retrieve import Indexed, Retriever
from paradigms.serve import serve

WRONG = 1e-3  # of a score, relative: queries that are encoded together are padded, and round otherwise
Ask = Callable[[http.client.HTTPConnection, random.Random], bool]  # whether the answer is right


def main(settings: Settings) -> None:
    console, folder = Terminal(), Path(settings.output)
    collection = opened(settings)
    split = collection.split(settings.split)
    texts = list(split.queries.values())[: settings.queries]
    before = os.getloadavg()[0]
    retrievers = systems(settings, collection.corpus)
    expected = {name: searched(retriever, texts, settings.k) for name, retriever in retrievers.items()}
    rows = []
    with Running(settings) as service:
        for name in settings.systems:
            for count in settings.clients:
                ask = searching([name], texts, expected, settings.k)
                load(service.port, ask, count, settings.seconds / 10)
                row = load(service.port, ask, count, settings.seconds)
                rows.append({"system": name, "clients": count} | row)
                console.print(f"{name}, {count} clients: {row['queries/s']:.1f} queries/s")
        mixed = mixed_load(service, retrievers, texts, expected, settings) if settings.mixed else {}
    machine = {"processor": processor(), "cores": os.cpu_count(), "load": [before, os.getloadavg()[0]]}
    count = len(collection.corpus)
    results = {"settings": asdict(settings), "machine": machine, "documents": count, "ended": service.ended}
    write_json(folder / "serving.json", results | {"rows": rows, "mixed": mixed})
    title = f"{count:,} documents, k = {settings.k}; the service ended with {service.ended}"
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    console.print(table)
    if mixed:
        console.print(mixed)


def opened(settings: Settings) -> Collection:
    return load_collection(settings.collection, documents=settings.documents or None)


def model_of(name: str) -> Paradigm:
    torch.manual_seed(0)
    return PARADIGMS[name]("offline")


def systems(settings: Settings, corpus: Corpus) -> dict[str, Retriever]:
    """Systems by name, with their indexes in the output folder, built there if missing."""
    retrievers: dict[str, Retriever] = {}
    for name in settings.systems:
        folder = Path(settings.output, "indexes", name)
        if name == "bm25":
            retrievers[name] = BM25(corpus)
        elif folder.is_dir():
            retrievers[name] = Indexed.open(folder, model_of(name), corpus)
        else:
            retrievers[name] = Indexed.build(model_of(name), corpus, folder, progress=True)
    return retrievers


def searched(retriever: Retriever, texts: list[str], k: int) -> list[list[float]]:
    """The scores of each text's k best documents."""
    run = retriever.search({str(n): text for n, text in enumerate(texts)}, k)
    return [list(run[str(n)].values()) for n in range(len(texts))]


class Running:
    """The service in a separate process. ended: its exit status after it was interrupted."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ended: int | None = None

    def __enter__(self) -> Running:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        self.process = context.Process(target=answer, args=(asdict(self.settings), theirs))
        self.process.start()
        self.port = int(mine.recv().rstrip("/").rpartition(":")[2])
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)
        self.process.join(60)
        self.ended = self.process.exitcode


def answer(values: dict[str, Any], ready: Any) -> None:
    """Serve: the target of the service's process."""
    settings = Settings(**values)
    corpus = opened(settings).corpus
    serve(systems(settings, corpus), corpus, port=0, ready=ready.send)


def searching(
    names: list[str], texts: list[str], expected: dict[str, list[list[float]]], k: int, explained: float = 0.0
) -> Ask:
    """Search for a random text with a random system. explained: share of searches with an explanation."""

    def ask(connection: http.client.HTTPConnection, generator: random.Random) -> bool:
        name, n = generator.choice(names), generator.randrange(len(texts))
        body: dict[str, Any] = {"queries": {"q": texts[n]}, "k": k, "systems": [name]}
        ranked = post(connection, "/search", body)["systems"][name]["run"]["q"]
        scores, wanted = [score for _, score in ranked], expected[name][n]
        right = len(scores) == len(wanted) and np.allclose(scores, wanted, rtol=WRONG, atol=WRONG)
        if ranked and generator.random() < explained:
            body = {"query": texts[n], "document": ranked[0][0], "systems": [name]}
            answered = post(connection, "/explain", body)["systems"][name]
            right = right and answered["rank"] == 1
        return bool(right)

    return ask


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    content = reply.read()
    if reply.status != 200:
        raise ConnectionError(f"{path}: {reply.status} {content[:200]!r}")
    return json.loads(content)


def load(port: int, ask: Ask, clients: int, seconds: float) -> dict[str, Any]:
    """Queries per second, percentiles of milliseconds per query, and numbers of wrong and lost answers."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    wrong, lost = [0] * clients, [0] * clients
    until = time.perf_counter() + seconds

    def client(n: int) -> None:
        generator = random.Random(n)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        while time.perf_counter() < until:
            began = time.perf_counter()
            try:
                wrong[n] += not ask(connection, generator)
            except (OSError, http.client.HTTPException, KeyError):
                lost[n] += 1
                connection.close()
            latencies[n].append(1000 * (time.perf_counter() - began))
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed = time.perf_counter() - began
    every = np.array([latency for of_client in latencies for latency in of_client])
    names = ("50% ms", "95% ms", "99% ms")
    percentiles = dict(zip(names, np.percentile(every, (50, 95, 99)).tolist(), strict=True))
    counts = {"queries": len(every), "wrong": sum(wrong), "lost": sum(lost)}
    return {"queries/s": len(every) / passed} | percentiles | counts


def mixed_load(
    service: Running,
    retrievers: dict[str, Retriever],
    texts: list[str],
    expected: dict[str, list[list[float]]],
    settings: Settings,
) -> dict[str, Any]:
    """Search and explain with all systems at once, while a writer adds documents to their index folders."""
    ask = searching(list(retrievers), texts, expected, settings.k, explained=0.2)
    load(service.port, ask, settings.clients[-1], min(30.0, settings.mixed / 10))
    status, ended, added = f"/proc/{service.process.pid}/status", threading.Event(), [0]
    before = memory("VmRSS", status)

    def add() -> None:
        places = [Path(settings.output, "indexes", name) for name in retrievers if name != "bm25"]
        kept = [(place, place.with_name(f"{place.name}.before")) for place in places]
        for place, copy in kept:
            shutil.copytree(place, copy)
        while not ended.wait(5.0) and places:
            place = places[added[0] % len(places)]
            document = f"added {added[0]}"
            retriever: Any = retrievers[place.name]
            open_index(place).store.add(retriever.model, [document], [f"a document, {document}"])
            added[0] += 1
        for place, copy in kept:
            shutil.rmtree(place)
            copy.rename(place)

    writer = threading.Thread(target=add)
    writer.start()
    row = load(service.port, ask, settings.clients[-1], settings.mixed)
    ended.set()
    writer.join()
    after = memory("VmRSS", status)
    return row | {"documents added": added[0], "MiB before": before / MiB, "MiB after": after / MiB}


if __name__ == "__main__":
    main(Settings(**arguments))
