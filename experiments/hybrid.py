"""What do vectors, words and both together retrieve, and what does reranking add?

Luan et al. 2021 (TACL), §7, Tables 1 and 2, Figure 6: DE-BERT and ME-BERT before and after a round of
hard-negative mining, BM25, hybrids of these systems, and cross-attention over the first candidates of every
system. The training round, BM25's terms and λ are chosen on dev queries. Seeds may be added to a results
folder.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from studies.settings import BackboneStudy, Lengths, Queries, at_least, different, launch

from paradigms.io.command_line import flags


@flags(documents=2000, steps=200, negatives=3, learning_rate=5e-5, trained_layers=0, queries=200)
class Settings(BackboneStudy, Lengths, Queries):
    """Settings for models, collection, retrieval and reranking."""

    vectors: int = 3
    """m, the number of vectors per document of ME-BERT; the paper has 3 for passages and 4 for documents"""
    normalize: bool = False
    """compare by cosine instead of the paper's inner product"""
    rerank_steps: int = 400
    """training steps of cross-attention, which trains all layers"""
    rerank_negatives: int = 7
    """hard negatives per query for cross-attention, from BM25's first 100"""
    dev_queries: int = 200
    """dev queries for selection, drawn at random; 0: all"""
    depth: int = 100
    """documents that each system retrieves; a hybrid's candidates are the documents of both the dense and
    the sparse system"""
    rerank_depths: list[int] = field(default_factory=lambda: [2, 5, 10, 20, 50])
    """numbers of documents that cross-attention reranks per query, from the first on"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "seeds", "rerank_depths")
        at_least(self, rerank_depths=1, vectors=1, steps=1, negatives=1, depth=1)
        at_least(self, rerank_steps=1, rerank_negatives=1)
        if max(self.rerank_depths) > self.depth:
            raise SystemExit(
                f"rerank_depths reach {max(self.rerank_depths)}, but only {self.depth} are retrieved: "
                "set a larger depth"
            )


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from papers.luan2021.hybrid_claims import DENSE, MEASURES, RR, SPARSE, HybridStudy, hybrid_name
from studies.gains import DEV
from studies.model_runs import (
    Job,
    StudyData,
    bind,
    open_study,
    run_jobs,
    trained_once,
    training_of,
    values_of,
)
from studies.pages import Measured, publish, resampled
from studies.settings import lengths_of, training_fields

from paradigms import PARADIGMS, CrossAttention, load
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Run, Split, best_first
from paradigms.evaluate import per_query
from paradigms.evaluate.tuning import tune_raw
from paradigms.retrieve import Fused, Indexed, Reranking, Retriever, fuse, union
from paradigms.train.loop import TrainingSettings
from paradigms.train.negatives import NEGATIVES_DEPTH, mine
from paradigms.train.script import begin

# Pooling of DE-BERT's vectors and ME-BERT's query. The paper has cls, but all-MiniLM-L6-v2 was trained with
# mean: with cls, its first vector wins every maximum of ME-BERT.
POOLING = "mean"
RERANKER = "cross_attention"
RERANK_BATCH = 8
FIRST = "first"  # name of the round that starts from the backbone
# Later rounds start from its result and have as many steps: again, with BM25's negatives as before; mined,
# with hard negatives that the model retrieves.
ROUNDS = (FIRST, "again", "mined")


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    data = open_study(settings, accelerator, console, ("training", "dev", "test"))
    bound = {"fingerprint": data.collection.fingerprint, "pooling": POOLING}
    bind(settings, accelerator, ["seeds"], ["backbone"], **bound)
    jobs = []
    for seed in settings.seeds:
        file = folder_of(seed, settings) / "measured.json"
        work = partial(trained, seed, data), partial(measure, seed, data)
        jobs.append(Job(f"{data.collection.name}, seed {seed}", file, *work))
    results = run_jobs(jobs, settings, accelerator, console)
    if accelerator.is_main_process:
        summary = (
            f"{len(data.test.queries)} test queries over {len(data.collection.corpus):,} documents; seeds "
            f"{settings.seeds}. Every model comes from {settings.backbone} and learns from "
            f"{len(data.train.queries):,} queries: the dense ones in rounds of {settings.steps} steps of "
            f"{settings.batch_size} queries, cross-attention in {settings.rerank_steps} of "
            f"{RERANK_BATCH}. Intervals (95%) resample {resampled(len(settings.seeds))}."
        )
        sections = HybridStudy(results).sections(settings.vectors)
        publish(settings, "Sparse, dense, hybrid", summary, sections, accelerator)
    accelerator.end_training()


def folder_of(seed: int, settings: Settings) -> Path:
    return Path(settings.output) / f"seed-{seed}"


def trained(seed: int, data: StudyData) -> dict[tuple[str, str], Any]:
    """Return {(name, round): model} for a seed. Models already in the seed's folder are not trained again."""
    folder = folder_of(seed, data.settings)
    rounds = [(name, round) for round in ROUNDS for name in DENSE]
    models: dict[tuple[str, str], Any] = {}
    for name, round in [*rounds, (RERANKER, FIRST)]:
        make = partial(start, name, round, folder, data.settings)
        go_on = partial(train, name, round, seed, data)
        models[name, round] = trained_once(folder / f"{name}-{round}", seed, make, go_on, data.accelerator)
    return models


