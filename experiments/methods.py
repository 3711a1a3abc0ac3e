"""Measure what recent methods add to MaxSim if the token vectors stay as they are.

BM25's first documents are ranked by MaxSim and by methods that change one part of the formula: A (a soft
maximum, or the attention that tokens receive), Z (the document's length), the weights of query tokens (IDF,
or a weight for each vocabulary entry, learned from training queries), and D (fewer tokens). Dev queries
choose every free number, and each method stands beside its control. What an exact early exit needs, in
products and milliseconds, is measured, too. Collections may be added to a results folder.
"""

from dataclasses import field
from pathlib import Path

from studies.settings import (
    Backbone,
    Collections,
    Documents,
    Lengths,
    Queries,
    Results,
    Seed,
    at_least,
    different,
    launch,
)

from paradigms.io.command_line import flags


@flags()
class Settings(Results, Collections, Documents, Backbone, Lengths, Queries, Seed):
    """Settings for the encoder, collections and candidates."""

    depth: int = 100
    """documents per query that BM25 retrieves and every method ranks"""
    examples: int = 2000
    """training queries from which weights are learned"""
    epochs: list[int] = field(default_factory=lambda: [1, 3, 10])
    """numbers of epochs, among which dev queries choose"""
    dev_queries: int = 200
    """dev queries, drawn by a hash"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "collections", "epochs")
        at_least(self, depth=11, examples=1, epochs=1, dev_queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from papers.implicit_idf.floors import weighted
from papers.lee2023.token_measures import best_documents, stored_ids
from studies.model_runs import Job, StudyData, bind, bind_collection, open_study, run_jobs
from studies.pages import Measured, Section, publish, shown
from studies.token_methods import (
    FIRST,
    Candidates,
    Example,
    candidates_of,
    cell_worths,
    largest,
    learn,
    needed_products,
    soft,
)

from paradigms import Paradigm
from paradigms.colbert import colbert
from paradigms.data import Run, Split
from paradigms.data.collection import hash_order
from paradigms.encoder.backbone import load_backbone, original, packaged
from paradigms.encoder.batches import by_length
from paradigms.encoder.precision import autocast
from paradigms.encoder.text import Side
from paradigms.evaluate import candidates, holm, paired_test, per_query, seeds_interval
from paradigms.find import Index, Store, kinds
from paradigms.io.command_line import folder_name
from paradigms.io.progress import progress_bar
from paradigms.train.script import begin

NDCG = "nDCG@10"
SAMPLE = 2000  # query tokens whose best document tokens measure what each one is worth
SOFT = (0.01, 0.02, 0.05, 0.1)  # τ of the soft maximum, in units of cosine
POWERS = (0.02, 0.05, 0.1, 0.2)  # b of Z = N · length^b
SHARES = {2: "half of the tokens", 4: "a quarter of the tokens"}
CONTROLS = {  # method -> its control
    "MaxSim": "bm25",
    "soft maximum": "MaxSim",
    "divided by length^b": "MaxSim",
    "IDF weights": "MaxSim",
    "learned weights": "IDF weights",
    "attention weights of queries": "MaxSim",
    "attention weights of both": "MaxSim",
}
for share in SHARES.values():
    CONTROLS |= {f"{share}, {way}": "MaxSim" for way in ("first", "random")}
    CONTROLS |= {f"{share}, {way}": f"{share}, random" for way in ("rare", "cells", "pooled")}
PAIRS = [
    *CONTROLS.items(),
    *((f"attention weights of {side}", "IDF weights") for side in ("queries", "both")),
]
ATTENTION = (0.1, 0.3, 1.0)  # β of exp(β a), with a = 1 for the mean token of a text
TIMED = 200  # queries of the timed early exit
BLOCKS = (1, 4)  # query tokens between its comparisons
MOST = 2.0  # limit of a, which [CLS] exceeds in most texts


Scores = Callable[[Candidates], Float[np.ndarray, " n"]]
Systems = dict[str, dict[str, tuple[int, Scores]]]  # method -> value of its free number -> pooling, scores


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    bind(settings, accelerator, {"collections"}, ("backbone",))
    sections = {}
    for collection in settings.collections:
        data = open_study(settings, console, ("training", "dev", "test"), collection)
        name = folder_name(collection)
        bind_collection(data, Path(settings.output) / name, accelerator)
        jobs = [job(name, measurement, data, settings, accelerator) for measurement in MEASUREMENTS]
        result, attention, timed = run_jobs(jobs, accelerator, console)
        for part in ("chosen", "values"):
            result[part] = attention[part] | result[part]
        sections[name] = section(name, result)
        sections[f"{name}-early-exit"] = exit_section(name, timed)
    summary = (
        f"ColBERT from {original(settings.backbone)}, not trained here, ranks BM25's first "
        f"{settings.depth} documents, cut after {settings.document_length} tokens. Up to "
        f"{settings.dev_queries} dev queries choose free numbers; at most {settings.examples:,} training "
        "queries teach weights."
    )
    publish(settings, "Methods on frozen token vectors", summary, sections, accelerator)
    accelerator.end_training()


def job(name: str, measurement: str, data: StudyData, settings: Settings, accelerator: Accelerator) -> Job:
    """Make the job of a measurement on one collection."""

    def prepare() -> Paradigm:
        torch.manual_seed(settings.seed)
        return colbert(
            settings.backbone,
            query_length=settings.query_length,
            document_length=settings.document_length,
        ).to(accelerator.device)

    def measured(paradigm: Paradigm) -> Measured:
        return MEASUREMENTS[measurement](paradigm.eval(), data, settings, accelerator.mixed_precision)

    return Job(
        f"{name}, {measurement}", Path(settings.output) / name / f"{measurement}.json", prepare, measured
    )


def measure_attention(paradigm: Paradigm, data: StudyData, settings: Settings, precision: str) -> Measured:
    """Measure ColBERT-Att: a pair of tokens weighs exp(β aᵢ) exp(β aⱼ), or exp(β aⱼ), before the maximum.

    a: `Attention` received in the encoder's last layer. Dev queries choose β.
    """
    dev = data.dev.only(hash_order(data.dev.queries)[: settings.dev_queries])
    pools = {}
    for name, split in {"dev": dev, "test": data.test}.items():
        pools[name] = candidates(data.bm25.search(split.queries, settings.depth), settings.depth)
    corpus = data.collection.corpus.only(id for run in pools.values() for row in run.values() for id in row)
    index = Index(Store.build(kinds.exact(), paradigm, corpus.ids, corpus, precision=precision))
    attention = Attention(paradigm, settings.backbone, precision)
    received = attention.of(corpus, "document")
    assert np.array_equal([len(each) for each in received], np.diff(index.store.offsets))
    of_tokens = np.concatenate(received).astype(np.float32)
    best: dict[str, str] = {}
    on_test: dict[str, list[float]] = {}
    for name, split in {"dev": dev, "test": data.test}.items():
        runs: dict[tuple[str, str], Run] = {("MaxSim", ""): {}}
        for query, each in candidates_of(paradigm, index, split, pools[name]):
            (of_query,) = attention.of([split.queries[query]], "query")
            scores = {("MaxSim", ""): each.maxima().mean(0)}
            for beta, most in product(ATTENTION, (np.inf, MOST)):
                value = f"β = {beta:g}" + (f", a ≤ {MOST:g}" if most == MOST else "")
                j = np.exp(beta * of_query.clip(max=most))
                i = np.exp(beta * of_tokens[each.tokens].clip(max=most))
                scores["attention weights of queries", value] = weighted(j, each.maxima())
                scores["attention weights of both", value] = weighted(j, replace(each, S=each.S * i).maxima())
            for system, row in scores.items():
                runs.setdefault(system, {})[query] = best_documents(index, each.rows, row, FIRST)
        measured = {system: values(run, split) for system, run in runs.items()}
        if name == "dev":
            for method, value in sorted(measured, key=lambda system: float(np.mean(measured[system]))):
                best[method] = value
        else:
            on_test = {method: measured[method, value] for method, value in best.items()}
    return {"chosen": best, "values": on_test}


class Attention:
    """The attention that a text's tokens receive in the last layer, over heads and attending tokens.

    The mean over a text's tokens that have vectors is 1.
    """

    def __init__(self, paradigm: Paradigm, backbone: str, precision: str) -> None:
        self.encoder = paradigm.encoder
        self.precision = precision
        self.backbone = load_backbone(packaged(backbone)).to(paradigm.encoder.device).eval()
        self.backbone.set_attn_implementation("eager")  # the other implementations return no weights

    def of(self, texts: Sequence[str], side: Side) -> list[Float[np.ndarray, " l"]]:
        received: list[np.ndarray] = [np.zeros(0)] * len(texts)
        with progress_bar(len(texts) > 1) as bar:
            groups = by_length([len(text) for text in texts], rows=64)
            for places in bar.track(groups, description="read attention"):
                batch = self.encoder.tokenize([texts[n] for n in places], side)
                with autocast(self.encoder.device, self.precision), torch.inference_mode():
                    weights = self.backbone(**batch.inputs(), output_attentions=True).attentions[-1]
                attending = batch.attention_mask.float()[:, :, None]
                sums = (weights.float().mean(1) * attending).sum(1)  # [x, l]
                for n, of_text, counts in zip(places, sums, batch.counts, strict=True):
                    real = of_text[counts].numpy()
                    received[n] = real / real.mean() if len(real) else real
        return received


def measure(paradigm: Paradigm, data: StudyData, settings: Settings, precision: str) -> Measured:
    """Measure each method's nDCG@10 on test queries, with the free numbers that dev queries choose."""
    corpus = data.collection.corpus
    store = Store.build(kinds.exact(), paradigm, corpus.ids, corpus, precision=precision)
    indexes = {1: Index(store)} | {n: Index(store.copy(kinds.exact(), pool=n)) for n in SHARES}
    idf = paradigm.count_corpus(corpus).idf(torch.arange(len(paradigm.encoder.tokenizer))).numpy()

    def pool(split: Split) -> Run:
        return candidates(data.bm25.search(split.queries, settings.depth), settings.depth)

    train = data.train.only(hash_order(data.train.queries)[: settings.examples])
    dev = data.dev.only(hash_order(data.dev.queries)[: settings.dev_queries])
    examples = list(examples_of(paradigm, indexes[1], train, pool(train)))
    if not examples:
        raise ValueError(
            f"no training query has a relevant document among BM25's first {settings.depth}: "
            "there is nothing to learn weights from"
        )
    weights = {
        f"{start}, {count} epochs": learned
        for start, first in (("ones", np.ones_like(idf)), ("IDF", idf))
        for count, learned in learn(first, examples, settings.epochs, settings.seed).items()
    }
    queries = paradigm.encode_queries(list(train.queries.values())).to("cpu")
    vectors = queries.vectors[queries.mask].float()
    drawn = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(settings.seed))[:SAMPLE]
    ids = stored_ids(paradigm, indexes[1], corpus)
    worths = {
        "first": -np.arange(len(ids)),
        "random": np.random.default_rng(settings.seed).random(len(ids)),
        "rare": idf[ids],
        "cells": cell_worths(store, vectors[drawn]),
    }
    systems = systems_of(idf, weights, worths, store.offsets)
    on_dev, _ = values_of(paradigm, indexes, dev, pool(dev), systems)
    best = {}
    for method, of in on_dev.items():
        means = {value: float(np.mean(each)) for value, each in of.items()}
        best[method] = max(means, key=means.__getitem__)
    chosen = {method: {value: systems[method][value]} for method, value in best.items()}
    on_test, needed = values_of(paradigm, indexes, data.test, pool(data.test), chosen)
    return {
        "chosen": best,
        "values": {"bm25": values(pool(data.test), data.test)}
        | {method: of[best[method]] for method, of in on_test.items()},
        "vectors": {str(n): int(index.store.offsets[-1]) / len(index) for n, index in indexes.items()},
        "needed": needed,
    }


