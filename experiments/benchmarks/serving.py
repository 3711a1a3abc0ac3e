"""Measure the service under load: queries per second and latencies by number of clients.

The service runs in a separate process with exact indexes of one collection. Each client keeps a connection
open and sends a search for ten documents as soon as the previous answer arrives. Every answer is compared
with a direct search by the retriever. With --pylate ENVIRONMENT, PyLate's server and our service both serve
a model that PyLate writes, and clients send queries to encode. Encoders are untrained: times do not depend on
training.
"""

import http.client
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from parts.settings import Benchmark
from studies.settings import OneCollection, Queries, launch

from paradigms.io.command_line import flags


@flags(queries=64)
class Settings(Benchmark, OneCollection, Queries):
    """Settings for the served systems and the clients, which send one of so many test queries at a time."""

    systems: list[str] = field(default_factory=lambda: ["bm25", "dpr", "colbert", "xtr"])
    clients: list[int] = field(default_factory=lambda: [1, 8, 64])
    seconds: float = 10.0
    """seconds per system and number of clients; the first tenth does not count"""
    pylate: str = ""
    """virtual environment with pylate[api]; empty: do not measure encoding"""


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import psutil
import torch
from parts.measuring import in_worker
from studies.pages import Rows, Section, publish
from torch import Tensor

from paradigms import PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, load_collection
from paradigms.encoder.sources import packaged
from paradigms.io.device import processor
from paradigms.io.terminal import Terminal
from paradigms.loading import as_paradigm
from paradigms.loading import load as load_model
from paradigms.model import Paradigm
from paradigms.retrieve import Indexed, Reranking, Retriever
from paradigms.serve import serve

K = 10
PYLATE = "pylate"  # name of the folder and the system of PyLate's model
FAR = 0.03  # allowed difference of numbers of unit vectors: ours may be encoded in bf16
# Allowed relative error of a score: in bf16, queries that are encoded together differ by .0016 from queries
# that are encoded alone.
WRONG = 5e-3
Ask = Callable[[http.client.HTTPConnection, random.Random], bool]  # returns whether the answer is right
# System -> the system whose index is used: without training, both have the same vectors.
SHARED = {"xtr": "colbert"}


def main(settings: Settings) -> None:
    console = Terminal()
    collection = load_collection(settings.collection, documents=settings.documents or None)
    texts = list(collection.split("test").queries.values())[: settings.queries or None]
    before = os.getloadavg()[0]
    retrievers = systems(settings, collection.corpus)
    expected = {name: searched(retriever, texts) for name, retriever in retrievers.items()}
    rows: Rows = []

    def measure(name: str, server: Server, ask: Ask) -> None:
        for count in settings.clients:
            load(server.port, ask, count, settings.seconds / 10)
            before = server.cpu_seconds()
            row = load(server.port, ask, count, settings.seconds)
            row["CPU ms"] = 1000 * (server.cpu_seconds() - before) / row["queries"]
            rows.append({"system": name, "clients": count} | row)
            console.print(f"{name}, {count} clients: {row['queries/s']:.1f} queries/s")

    if settings.pylate:
        written = written_by_pylate(settings)
        queries = [saved(written).encode_queries([text]) for text in texts]
        vectors = [one.vectors[one.mask] for one in queries]
        with pylate_server(settings, written) as peer:
            measure("encode, PyLate", peer, encoding(texts, vectors, str(written)))
    with running(settings) as service:
        if settings.pylate:
            measure("encode", service, encoding(texts, vectors))
        for name in settings.systems:
            measure(name, service, searching(name, texts, expected[name]))
    text = (
        f"{len(collection.corpus):,} documents, k = {K}; {os.cpu_count()} cores of {processor()}, load "
        f"{before:.1f} before and {os.getloadavg()[0]:.1f} after; the service ended with {service.ended}."
    )
    publish(settings, "Serving", text, {"load": Section("Clients that send the same request", rows=rows)})


def model_of(name: str) -> Paradigm:
    torch.manual_seed(0)
    return PARADIGMS[name]("offline")


@cache
def saved(folder: Path) -> Paradigm:
    return as_paradigm(load_model(folder), folder)


def systems(settings: Settings, corpus: Corpus) -> dict[str, Retriever]:
    retrievers: dict[str, Retriever] = {}
    for name in settings.systems:
        folder = Path(settings.output, "indexes", SHARED.get(name, name))
        if name == "bm25":
            retrievers[name] = BM25(corpus)
        elif folder.is_dir():
            retrievers[name] = Indexed.open(folder, model_of(name), corpus)
        else:
            retrievers[name] = Indexed.build(model_of(name), corpus, folder, progress=True)
    return retrievers


