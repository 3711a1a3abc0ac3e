"""Clients that ask a service or PyLate's server, check the answers, and measure latencies."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

K = 10
PYLATE = "pylate"  # name of the folder and the system of PyLate's model
FAR = 0.03  # allowed difference of numbers of unit vectors: ours may be encoded in bf16
# Allowed relative error of a score: in bf16, queries that are encoded together differ by .0016 from queries
# that are encoded alone.
WRONG = 5e-3
Ask = Callable[[http.client.HTTPConnection, random.Random], bool]  # returns whether the answer is right


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
    latencies: list[list[float]] = [[] for _ in range(clients)]
    wrong = [0] * clients
    lost = [0] * clients
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