def values(run: Run, split: Split) -> list[float]:
    return per_query(run, split.judgements, (NDCG,)).values[NDCG].tolist()


def systems_of(
    idf: Float[np.ndarray, " v"],
    weights: Mapping[str, Float[np.ndarray, " v"]],
    worths: Mapping[str, Float[np.ndarray, " t"]],
    offsets: Int[np.ndarray, " n1"],
) -> Systems:
    """Return every method with each value of its free number; "" if it has none."""

    def weighing(table: np.ndarray) -> Scores:
        return lambda each: weighted(table[each.ids], each.maxima())

    def keeping(stays: np.ndarray) -> Scores:
        return lambda each: each.maxima(stays).mean(0)

    def divided(b: float) -> Scores:
        return lambda each: each.maxima().mean(0) * each.lengths**-b

    def softened(tau: float) -> Scores:
        return lambda each: soft(each, tau)

    def mean(each: Candidates) -> np.ndarray:
        return each.maxima().mean(0)

    systems: Systems = {
        "MaxSim": {"": (1, mean)},
        "soft maximum": {f"τ = {tau:g}": (1, softened(tau)) for tau in SOFT},
        "divided by length^b": {f"b = {b:g}": (1, divided(b)) for b in POWERS},
        "IDF weights": {"": (1, weighing(idf))},
        "learned weights": {name: (1, weighing(table)) for name, table in weights.items()},
    }
    for n, share in SHARES.items():
        systems[f"{share}, pooled"] = {"": (n, mean)}
        for way, worth in worths.items():
            systems[f"{share}, {way}"] = {"": (1, keeping(largest(worth, offsets, n)))}
    return systems


