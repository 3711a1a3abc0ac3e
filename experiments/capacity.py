"""What do fixed-length encodings lose as passages get longer? Luan et al. 2021: Figures 1, 4, Table A.1.

DE-BERT-k, ME-BERT(-k) and cross-attention are trained for each passage length and seed. These systems, the
untrained encoder (BERT-INIT), BM25, and hybrids with BM25 rerank 200 candidates and search all passages, for
the same queries. The report compares the systems with the theory's prediction for a random projection of
BM25's vectors to the same number of dimensions. The task is to find the passage that contains the query (§5);
commit cfb7fa20 also has the task of §6, passages that contain an answer. Systems, lengths and seeds may be
added to a results folder.
"""

import re
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from studies.settings import BackboneStudy, at_least, different, launch, refusing, training_fields

from paradigms.io.command_line import flags, folder_name
from paradigms.train.checkpoints import STATES, TRAINED

SYSTEM = re.compile(r"(?!DE.*x)(DE|ME)-BERT(?:-([1-9]\d*))?(?:x([1-9]\d*))?")
# INIT: the backbone before training, mean of tokens
CROSS = "CROSS-ATTENTION"
INIT = "BERT-INIT"
SINGLE = ("DE-BERT-32", "DE-BERT-64", "DE-BERT-128", "DE-BERT-512", "DE-BERT")


@flags(steps=1000, negatives=1, learning_rate=5e-5, trained_layers=0)
class Settings(BackboneStudy):
    """Settings for the task, the systems, their training, and the prediction."""

    lengths: list[int] = field(default_factory=lambda: [50, 100, 200, 400])
    """maximum tokens per passage, counted by the backbone's tokenizer: multiples of the smallest"""
    longest: int = 0
    """tokens of the passages in which passages of all lengths are nested; lengths up to it may be added to a
    results folder; 0: the greatest of `lengths`"""
    systems: list[str] = field(default_factory=lambda: [*SINGLE, "ME-BERT-64", "ME-BERT", CROSS, INIT])
    """any of DE-BERT-k, ME-BERT-k (without -k: the backbone's width), ME-BERT-kxm (m vectors),
    CROSS-ATTENTION and BERT-INIT"""
    hybrids: list[str] = field(default_factory=lambda: ["DE-BERT", "ME-BERT"])
    """systems to combine with BM25-uni and with BM25-bi"""
    vectors: int = 8
    """m, the number of vectors per document of ME-BERT, unless its name has another"""
    train_queries: int = 3000
    dev_queries: int = 200
    """dev queries for tuning a hybrid's weight"""
    test_queries: int = 500
    passages: int = 0
    """number of passages at every length; 0: all, which are fewer at greater lengths"""
    distractors: int = 2
    """passages per query that differ from it in one or two words"""
    depth: int = 200
    """candidates to rerank, half of them BM25's first and the relevant ones, half random; also the number of
    passages to retrieve"""
    query_length: int = 32
    keep_models: bool = False
    """keep the trained models, one for each system, length and seed"""
    theory_queries: int = 100
    """test queries for the prediction of a random projection"""
    samples: int = 64
    """Gaussian vectors per query for the prediction"""

    def __post_init__(self) -> None:
        for name, kinds in (("systems", [CROSS, INIT]), ("hybrids", [])):
            for system in getattr(self, name):
                if system not in kinds and not SYSTEM.fullmatch(system):
                    systems = ", ".join(
                        ["DE-BERT-k", "ME-BERT-k", "ME-BERT-kxm", "all also without -k", *kinds]
                    )
                    raise SystemExit(f"{name}: unknown {system}; there are {systems}")
        different(self, "systems", "seeds", "lengths")
        at_least(self, depth=2, samples=2, negatives=int(CROSS in self.systems), vectors=1, theory_queries=1)
        at_least(self, train_queries=1, dev_queries=1, test_queries=1, steps=1, batch_size=1)
        at_least(self, lengths=1, distractors=0)
        self.lengths = sorted(self.lengths)
        self.longest = self.longest or self.lengths[-1]
        self.output = self.output or f"results/capacity-containing-{folder_name(self.collection)}"


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
from accelerate import Accelerator
from papers.luan2021.capacity_claims import CapacityStudy
from papers.luan2021.capacity_tasks import RR, UNI, PassageTask, open_task, predict
from papers.luan2021.containing_passage import containing_passages
from papers.luan2021.passages import articles
from studies.model_runs import Job, bind, measured_once, run_jobs, trained_once, training_of
from studies.pages import Measured, publish, resampled

from paradigms import PARADIGMS, RERANKERS, Paradigm
from paradigms.data import Collection, Corpus
from paradigms.encoder.backbone import load_tokenizer
from paradigms.encoder.sources import packaged
from paradigms.evaluate.tuning import tune_raw
from paradigms.io.files import remove_folder
from paradigms.retrieve import Fused, Model, Retriever, fuse, retriever_of
from paradigms.train.fit import fit, keep_states
from paradigms.train.loop import TrainingSettings
from paradigms.train.script import begin, open_collection

