"""`python -m paradigms advise`: which kind of retrieval for these documents? Needs no judgements.

Known-item queries stand for a user's: a document's title, or first sentence, asks for the document without
it. The chance of a system is the share of resamples of these queries in which it is the best. Users ask
otherwise: REGRETS has what taking the advice loses on judged queries, by `experiments/advice.py`.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from paradigms.cli.arguments import OFFLINE
from paradigms.cli.dimensions import own_queries
from paradigms.cli.sources import corpus_of, is_text, words_of
from paradigms.data import Corpus, Run, Split, load_collection
from paradigms.data.collection import body
from paradigms.data.identical import own_documents, searching_others

SYSTEMS = ("bm25", "dense", "multi-vector", "hybrid")
MEASURE = "RR@10"
FEWEST = 20  # queries below which nothing is advised
RESAMPLES = 2000
# choice → mean loss of RR@10 on the judged queries of five collections (see experiments/README.md)
REGRETS = {"this advice": 0.056, "always multi-vector": 0.017, "always hybrid": 0.019}


class Measured(NamedTuple):
    """A system on some queries: the value of each, bytes for a document, milliseconds for a query."""

    values: np.ndarray
    bytes: float
    milliseconds: float


def run_advise(settings: argparse.Namespace) -> None:
    """Print every system with its interval and costs, and the recommendation."""
    from rich.table import Table

    from paradigms.evaluate import seeds_interval
    from paradigms.io.terminal import Terminal

    corpus = corpus_of(settings.source, words_of(settings.source, settings.words))
    split = load_collection(settings.source).split(settings.split) if settings.split else None
    titled = not is_text(settings.source)
    corpus, asked = drawn(corpus, split, titled, settings.documents, settings.count)
    if len(asked.queries) < FEWEST:
        raise ValueError(
            f"{settings.source}: {len(asked.queries)} queries can be made of its documents, "
            f"and {FEWEST} are needed"
        )
    found = measure(corpus, asked)
    chances = chance_of_each(found)
    table = Table("system", MEASURE, "95% interval", "bytes/document", "ms/query", "chance of being best")
    for name, of in found.items():
        mean, low, high = seeds_interval(of.values[None])
        costs = f"{of.bytes:,.0f}", f"{of.milliseconds:.1f}", f"{chances[name]:.0%}"
        table.add_row(name, f"{mean:.3f}", f"{low:.3f}–{high:.3f}", *costs)
    best = max(chances, key=chances.__getitem__)
    console = Terminal(highlight=False)
    console.print(table)
    kind = f"queries of {settings.split}" if split else "known-item queries (titles or first sentences)"
    console.print(
        f"{len(asked.queries)} {kind} on {len(corpus):,} documents, by {OFFLINE} without training. "
        f"Take {best}: the best of the four with a chance of {chances[best]:.0%} for such "
        "queries.",
        soft_wrap=True,
    )
    if not split:
        losses = ", ".join(f"{choice} {loss:.3f}" for choice, loss in REGRETS.items())
        console.print(
            f"Users ask otherwise. Loss of {MEASURE} on judged queries, mean of five collections: {losses}. "
            "So without judged queries (--split) take multi-vector or hybrid.",
            soft_wrap=True,
        )


def drawn(corpus: Corpus, split: Split | None, titled: bool, most: int, count: int) -> tuple[Corpus, Split]:
    """At most `most` documents and `count` queries: the split's, with relevant documents, or known items.

    titled: whether a title that one document alone has is a query; else its first sentence is. Documents are
    without their titles and these sentences. Drawn with a fixed seed.
    """
    draw = random.Random(0)
    if split is None:
        texts = [body(title, text).strip() for title, text in zip(corpus.titles, corpus, strict=True)]
        titles = Counter(corpus.titles)
        own = [title if titles[title] == 1 else "" for title in corpus.titles]
        queries = own_queries(Corpus(corpus.ids, texts, own), not titled)
        rests = {
            id: text.removeprefix(queries[id]).lstrip(".!?。！？ \n")
            for id, text in zip(corpus.ids, texts, strict=True)
        }
        kept = draw.sample(corpus.ids, min(most, len(corpus)))
        good = [id for id in kept if queries[id].strip() and rests[id].strip()][:count]
        items = Split({id: queries[id] for id in good}, {id: {id: 1} for id in good})
        return Corpus(kept, [rests[id] for id in kept]), items
    relevant = {q: [d for d, g in of.items() if g > 0] for q, of in split.judgements.items()}
    answered = sorted(q for q, of in relevant.items() if of)
    asked = split.only(draw.sample(answered, min(count, len(answered))))
    needed = dict.fromkeys(d for q in asked.queries for d in relevant[q])
    others = [id for id in draw.sample(corpus.ids, len(corpus)) if id not in needed]
    kept = [*needed, *others][: max(most, len(needed))]
    return Corpus(kept, [corpus[corpus.position(id)] for id in kept]), asked


def measure(corpus: Corpus, split: Split) -> dict[str, Measured]:
    """Every system of SYSTEMS on the queries of the split; hybrid is BM25 and dense by reciprocal ranks."""
    import torch

    from paradigms import registry
    from paradigms.baselines.bm25 import BM25
    from paradigms.evaluate import on_split
    from paradigms.evaluate.fusion import fuse
    from paradigms.index import ExactIndex

    torch.manual_seed(0)  # of ColBERT's projection
    colbert = registry.PARADIGMS["colbert"](OFFLINE)
    own = own_documents(corpus, split)
    runs: dict[str, Run] = {}
    costs: dict[str, tuple[float, float]] = {}
    bm25 = BM25.build(corpus, corpus.ids)
    size = sum(part.nbytes for part in (bm25.matrix().data, bm25.matrix().indices)) / len(corpus)
    searches: dict[str, tuple[Any, float]] = {"bm25": (bm25.search, size)}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("dense", registry.PARADIGMS["dpr"](OFFLINE)), ("multi-vector", colbert)):
            index = ExactIndex.build(model, corpus.ids, corpus, f"{folder}/{name}", progress=True)
            searches[name] = partial(index.search, model), index.bytes_per_document
        for name, (search, bytes_) in searches.items():
            began = time.perf_counter()
            runs[name] = searching_others(search, own)(split.queries, 100)
            costs[name] = bytes_, 1000 * (time.perf_counter() - began) / len(split.queries)
    runs["hybrid"] = fuse([runs["bm25"], runs["dense"]])
    costs["hybrid"] = costs["bm25"][0] + costs["dense"][0], costs["bm25"][1] + costs["dense"][1]
    return {
        name: Measured(on_split(runs[name], split, [MEASURE]).values[MEASURE], *costs[name])
        for name in SYSTEMS
    }


def chance_of_each(found: dict[str, Measured]) -> dict[str, float]:
    """system → the share of resamples of the queries in which it is best."""
    draw, names = np.random.default_rng(0), list(found)
    values = np.stack([found[name].values for name in names])
    queries = draw.integers(values.shape[1], size=(RESAMPLES, values.shape[1]))
    best = values[:, queries].mean(-1).argmax(0)
    return {name: float((best == n).mean()) for n, name in enumerate(names)}