def examples_of(paradigm: Paradigm, index: Index, split: Split, pool: Run) -> Iterator[Example]:
    for query, each in candidates_of(paradigm, index, split, pool):
        judged = split.judgements.get(query, {})
        relevant = np.array([judged.get(id, 0) > 0 for id in index.store.names(each.rows)])
        if relevant.any():
            yield Example(each.ids, each.maxima(), relevant)


def values_of(
    paradigm: Paradigm, indexes: Mapping[int, Index], split: Split, pool: Run, systems: Systems
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[float]]]:
    """Return method -> value of its free number -> nDCG@10 of each query, and `needed_products` by bound."""
    runs: dict[tuple[str, str], Run] = {
        (method, value): {} for method in systems for value in systems[method]
    }
    needed: dict[str, list[float]] = {"of unit vectors": [], "of the best candidate": []}
    for pooling, index in indexes.items():
        for query, each in candidates_of(paradigm, index, split, pool):
            for (method, value), run in runs.items():
                own, scores = systems[method][value]
                if own == pooling:
                    run[query] = best_documents(index, each.rows, scores(each), FIRST)
            if pooling == 1:
                maxima = each.maxima()
                for name, bounds in zip(needed, (np.ones(len(maxima)), maxima.max(1)), strict=True):
                    needed[name].append(needed_products(maxima, each.lengths, bounds))
    measured: dict[str, dict[str, list[float]]] = {method: {} for method in systems}
    for (method, value), run in runs.items():
        measured[method][value] = values(run, split)
    return measured, needed