SPREAD = 64  # training queries, and evenly spaced passages, for measuring the spread of scores
# settings of commit cfb7fa20, in the folders that it began
BOUND: dict[str, Any] = {"task": "containing", "tokens": 400}
POOLING = "mean"  # pooling to one vector, as in all-MiniLM-L6-v2; the paper has cls


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    collection = open_collection(settings.collection, settings.documents or None, console)
    bound: dict[str, Any] = {"fingerprint": collection.fingerprint, "pooling": POOLING}
    bound["shortest"] = settings.lengths[0]
    bind(settings, accelerator, ("systems", "seeds", "lengths", "keep_models"), **bound, **BOUND)
    with refusing():
        tasks = open_tasks(settings, collection)
    jobs = [
        job(task, seed, name, settings, accelerator)
        for task in tasks
        for seed in settings.seeds
        for name in settings.systems
        if seed == settings.seeds[0] or name != INIT  # the same for all seeds
    ]
    results = run_jobs(jobs, settings, accelerator, console)
    results += [result for result in results if result["system"] == INIT for _ in settings.seeds[1:]]
    if accelerator.is_main_process:
        results = [lexical(task, settings.depth) for task in tasks for _ in settings.seeds] + results
        encoders = [result for result in results if result["numbers"] and result["system"] != INIT]
        sizes = {result["system"]: result["numbers"] for result in encoders}
        predictions = {task.length: predicted(task, sizes, settings) for task in tasks}
        study = CapacityStudy(settings.lengths, results, predictions, sizes)
        counts = {name: len(split.queries) for name, split in tasks[0].collection.splits.items()}
        passages = (f"{len(task.collection.corpus):,} of {task.length} tokens" for task in tasks)
        summary = (
            f"{counts['test']} test queries, the same at all lengths; passages: {', '.join(passages)}. Every "
            f"neural system comes from {settings.backbone} and learned from {counts['train']:,} queries in "
            f"{settings.steps} steps of {settings.batch_size}, with {settings.negatives} negative(s) each, "
            f"once for every length and seed. Intervals (95%) resample {resampled(len(settings.seeds))}."
        )
        title = "Passage length and capacity: the passage that contains the query"
        publish(settings, title, summary, study.sections(), accelerator)
    accelerator.end_training()


def open_tasks(settings: Settings, collection: Collection) -> list[PassageTask]:
    """Open the task for every passage length."""
    tokenizer = load_tokenizer(packaged(settings.backbone))
    counts = {"train": settings.train_queries, "dev": settings.dev_queries, "test": settings.test_queries}
    passages = containing_passages(
        articles(under_titles(collection.corpus)),
        counts,
        lengths=settings.lengths,
        longest=settings.longest,
        passages=settings.passages or None,
        distractors=settings.distractors,
        tokenizer=tokenizer,
    )
    return [open_task(n, cut, settings.depth, Path(settings.output)) for n, cut in passages.items()]


def under_titles(corpus: Corpus) -> Corpus:
    """Return the corpus; if all titles differ, ids up to the first colon replace them.

    Consecutive texts with the same title will be joined.
    """
    if len(set(corpus.titles)) < len(corpus):
        return corpus
    return Corpus(corpus.ids, corpus, [id.partition(":")[0] for id in corpus.ids])


def job(task: PassageTask, seed: int, name: str, settings: Settings, accelerator: Accelerator) -> Job:
    folder = Path(settings.output) / f"length-{task.length}" / f"seed-{seed}" / name
    states = Path(settings.output) / f"length-{task.length}" / STATES

    def train(model: Any, training: Path) -> Any:
        options = training_fields(settings) | {"head_learning_rate": 1e-3, "save_every": 200, "seed": seed}
        options |= {"trained_layers": 0} if name == CROSS else {}
        training_settings = TrainingSettings(
            **options, temperature=1.0 if name == CROSS else temperature(model, task)
        )
        return fit(
            model,
            task.collection,
            (task.collection.split("train"), task.collection.split("dev")),
            (task.mined, task.dev_run),
            settings.negatives,
            settings.dev_queries,
            training_settings,
            training,
            accelerator,
            states=states,
        )

    def prepare() -> Any:
        make = partial(build, name, task.length, settings)
        untrained = name == INIT
        if untrained:
            model = make().to(accelerator.device).eval()
        else:
            model = trained_once(folder, seed, make, train, accelerator)
        if settings.trained_layers and name != CROSS:
            texts: dict[Any, Any] = {"document": task.collection.corpus}
            keep_states(model, settings.trained_layers, states, texts, accelerator)
        return model

    def measure_model(model: Any) -> Measured:
        numbers = 0 if name == CROSS else model.encoder.dim * vectors_of(name, settings)
        measurements = {"system": name, "length": task.length, "seed": seed, "numbers": numbers}
        measurements |= training_of(folder)  # dev values, untrained and trained
        measurements |= measure(model, name, task, settings, accelerator.mixed_precision)
        if not settings.keep_models:
            remove_folder(folder, TRAINED)
        return measurements

    title = f"{task.collection.name}, seed {seed}, {name}"
    return Job(title, folder.with_name(f"{name}.json"), prepare, measure_model, states)