def start(name: str, round: str, folder: Path, settings: Settings) -> Any:
    """Return the model from which a round starts: a new model, or the result of the first round."""
    if round != FIRST:
        return load(folder / f"{name}-{FIRST}" / "checkpoint")
    same: dict[str, Any] = lengths_of(settings) | {"pooling": POOLING}
    if name == RERANKER:
        return cross_attention(settings.backbone, **same)
    several = {"vectors": settings.vectors} if name == "me_bert" else {}
    return PARADIGMS[name](settings.backbone, normalize=settings.normalize, **same, **several)


def train(name: str, round: str, seed: int, data: StudyData, model: Any, folder: Path) -> Any:
    settings: Settings = data.settings
    mined = data.mined
    count = settings.negatives
    if round == "mined":
        precision = data.accelerator.mixed_precision
        mined = mine(model, data.collection.corpus, data.train, NEGATIVES_DEPTH, precision=precision)
    options = training_fields(settings) | {"save_every": 100}
    if name == RERANKER:
        options |= {"steps": settings.rerank_steps, "batch_size": RERANK_BATCH, "trained_layers": 0}
        count = settings.rerank_negatives
    # Queries come in a different order than in the previous round.
    training_settings = TrainingSettings(**options, seed=seed if round == FIRST else seed + 1_000)
    dev_queries = settings.dev_queries or len(data.dev.queries)
    return data.fit(model, training_settings, folder, count, mined=mined, dev_queries=dev_queries)


def measure(seed: int, data: StudyData, models: dict[tuple[str, str], Any]) -> Measured:
    """Measure a seed's systems on the test queries, using the choices made on dev queries."""
    settings: Settings = data.settings
    precision = data.accelerator.mixed_precision
    test = data.test
    depth = settings.depth
    corpus = data.collection.corpus
    dev = data.dev_sample
    sparse = dict(zip(SPARSE, (data.bm25, BM25(corpus, ngrams=2)), strict=True))
    dense: dict[str, dict[str, Retriever]] = {system: {} for system in DENSE.values()}
    on_dev: dict[str, Any] = {system: {} for system in dense}
    on_dev |= {name: rr(retriever.search(dev.queries, depth), dev) for name, retriever in sparse.items()}
    for (name, round), model in models.items():
        if name != RERANKER:
            retriever = Indexed.build(model, corpus, precision=precision)
            dense[DENSE[name]][round] = retriever
            on_dev[DENSE[name]][round] = rr(retriever.search(dev.queries, depth), dev)
    chosen = {system: max(on_dev[system], key=on_dev[system].__getitem__) for system in dense}
    runs = {name: retriever.search(test.queries, depth) for name, retriever in sparse.items()}
    runs |= {system: dense[system][round].search(test.queries, depth) for system, round in chosen.items()}
    weights = {}
    for system, round in chosen.items():
        for name, lexical in sparse.items():
            both = [dense[system][round], lexical]
            hybrid = hybrid_name(system, name)
            fused = Fused(both, method="raw", depth=depth)
            first, second = fused.runs(dev.queries)
            λ = tune_raw(first, second, dev, measure=RR)
            runs[hybrid] = fuse(fused.runs(test.queries), (1.0, λ), "raw")
            weights[hybrid] = {"round": round, "λ": λ}
    measurements: Measured = {"seed": seed, "queries": data.measured_queries}
    measurements |= {"dev": on_dev, "weights": weights}
    measurements["retrieve"] = {system: values_of(run, test, MEASURES) for system, run in runs.items()}
    measurements["training"] = {
        DENSE.get(name, name): dev_change(name, chosen.get(DENSE.get(name, name), FIRST), seed, settings)
        for name in (*DENSE, RERANKER)
    }
    reranker = models[RERANKER, FIRST]
    return measurements | {"rerank": depth_values(reranker, runs, settings.rerank_depths, data, precision)}


def dev_change(name: str, round: str, seed: int, settings: Settings) -> Measured:
    """Return `training_of` of a round, with dev values from before the first round and after this one."""
    first, last = (training_of(folder_of(seed, settings) / f"{name}-{r}") for r in (FIRST, round))
    return last | {DEV: {"untrained": first[DEV]["untrained"], "trained": last[DEV]["trained"]}}


def depth_values(
    reranker: CrossAttention, runs: Mapping[str, Run], depths: list[int], data: StudyData, precision: str
) -> Measured:
    """Return system → depth → RR@10 of each query when only the first `depth` documents are reranked."""
    queries = data.test.queries
    corpus = data.collection.corpus
    heads = {s: {q: best_first(run[q], max(depths)) for q in run} for s, run in runs.items()}
    # A score depends only on the (query, document) pair, so one pass over all candidates serves every system.
    reranking = Reranking(reranker, corpus, precision=precision)
    scores = reranking.rerank(queries, union(*heads.values()), progress=True)

    def anew(run: Run, depth: int) -> Run:
        return {q: {d: scores[q][d] for d in best_first(run[q], depth)} for q in run}

    return {
        system: {str(n): values_of(anew(run, n), data.test, (RR,))[RR] for n in depths}
        for system, run in heads.items()
    }


def rr(run: Run, split: Split) -> float:
    return per_query(run, split.judgements, (RR,)).mean(RR)