def section(name: str, measured: Measured) -> Section:
    """Make a collection's table: each method beside its control, one family of tests."""
    of = {system: np.array(each) for system, each in measured["values"].items()}
    tests = holm([paired_test(of[method], of[control]) for method, control in PAIRS])
    rows = []
    for (method, control), p in zip(PAIRS, tests, strict=True):
        vectors = measured["vectors"]["1"]
        for n, share in SHARES.items():
            if method.startswith(share):
                vectors = measured["vectors"][str(n)]
        rows.append(
            {
                "method": method,
                "chosen": measured["chosen"][method],
                "vectors/document": round(vectors, 1),
                NDCG: shown(seeds_interval(of[method][None])),
                "control": control,
                "difference": shown(seeds_interval((of[method] - of[control])[None]), "+"),
                "p (Holm)": f"{p:.4f}",
            }
        )
    exits = " and ".join(
        f"{np.mean(each):.0%} with bounds {bound}" for bound, each in measured["needed"].items()
    )
    text = f"{len(of['MaxSim']):,} test queries. An exact early exit needs, of MaxSim's products, {exits}."
    return Section(f"Methods on {name}", text, rows)


def measure_exit(paradigm: Paradigm, data: StudyData, settings: Settings, precision: str) -> Measured:
    """Time MaxSim's first documents with and without an early exit, from float16 vectors and residual codes.

    All query tokens at once, without an exit, is the twin that every early exit must equal.
    """
    test = data.test.only(hash_order(data.test.queries)[:TIMED])
    pool = candidates(data.bm25.search(test.queries, settings.depth), settings.depth)
    corpus = data.collection.corpus.only(id for row in pool.values() for id in row)
    store = Store.build(kinds.exact(), paradigm, corpus.ids, corpus, precision=precision)
    measured: Measured = {}
    for name, kept in {"float16": store, "4 bits": store.copy(kinds.compressed())}.items():
        for query in pool:
            encoded = paradigm.encode_queries([test.queries[query]]).to("cpu")
            Q = encoded.vectors[0, 0][encoded.mask[0, 0]].float().numpy()
            rows = kept.positions(list(pool[query]))
            lengths = np.diff(kept.offsets)[rows]
            rows, lengths = rows[lengths > 0], lengths[lengths > 0]
            if len(rows) <= FIRST or not len(Q):
                continue
            tokens = np.concatenate([np.arange(*kept.offsets[row : row + 2]) for row in rows])
            clock = time.perf_counter()
            D = kept.decoded(tokens)["vectors"].astype(np.float32)
            measured.setdefault(f"{name}, reading", []).append((time.perf_counter() - clock, 0.0))
            expected = early_exit(Q, D, lengths, len(Q))[0]
            for block in (len(Q), *BLOCKS):
                taken = []
                for _ in range(3):
                    clock = time.perf_counter()
                    first, products = early_exit(Q, D, lengths, block)
                    taken.append(time.perf_counter() - clock)
                assert np.allclose(np.sort(first[1]), np.sort(expected[1]), atol=1e-5), "the exit is exact"
                way = "MaxSim" if block == len(Q) else f"exit after each {block}"
                measured.setdefault(f"{name}, {way}", []).append((min(taken), products))
    return measured