def build(name: str, length: int, settings: Settings) -> Model:
    """Make an untrained system that reads whole passages of `length` tokens."""
    backbone = packaged(settings.backbone)
    special = load_tokenizer(backbone).num_special_tokens_to_add()
    common: dict[str, Any] = {"query_length": settings.query_length, "document_length": length + special}
    common["pooling"] = POOLING
    if name == CROSS:
        return RERANKERS["cross_attention"](settings.backbone, **common)
    common["normalize"] = False
    match = SYSTEM.fullmatch(name)
    if match and match[2]:
        common |= {"dim": int(match[2]), "layer_norm": True}
    if match and match[1] == "ME":
        return PARADIGMS["me_bert"](settings.backbone, vectors=vectors_of(name, settings), **common)
    return PARADIGMS["dpr"](settings.backbone, **common)


def vectors_of(name: str, settings: Settings) -> int:
    """Return the number of vectors per document of a system that encodes documents.

    >>> [vectors_of(name, Settings()) for name in ("DE-BERT-32", "ME-BERT", "ME-BERT-48x64")]
    [1, 8, 64]
    """
    match = SYSTEM.fullmatch(name)
    if match is None or match[1] == "DE":
        return 1
    return int(match[3] or settings.vectors)


def temperature(model: Paradigm, task: PassageTask) -> float:
    """τ for the softmax, set to the spread of the untrained system's scores for a training query.

    Inner products spread by √k or more if vectors are layer-normed, and less if vectors are means of many
    tokens. With one temperature for all systems, the softmax would start saturated for one system and flat
    for another, and a short training would mostly measure this difference. For cross-attention, τ = 1: the
    head starts near 0 and learns its scale.
    """
    train = task.collection.split("train")
    corpus = task.collection.corpus
    passages = np.linspace(0, len(corpus) - 1, SPREAD).astype(int).tolist()
    documents = model.encode_documents([corpus[n] for n in passages])
    scores = model.score(documents, model.encode_queries(list(train.queries.values())[:SPREAD]))
    # Round τ, because a run may resume on a machine whose sums differ in the last bits.
    return float(f"{float(scores.std(-1).mean()):.2g}")


def measure(model: Model, name: str, task: PassageTask, settings: Settings, precision: str) -> dict[str, Any]:
    """Return a model's measurements: "stages" (system -> stage -> query values), "weights" (hybrid -> λ)."""
    corpus = task.collection.corpus
    queries = task.collection.split("test").queries
    retriever = retriever_of(model, corpus, precision=precision, progress=True)
    if name == CROSS:
        run = retriever.rerank(queries, task.pool, progress=True)
        return {"stages": {name: {"rerank": task.values(run)}}, "weights": {}}
    stages = {name: both_stages(task, retriever, settings.depth)}
    weights: dict[str, float] = {}
    for sparse, bm25 in task.bm25.items() if name in settings.hybrids else ():
        hybrid = f"HYBRID-{name}-{sparse.removeprefix('BM25-')}"
        fused = Fused([retriever, bm25], method="raw", depth=settings.depth)
        dev = task.collection.split("dev")
        of_model, of_bm25 = fused.runs(dev.queries)
        weight = tune_raw(of_model, of_bm25, dev, measure=RR)
        run = fuse(fused.runs(queries), (1.0, weight), "raw")
        stages[hybrid] = {"retrieve": task.values(run)}
        weights[hybrid] = weight
    return {"stages": stages, "weights": weights}


def both_stages(task: PassageTask, retriever: Retriever, depth: int) -> dict[str, list[float]]:
    queries = task.collection.split("test").queries
    reranked = retriever.rerank(queries, task.pool)
    run = retriever.search(queries, depth)
    return {"rerank": task.values(reranked), "retrieve": task.values(run)}


def lexical(task: PassageTask, depth: int) -> dict[str, Any]:
    """Measure both variants of BM25; the result has the same keys as the results of trained systems."""
    stages = {name: both_stages(task, bm25, depth) for name, bm25 in task.bm25.items()}
    return {"system": UNI, "length": task.length, "numbers": 0, "stages": stages}


def predicted(task: PassageTask, sizes: dict[str, int], settings: Settings) -> dict[str, Any]:
    """Run `predict` for every size, and save the predictions in the results folder."""
    file = Path(settings.output) / f"length-{task.length}" / "theory.json"
    dimensions = sorted(set(sizes.values()))
    measure = partial(predict, task, dimensions, settings.theory_queries, settings.samples)
    return measured_once(file, {"dimensions": dimensions}, measure)
