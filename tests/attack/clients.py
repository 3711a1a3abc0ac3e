"""Clients of the service: requests whose cost is drawn at random, permitted or not."""

import http.client
import json
import random
import resource
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from paradigms import PARADIGMS
from paradigms.align import Cost
from paradigms.baselines.bm25 import BM25
from paradigms.retrieve import Indexed, Reranking
from paradigms.serve.cost import ANSWER
from tests.attack.harness import Attack, Crashed, Silent
from tests.serve.served import CORPUS, QUERY, serving
from tests.tiny import WORDS, write_checkpoint

MOST = Cost(1 << 28, 10**9)  # of a request: a tenth of a second, so that many tries are quick
SLACK = 1 << 28  # bytes that the process may take beside the largest permitted request
PATIENCE = 120  # seconds until a client that asks for little counts as blocked
SYSTEMS = ("bm25", "colbert", "aligner", "reranker")


@cache
def started(sound: Path) -> tuple[Any, int, int]:
    """A service of this process, its port, and the most memory that the process has held before."""
    torch.manual_seed(0)
    built: dict[str, Any] = {"bm25": BM25(CORPUS)}
    for name in ("colbert", "aligner"):
        built[name] = Indexed.build(PARADIGMS[name](sound / "bert", special_tokens=False), CORPUS)
    built["reranker"] = Reranking(built["colbert"].model, CORPUS, built["bm25"])
    running = serving(built, most=MOST)
    port = running.__enter__()
    asked(port, "/search", {"queries": {"q": QUERY}, "align": "Buckets(planes=4, repetitions=10)"})
    return running, port, peak()


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def asked(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, content


def number(draw: random.Random, most: float) -> int:
    """A whole number up to `most`, small ones as often as large ones, and sometimes one beyond any bound."""
    if draw.random() < 0.05:
        return draw.choice([-1, 0, 10**20, 10**4000])
    return int(most ** draw.random())


def alignment(draw: random.Random) -> str:
    k, share = number(draw, 1e9), draw.random()
    buckets = f"Buckets(planes={number(draw, 12)}, repetitions={number(draw, 1 << 20)})"
    entropic = f"Entropic(k={k}, eps={share}, iterations={number(draw, 1000)})"
    return draw.choice([f"TopK(k={k})", f"PoolTopK(k={k})", f"TopP(p={share})", entropic, buckets])


def text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS.split(), k=max(1, number(draw, 2000) % 20_000)))


def request(draw: random.Random) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"systems": draw.sample(SYSTEMS, draw.randrange(1, 4))}
    body |= {"align": alignment(draw)} if draw.random() < 0.8 else {}
    body |= {"salience": draw.random() < 0.5}
    queries = {f"q{n}": text(draw) for n in range(max(1, number(draw, 300) % 1000))}
    path = draw.choice(["/search", "/search", "/rerank", "/explain", "/save", "/encode"])
    if path == "/search":
        return path, body | {"queries": queries, "k": number(draw, 2000), "characters": number(draw, 1e6)}
    if path == "/rerank":
        some = draw.sample(CORPUS.ids, draw.randrange(1, len(CORPUS)))
        return path, body | {"queries": queries, "run": dict.fromkeys(queries, some)}
    if path == "/encode":
        texts = {"system": draw.choice(SYSTEMS), "texts": list(queries.values())}
        return path, texts | {"side": draw.choice(["query", "document"])}
    return path, body | {"query": text(draw), "document": draw.choice(CORPUS.ids), "text": text(draw)}


def requests_by_cost(draw: random.Random, sound: Path, work: Path) -> None:
    """A request is answered within its bounds or refused by a sentence, and others are answered."""
    _, port, before = started(sound)
    path, body = request(draw)
    if draw.random() < 0.2:  # this client does not wait for its answer
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        connection.close()
        status, content = 200, b""
    else:
        status, content = asked(port, path, body)
    try:
        if asked(port, "/search", {"queries": {"q": QUERY}, "systems": ["bm25"]})[0] != 200:
            raise Crashed("another client gets no answer")
    except TimeoutError:
        raise Crashed(f"another client waits for {PATIENCE} seconds") from None
    if status >= 500:
        raise Crashed(content.decode())
    if len(content) > ANSWER or peak() - before > MOST.bytes + SLACK:
        raise Silent(f"{len(content):,} bytes answered, {peak() - before:,} more in memory")
    if status != 200:
        raise ValueError(json.loads(content)["error"])


NAMED = ("multiply-adds", "answer may have", "must be", "64 bits", "more than", "does not encode", "bad JSON")
CLIENTS: dict[str, Attack] = {}
if find_spec("uvicorn"):
    CLIENTS["requests by cost"] = Attack(
        lambda folder: write_checkpoint("bert", folder / "bert") and None, requests_by_cost, NAMED, 40
    )