def searched(retriever: Retriever, texts: list[str]) -> list[list[float]]:
    run = retriever.search({str(n): text for n, text in enumerate(texts)}, K)
    return [list(run[str(n)].values()) for n in range(len(texts))]


@dataclass
class Server:
    """A server on this machine. ended: exit status after the interrupt that ends the service."""

    pid: int
    port: int
    ended: int | None = None

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


@contextmanager
def running(settings: Settings) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=answer, args=(settings, theirs))
    process.start()
    assert process.pid is not None
    server = Server(process.pid, int(mine.recv().rstrip("/").rpartition(":")[2]))
    try:
        yield server
    finally:
        os.kill(server.pid, signal.SIGINT)
        process.join(60)
        server.ended = process.exitcode


def answer(settings: Settings, ready: Any) -> None:
    """Run the service, as the main function of a new process. ready: pipe end that receives its address."""
    corpus = load_collection(settings.collection, documents=settings.documents or None).corpus
    retrievers = systems(settings, corpus)
    if settings.pylate:
        retrievers[PYLATE] = Reranking(saved(Path(settings.output, PYLATE)), corpus)
    serve(retrievers, corpus, port=0, ready=ready.send)


def written_by_pylate(settings: Settings) -> Path:
    """Let PyLate make a ColBERT model from the offline encoder, and return the model's folder."""
    folder = Path(settings.output, PYLATE).absolute()
    if not folder.is_dir():
        job = {"backbone": str(packaged("offline")), "folder": str(folder)}
        try:
            in_worker("pylate_model", job, 1, str(Path(settings.pylate, "bin", "python").absolute()))
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"PyLate wrote no model:\n{error.stderr[-2000:]}") from error
    return folder


@contextmanager
def pylate_server(settings: Settings, folder: Path) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    python = str(Path(settings.pylate, "bin", "python"))
    command = [python, "-m", "pylate.server.server", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([*command, "--model", str(folder)], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.2)
        try:
            yield Server(process.pid, port)
        finally:
            process.terminate()


def encoding(texts: list[str], vectors: list[Tensor], peer: str = "") -> Ask:
    """Ask our service, or PyLate's server for the model `peer`, to encode a random query."""

    def ask(connection: http.client.HTTPConnection, generator: random.Random) -> bool:
        n = generator.randrange(len(texts))
        if peer:
            body = {"input": [texts[n]], "is_query": True, "model": peer}
            answered = post(connection, "/v1/embeddings", body)["data"][0]["embedding"]
        else:
            body = {"system": PYLATE, "texts": [texts[n]], "side": "query"}
            answered = post(connection, "/encode", body)["texts"][0]["vectors"]
        return torch.allclose(torch.tensor(answered), vectors[n].float(), rtol=0, atol=FAR)

    return ask


def searching(name: str, texts: list[str], expected: list[list[float]]) -> Ask:
    """Search for a random text with a system. expected: the scores of each text's documents."""

    def ask(connection: http.client.HTTPConnection, generator: random.Random) -> bool:
        n = generator.randrange(len(texts))
        body = {"queries": {"q": texts[n]}, "k": K, "systems": [name]}
        ranked = post(connection, "/search", body)["systems"][name]["run"]["q"]
        scores = [score for _, score in ranked]
        right = len(scores) == len(expected[n])
        return right and np.allclose(scores, expected[n], rtol=WRONG, atol=WRONG)

    return ask


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    content = reply.read()
    if reply.status != 200:
        raise ConnectionError(f"{path}: {reply.status} {content[:200]!r}")
    return json.loads(content)


def load(port: int, ask: Ask, clients: int, seconds: float) -> dict[str, Any]:
    """Measure queries/s, latency percentiles in milliseconds, and numbers of wrong and lost answers."""
    until = time.perf_counter() + seconds

    def client(n: int) -> list[tuple[str, float]]:
        """Return each answer, "right", "wrong" or "lost", and its milliseconds."""
        generator = random.Random(n)
        answers = []
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        while time.perf_counter() < until:
            began = time.perf_counter()
            try:
                kind = "right" if ask(connection, generator) else "wrong"
            except (OSError, http.client.HTTPException, KeyError):
                kind = "lost"
                connection.close()
            answers.append((kind, 1000 * (time.perf_counter() - began)))
        connection.close()
        return answers

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        answers = [answer for of_client in threads.map(client, range(clients)) for answer in of_client]
    passed = time.perf_counter() - began
    names = ("50% ms", "95% ms", "99% ms")
    percentiles = np.percentile([milliseconds for _, milliseconds in answers], (50, 95, 99)).tolist()
    kinds = Counter(kind for kind, _ in answers)
    counts = {"queries": len(answers), "wrong": kinds["wrong"], "lost": kinds["lost"]}
    return {"queries/s": len(answers) / passed} | dict(zip(names, percentiles, strict=True)) | counts
