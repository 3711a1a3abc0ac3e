"""Shared by the tests of the service and the page: a small corpus, systems of every kind, a service."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paradigms import PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Corpus, Problems, Split
from paradigms.data.pieces import Pieces
from paradigms.generative.identifiers import END, FIRST, make
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.retrieve import Fused, Indexed, Passages, Reranking, Retriever
from tests import needs
from tests.tiny import WORDS
from tests.tiny_generative import VOCABULARY, generative

needed = needs.module("starlette uvicorn", "the service", "pip install -e '.[serve]'")
QUERY = "fish and the cold sea"
SLASH = "a/b\nc?"
NAMES = ("dpr", "colbert", "coil", "aligner", "xtr")


def texts() -> dict[str, str]:
    """Thirty documents of twenty words; ids that JavaScript would sort, one with a slash and a line break."""
    words, generator = WORDS.split(), torch.Generator().manual_seed(0)
    drawn = torch.randint(len(words), (30, 20), generator=generator).tolist()
    built = {str(40 - n): " ".join(words[w] for w in row) for n, row in enumerate(drawn)}
    return built | {SLASH: "fish in the sea", "7": "the cold sea and fish"}


CORPUS = Corpus(list(texts()), list(texts().values()), [f"title {id}" for id in texts()])
JUDGED = Split({"q1": QUERY, "q2": "wood fire"}, {"q1": {"7": 1, SLASH: 2}, "q2": {"40": 1}})


def systems(backbone: Path, decoder: Path) -> dict[str, Retriever]:
    """BM25, paradigms, passages, rerankers, a fusion and a generative model over `CORPUS`."""
    built: dict[str, Any] = {"bm25": BM25(CORPUS)}
    for name in NAMES:
        torch.manual_seed(0)
        options = {} if name == "dpr" else {"special_tokens": False}
        built[name] = Indexed.build(PARADIGMS[name](backbone, **options), CORPUS)
    pieces, model = Pieces(CORPUS, 8), built["colbert"].model
    built["passages"] = Passages(Indexed.build(model, pieces.corpus), pieces)
    built["reranker"] = Reranking(model, CORPUS, built["bm25"])
    torch.manual_seed(0)
    built["cross"] = Reranking(cross_attention(backbone), CORPUS, built["bm25"])
    rows = [[FIRST + n, FIRST] for n in range(len(CORPUS))]
    identifiers = make("title", CORPUS.ids, rows, VOCABULARY, END, Problems())
    built["generative"] = GenerativeRetriever(generative(decoder, identifiers, beams=len(CORPUS)))
    built["fused"] = Fused([built["bm25"], built["colbert"]])
    return built


@contextmanager
def serving(
    retrievers: dict[str, Retriever],
    corpus: Corpus = CORPUS,
    judged: Split | None = JUDGED,
    most: Any = None,
    **how: Any,
) -> Iterator[int]:
    """The port of a service that runs in a thread, as `serve` runs it."""
    from paradigms.serve import Service, application
    from paradigms.serve.application import listen, server_of
    from paradigms.serve.cost import MOST

    server = server_of(application(Service(retrievers, corpus, judged, most or MOST), **how))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)
        assert not thread.is_alive()