def early_exit(
    Q: Float[np.ndarray, "j h"], D: Float[np.ndarray, "t h"], lengths: Int[np.ndarray, " n"], block: int
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """Return MaxSim's first documents with their scores, and the share of its products that they needed.

    The first candidates are scored in full. Of the others, `block` query tokens are scored at a time; a
    document whose sum, plus 1 for each remaining token, is below the last of the first documents, leaves.
    Vectors have norm 1, so no document that belongs to the first leaves.
    """
    ends = np.cumsum(lengths)
    head = ends[FIRST - 1]
    full = len(Q) <= block
    products = 0
    scores = np.full(len(lengths), -np.inf, np.float32)
    last = -np.inf
    alive = np.arange(len(lengths))
    if not full:
        scores[:FIRST] = np.maximum.reduceat(Q @ D[:head].T, ends[:FIRST] - lengths[:FIRST], axis=1).sum(0)
        last = scores[:FIRST].min()
        products = int(head) * len(Q)
        D = D[head:]
        alive = alive[FIRST:]
    sums = np.zeros(len(alive), np.float32)
    sizes = lengths[alive]
    for place in range(0, len(Q), block):
        part = Q[place : place + block]
        starts = np.cumsum(sizes) - sizes
        sums = sums + np.maximum.reduceat(part @ D.T, starts, axis=1).sum(0)
        products += len(D) * len(part)
        stays = sums + (len(Q) - place - len(part)) >= last
        if not stays.all():
            D = D[np.repeat(stays, sizes)]
            alive, sums, sizes = alive[stays], sums[stays], sizes[stays]
        if not len(alive):
            break
    scores[alive] = sums
    best = np.argsort(-scores, kind="stable")[:FIRST]
    return (best, scores[best]), products / (int(lengths.sum()) * len(Q))


def exit_section(name: str, measured: Measured) -> Section:
    """Make a table of milliseconds and products per query."""
    rows = []
    for way, each in measured.items():
        seconds, products = np.array(each).T
        rows.append(
            {
                "step": way,
                "ms/query": f"{1000 * seconds.mean():.3f}",
                "of MaxSim's products": f"{products.mean():.1%}",
            }
        )
    text = (
        f"Exact: the first {FIRST} of BM25's first documents, of {len(each):,} queries. exit after each b: "
        "documents are dropped after every b query tokens if they can no longer be among the first. reading: "
        "vectors of all candidates from the store. One thread, the fastest of three runs."
    )
    return Section(f"Early exit on {name}", text, rows)


MEASUREMENTS: dict[str, Callable[[Paradigm, StudyData, Settings, str], Measured]] = {
    "values": measure,
    "attention": measure_attention,
    "early exit": measure_exit,
}
