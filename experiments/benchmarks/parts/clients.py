"""Clients that ask a service or PyLate's server, check the answers, and measure latencies."""

import http.client
import json
import random
import socket
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


def searching(
    names: list[str], texts: list[str], expected: dict[str, list[list[float]]], explained: float = 0.0
) -> Ask:
    """Search for a random text with a random system, and explain a share of the results."""

    def ask(connection: http.client.HTTPConnection, generator: random.Random) -> bool:
        name = generator.choice(names)
        n = generator.randrange(len(texts))
        body: dict[str, Any] = {"queries": {"q": texts[n]}, "k": K, "systems": [name]}
        ranked = post(connection, "/search", body)["systems"][name]["run"]["q"]
        scores = [score for _, score in ranked]
        exact = expected[name][n]
        right = len(scores) == len(exact) and np.allclose(scores, exact, rtol=WRONG, atol=WRONG)
        if ranked and generator.random() < explained:
            body = {"query": texts[n], "document": ranked[0][0], "systems": [name]}
            answered = post(connection, "/explain", body)["systems"][name]
            right = right and answered["rank"] == 1
        return bool(right)

    return ask


COSTLY = ("Buckets(planes=1, repetitions=400000)", "Entropic(k=2, eps=0.1, iterations=1000)")
PERMITTED = ("Buckets(planes=6, repetitions=20)", "Entropic(k=2, eps=0.1)", "TopK(k=8)", "TopP(p=0.2)")
LONG = 100_000  # characters of a text


def straining(names: list[str], texts: list[str]) -> Ask:
    """Return a function whose requests cost much, are not permitted, or are left without their answer."""
    dense = [name for name in names if name != "bm25"] or names

    def ask(connection: http.client.HTTPConnection, generator: random.Random) -> bool:
        text = generator.choice(texts)
        system = generator.choice(dense)
        body: dict[str, Any] = {"queries": {"q": text}, "k": K, "systems": [system]}
        kind = generator.randrange(6)
        if kind == 0:  # its words are new to every cache
            words = [f"{word} {generator.random()}" for word in text.split()]
            body["queries"] = {"q": " ".join(words), "r": text * (LONG // len(text))}
        if kind <= 1:
            body["align"] = generator.choice(PERMITTED)
            answered = post(connection, "/search", body)["systems"][system]
            return "run" in answered or "ids" in answered["error"]
        if kind == 2:
            headers = "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            with socket.create_connection(("127.0.0.1", connection.port)) as half:
                half.sendall((headers + generator.choice(["", "Content-Length: 9\r\n\r\n{"])).encode())
                time.sleep(1)
            return True
        if kind == 3:
            content = json.dumps(body | {"align": generator.choice(PERMITTED), "k": 1000})
            connection.request("POST", "/search", content, {"Content-Type": "application/json"})
            connection.close()  # without reading
            return True
        path = "/search"
        if kind == 4:
            body |= {"align": generator.choice(COSTLY)} if system != "dpr" else {"k": 10**4000}
        else:
            path = "/encode"
            body = {"system": system, "texts": [text * 50] * 256, "side": "document"}
        try:
            post(connection, path, body)
        except ConnectionError as error:
            return " 400 " in str(error)
        return system == "dpr"  # one vector for a text

    return ask


def either(one: Ask, other: Ask, share: float) -> Ask:
    """Return a function that asks like `other` in a share of its calls, and else like `one`."""
    return lambda connection, generator: (other if generator.random() < share else one)(connection, generator)


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
