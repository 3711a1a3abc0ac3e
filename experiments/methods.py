"""Measure what recent methods add to MaxSim if the token vectors stay as they are.

BM25's first documents are ranked by MaxSim and by methods that change one part of the formula: A (a soft
maximum), Z (the document's length), the weights of query tokens (IDF), and D (fewer tokens). Dev queries
choose every free number, and each method stands beside its control. SPLADE's first documents are compared
with BM25's, before and after MaxSim (arXiv:2601.05200). Collections and parts may be added to a results
folder.
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
    check_names,
    different,
    launch,
    lengths_of,
)

from paradigms.io.command_line import flags

PARTS = ("methods", "first-stages")


@flags()
class Settings(Results, Collections, Documents, Backbone, Lengths, Queries, Seed):
    """Settings for the encoder, collections and candidates."""

    parts: list[str] = field(default_factory=lambda: [*PARTS])
    """what to measure: methods, first-stages"""
    splade: str = "offline-splade"
    """SPLADE by hub name or folder, the other first stage"""
    depth: int = 100
    """documents per query that a first stage retrieves and every method ranks"""
    dev_queries: int = 200
    """dev queries, drawn by a hash"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "collections")
        check_names(self, "parts", PARTS)
        at_least(self, depth=11, dev_queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import torch
from jaxtyping import Float, Int
from papers.implicit_idf.floors import weighted
from papers.lee2023.token_measures import best_documents, stored_ids
from studies.gains import differences
from studies.model_runs import Job, StudyData, bind, bind_collection, open_study, run_jobs
from studies.pages import Measured, Section, publish

from paradigms import PARADIGMS, Paradigm
from paradigms.colbert import colbert
from paradigms.data import Run, Split
from paradigms.data.collection import hash_order
from paradigms.encoder.sources import original
from paradigms.evaluate import candidates, per_query
from paradigms.find import Index, Store, kinds
from paradigms.io.command_line import folder_name
from paradigms.io.progress import progress_bar
from paradigms.retrieve import Indexed, union
from paradigms.train.script import begin

NDCG = "nDCG@10"
SOFT = (0.01, 0.02, 0.05, 0.1)  # τ of the soft maximum, in units of cosine
POWERS = (0.02, 0.05, 0.1, 0.2)  # b of Z = N · length^b
SHARES = {2: "half of the tokens", 4: "a quarter of the tokens"}
CONTROLS = {  # method -> its control
    "MaxSim": "bm25",
    "soft maximum": "MaxSim",
    "divided by length^b": "MaxSim",
    "IDF weights": "MaxSim",
}
for share in SHARES.values():
    CONTROLS |= {f"{share}, {way}": "MaxSim" for way in ("first", "random")}
    CONTROLS |= {f"{share}, {way}": f"{share}, random" for way in ("rare", "pooled")}


@dataclass(frozen=True)
class Candidates:
    """One query's candidates in an index, in BM25's order.

    rows: positions of the documents. ids: of the query's tokens. tokens: places of the documents' tokens in
    the index. starts: where each document begins among them. S: similarities.
    """

    rows: Int[np.ndarray, " n"]
    ids: Int[np.ndarray, " j"]
    tokens: Int[np.ndarray, " t"]
    starts: Int[np.ndarray, " n"]
    S: Float[np.ndarray, "j t"]

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        return np.diff(self.starts, append=len(self.tokens))

    def maxima(self, stays: np.ndarray | None = None) -> Float[np.ndarray, "j n"]:
        """Return the maximum over i of S, of all tokens or of those at the places that stay in the index."""
        S = self.S if stays is None else np.where(stays[self.tokens], self.S, -np.inf)
        return np.maximum.reduceat(S, self.starts, axis=1)


def candidates_of(
    paradigm: Paradigm, index: Index, split: Split, pool: Run
) -> Iterator[tuple[str, Candidates]]:
    """Yield each query with its candidates; documents without tokens are left out."""
    store = index.store
    vectors = store.columns["vectors"]
    with progress_bar(True) as bar:
        for query in bar.track(list(pool), description="score candidates"):
            encoded = paradigm.encode_queries([split.queries[query]]).to("cpu")
            mask = encoded.mask[0, 0]
            rows = store.positions(list(pool[query]))
            rows = rows[np.diff(store.offsets)[rows] > 0]
            if not len(rows) or not mask.any():
                continue
            tokens = np.concatenate([np.arange(*store.offsets[row : row + 2]) for row in rows])
            lengths = np.diff(store.offsets)[rows]
            documents = torch.from_numpy(vectors[tokens].astype(np.float32))
            S = encoded.vectors[0, 0][mask].float() @ documents.T
            starts = np.cumsum(lengths) - lengths
            yield query, Candidates(rows, encoded.ids[0, 0][mask].numpy(), tokens, starts, S.numpy())


def maxsim(each: Candidates, stays: np.ndarray | None = None) -> Float[np.ndarray, " n"]:
    return each.maxima(stays).mean(0)


def divided(each: Candidates, b: float) -> Float[np.ndarray, " n"]:
    return maxsim(each) * each.lengths**-b


def soft(each: Candidates, tau: float) -> Float[np.ndarray, " n"]:
    """Return the mean over j of Σᵢ softmaxᵢ(S/τ) S."""
    exponents = np.exp((each.S - np.repeat(each.maxima(), each.lengths, axis=1)) / tau)
    sums = np.add.reduceat(exponents, each.starts, axis=1)
    return (np.add.reduceat(exponents * each.S, each.starts, axis=1) / sums).mean(0)


def largest(worth: np.ndarray, offsets: Int[np.ndarray, " n1"], n: int) -> np.ndarray:
    """Return which tokens stay: each document's ⌈length / n⌉ tokens of the largest worth."""
    lengths = np.diff(offsets)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((-worth, owners))
    stays = np.zeros(len(worth), dtype=bool)
    places = np.arange(len(worth)) - offsets[:-1][owners]
    stays[order[places < -(-lengths // n)[owners]]] = True
    return stays


Scores = Callable[[Candidates], Float[np.ndarray, " n"]]
Systems = dict[str, dict[str, tuple[int, Scores]]]  # method -> value of its free number -> pooling, scores


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    bind(settings, accelerator, {"collections", "parts"}, ("backbone", "splade"))
    sections = {}
    for collection in settings.collections:
        data = open_study(settings, accelerator, console, ("training", "dev", "test"), collection)
        name = folder_name(collection)
        bind_collection(data, Path(settings.output) / name)
        jobs = [job(name, part, data) for part in settings.parts]
        for part, result in zip(settings.parts, run_jobs(jobs, accelerator, console), strict=True):
            sections[f"{name}-{part}"] = MEASUREMENTS[part][1](name, result)
    summary = (
        f"ColBERT from {original(settings.backbone)}, not trained here, ranks the first {settings.depth} "
        f"documents of BM25 or SPLADE ({original(settings.splade)}), cut after {settings.document_length} "
        f"tokens. Up to {settings.dev_queries} dev queries choose the methods' free numbers."
    )
    publish(settings, "Methods on frozen token vectors", summary, sections, accelerator)
    accelerator.end_training()


def job(name: str, part: str, data: StudyData) -> Job:
    """Make the job that measures a part on one collection."""
    settings: Settings = data.settings

    def prepare() -> Paradigm:
        torch.manual_seed(settings.seed)
        return colbert(settings.backbone, **lengths_of(settings)).to(data.accelerator.device)

    def measure_model(paradigm: Paradigm) -> Measured:
        return MEASUREMENTS[part][0](paradigm.eval(), data)

    return Job(f"{name}, {part}", Path(settings.output) / name / f"{part}.json", prepare, measure_model)


def measure(paradigm: Paradigm, data: StudyData) -> Measured:
    """Measure each method's nDCG@10 on test queries, with the free numbers that dev queries choose."""
    settings: Settings = data.settings
    precision = data.accelerator.mixed_precision
    corpus = data.collection.corpus
    store = Store.build(kinds.exact(), paradigm, corpus.ids, corpus, precision=precision)
    indexes = {1: Index(store)} | {n: Index(store.copy(kinds.exact(), pool=n)) for n in SHARES}
    idf = paradigm.count_corpus(corpus).idf(torch.arange(len(paradigm.encoder.tokenizer))).numpy()

    def pool(split: Split) -> Run:
        return candidates(data.bm25.search(split.queries, settings.depth), settings.depth)

    dev = data.dev.only(hash_order(data.dev.queries)[: settings.dev_queries])
    ids = stored_ids(paradigm, indexes[1], corpus)
    drawn = np.random.default_rng(settings.seed).random(len(ids))
    worths = {"first": -np.arange(len(ids)), "random": drawn, "rare": idf[ids]}
    systems = systems_of(idf, worths, store.offsets)
    on_dev = values_of(paradigm, indexes, dev, pool(dev), systems)
    weights = {}
    for method, of in on_dev.items():
        means = {value: float(np.mean(each)) for value, each in of.items()}
        weights[method] = max(means, key=means.__getitem__)
    chosen = {method: {value: systems[method][value]} for method, value in weights.items()}
    on_test = values_of(paradigm, indexes, data.test, pool(data.test), chosen)
    return {
        "chosen": weights,
        "values": {"bm25": values(pool(data.test), data.test)}
        | {method: of[weights[method]] for method, of in on_test.items()},
        "vectors": {str(n): int(index.store.offsets[-1]) / len(index) for n, index in indexes.items()},
    }


def measure_stages(paradigm: Paradigm, data: StudyData) -> Measured:
    """Measure the first documents of BM25 and SPLADE, as they are and ranked by MaxSim: measure -> values."""
    settings: Settings = data.settings
    precision = data.accelerator.mixed_precision
    corpus = data.collection.corpus
    queries = data.test.queries
    splade = PARADIGMS["splade"](settings.splade, **lengths_of(settings)).to(paradigm.encoder.device).eval()
    with TemporaryDirectory() as work:
        sparse = Indexed.build(splade, corpus, Path(work, "splade"), precision=precision)
        runs = {"BM25": data.pool(settings.depth), "SPLADE": sparse.search(queries, settings.depth)}
        pool = corpus.only(id for row in union(*runs.values()).values() for id in row)
        ranker = Indexed.build(paradigm, pool, Path(work, "colbert"), precision=precision)
        ranked = {stage: ranker.rerank(queries, run) for stage, run in runs.items()}
    recall = f"R@{settings.depth}"
    return {
        recall: {stage: values(run, data.test, recall) for stage, run in runs.items()},
        NDCG: {stage: values(run, data.test) for stage, run in runs.items()},
        f"{NDCG} by MaxSim": {stage: values(run, data.test) for stage, run in ranked.items()},
    }


def values(run: Run, split: Split, measure: str = NDCG) -> list[float]:
    return per_query(run, split.judgements, (measure,)).values[measure].tolist()


def systems_of(
    idf: Float[np.ndarray, " v"],
    worths: Mapping[str, Float[np.ndarray, " t"]],
    offsets: Int[np.ndarray, " n1"],
) -> Systems:
    """Return every method with each value of its free number; "" if it has none."""
    systems: Systems = {
        "MaxSim": {"": (1, maxsim)},
        "soft maximum": {f"τ = {tau:g}": (1, partial(soft, tau=tau)) for tau in SOFT},
        "divided by length^b": {f"b = {b:g}": (1, partial(divided, b=b)) for b in POWERS},
        "IDF weights": {"": (1, lambda each: weighted(idf[each.ids], each.maxima()))},
    }
    for n, share in SHARES.items():
        systems[f"{share}, pooled"] = {"": (n, maxsim)}
        for way, worth in worths.items():
            systems[f"{share}, {way}"] = {"": (1, partial(maxsim, stays=largest(worth, offsets, n)))}
    return systems


def values_of(
    paradigm: Paradigm, indexes: Mapping[int, Index], split: Split, pool: Run, systems: Systems
) -> dict[str, dict[str, list[float]]]:
    """Return method -> value of its free number -> nDCG@10 of each query."""
    runs: dict[tuple[str, str], Run] = {
        (method, value): {} for method in systems for value in systems[method]
    }
    for pooling, index in indexes.items():
        for query, each in candidates_of(paradigm, index, split, pool):
            for (method, value), run in runs.items():
                conditions, scores = systems[method][value]
                if conditions == pooling:
                    run[query] = best_documents(index, each.rows, scores(each), 10)
    return {
        method: {value: values(runs[method, value], split) for value in of} for method, of in systems.items()
    }


def section(name: str, measurements: Measured) -> Section:
    """Make a collection's table: each method beside its control, one family of tests."""
    of = {system: np.array([each]) for system, each in measurements["values"].items()}
    tests = differences([(of[method], of[control]) for method, control in CONTROLS.items()])
    rows = []
    for (method, control), (difference, p) in zip(CONTROLS.items(), tests, strict=True):
        pooling = next((n for n, share in SHARES.items() if method.startswith(share)), 1)
        row = {"method": method, "chosen": measurements["chosen"][method]}
        row |= {"vectors/document": round(measurements["vectors"][str(pooling)], 1), NDCG: of[method]}
        rows.append(row | {"control": control, "difference": difference, "p (Holm)": f"{p:.4f}"})
    return Section(f"Methods on {name}", f"{of['MaxSim'].size:,} test queries.", rows)


def stages_section(name: str, measurements: Measured) -> Section:
    """Make a collection's table of first stages, one family of tests."""
    rows = []
    tests = differences([(of["SPLADE"], of["BM25"]) for of in measurements.values()])
    for (measure, of), (difference, p) in zip(measurements.items(), tests, strict=True):
        stages = {stage: np.array([of[stage]]) for stage in ("BM25", "SPLADE")}
        rows.append({"measure": measure} | stages | {"difference": difference, "p (Holm)": f"{p:.4f}"})
    return Section(f"First stages on {name}", f"{len(of['BM25']):,} test queries.", rows)


MEASUREMENTS = {"methods": (measure, section), "first-stages": (measure_stages, stages_section)}
