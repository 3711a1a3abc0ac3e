"""What do fixed-length encodings lose as passages get longer? Luan et al. 2021: Figures 4 and 5, Table A.1.

Trains DE-BERT-k, ME-BERT(-k) and cross-attention once for each passage length and seed, and measures them,
BM25, and hybrids of both on the same queries: reranking 200 candidates, and searching all passages. Beside
them: what theory expects of a random projection of BM25's vectors to as many numbers.

    python experiments/capacity.py --collection path/to/wikipedia_106
    python experiments/capacity.py --collection path/to/squad_v1_dev --task answers

Finished systems are not trained or measured again: systems and seeds may be added to a results folder.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from paradigms.io.settings import command_line, folder_name

SYSTEM = re.compile(r"(DE|ME)-BERT(?:-([1-9]\d*))?")
CROSS = "CROSS-ATTENTION"


@dataclass
class Settings:
    """Which systems are trained and measured on which passages."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER; for the task answers a
    folder with answers.jsonl besides"""
    task: Literal["containing", "answers"] = "containing"
    """containing: find the passage that contains the query; answers: find passages that contain an answer"""
    documents: int = 0
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    pooling: Literal["mean", "cls"] = "mean"
    """what a pooled vector is made of; the paper's is cls, all-MiniLM-L6-v2 has learned mean"""
    lengths: list[int] = field(default_factory=lambda: [50, 100, 200, 400])
    """tokens of the passages at most, of the backbone's tokenizer: multiples of the smallest"""
    systems: list[str] = field(
        default_factory=lambda: [
            *("DE-BERT-32", "DE-BERT-64", "DE-BERT-128", "DE-BERT-512", "DE-BERT"),
            *("ME-BERT-64", "ME-BERT", CROSS),
        ]
    )
    """of DE-BERT-k, ME-BERT-k (without -k: the backbone's own width) and CROSS-ATTENTION; besides BM25"""
    hybrids: list[str] = field(default_factory=lambda: ["DE-BERT", "ME-BERT"])
    """which of them are also combined with BM25-uni and with BM25-bi"""
    vectors: int = 8
    """m of ME-BERT"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """of the training; passages, queries and candidates are the same for all"""
    train_queries: int = 3000
    dev_queries: int = 200
    """on which the weight of a hybrid is tuned"""
    test_queries: int = 500
    passages: int = 0
    """of the task containing: how many at every length; 0: all, which are fewer the longer they are"""
    distractors: int = 2
    """of the task containing: passages per query that differ from it in one or two words"""
    terms: Literal["words", "pieces"] = "words"
    """of BM25; pieces: of the backbone's tokenizer, as in the paper"""
    tokens: int = 400
    """of the task answers: how many are read of each ranking"""
    depth: int = 200
    """candidates that are reranked, half of them BM25's and half random; and passages that a search finds"""
    steps: int = 1000
    batch_size: int = 32
    """queries per step and process"""
    negatives: int = 1
    """per query, beside the documents of the batch's other queries; the paper has 7"""
    learning_rate: float = 5e-5
    head_learning_rate: float = 1e-3
    """of projections and heads, which start untrained"""
    query_length: int = 32
    keep_models: bool = False
    """keep the trained models too; there is one for each system, length and seed"""
    theory_queries: int = 100
    """test queries for which a random projection is predicted"""
    samples: int = 64
    """Gaussian vectors per query of that prediction"""
    output: str = ""
    """results folder; empty: results/capacity-TASK-COLLECTION"""
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    def __post_init__(self) -> None:
        wrong = [name for name in self.systems if name != CROSS and not SYSTEM.fullmatch(name)]
        if wrong:
            raise SystemExit(
                f"unknown system {', '.join(wrong)}; there are DE-BERT-k, ME-BERT-k, both also without -k, "
                f"and {CROSS}"
            )
        wrong = [name for name in self.hybrids if not SYSTEM.fullmatch(name)]
        if wrong:
            raise SystemExit(f"no hybrid of {', '.join(wrong)}: it takes a DE-BERT or ME-BERT, which search")
        for name in ("systems", "seeds", "lengths"):
            if not getattr(self, name):
                raise SystemExit(f"{name} must name at least one")
        least = {"depth": 2, "samples": 2, "negatives": int(CROSS in self.systems)}
        least |= dict.fromkeys(("train_queries", "dev_queries", "test_queries", "steps", "batch_size"), 1)
        for name, fewest in (least | {"vectors": 1, "theory_queries": 1}).items():
            if getattr(self, name) < fewest:
                raise SystemExit(f"{name} must be at least {fewest}, got {getattr(self, name)}")
        if self.task == "answers" and not 0 < max(self.lengths) <= self.tokens:
            raise SystemExit(f"lengths={self.lengths} must lie between 1 and tokens={self.tokens}")
        self.lengths = sorted(set(self.lengths))
        self.output = self.output or f"results/capacity-{self.task}-{folder_name(self.collection)}"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from accelerate import Accelerator
from studies.capacity_claims import Results, describe, draw, gather
from studies.capacity_tasks import (
    BI,
    UNI,
    Bench,
    by_module,
    open_bench,
    predict,
    question_passages,
    read_answers,
)
from studies.containing_passage import containing_passages
from studies.pages import publish

from paradigms import PARADIGMS, RERANKERS, CrossAttention, Paradigm
from paradigms.data import Collection, Run, Split, articles
from paradigms.encoder.backbone import load_tokenizer, packaged
from paradigms.evaluate.hybrid import System, candidate_scores, combine, tune
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.io.terminal import shown
from paradigms.train.job import begin, fit, keep_settings, open_collection
from paradigms.train.loop import TrainingSettings
from paradigms.train.state import by_main

SPREAD = 64  # training queries, and passages throughout the corpus, on which the spread of scores is measured
FREE = ("systems", "seeds", "tracker", "output", "keep_models")  # may change in a results folder


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    collection = open_collection(settings.collection, settings.documents or None, console)
    backbone = packaged(settings.backbone)
    tokenizer = load_tokenizer(backbone)
    kept = asdict(settings) | {"fingerprint": collection.fingerprint}
    kept |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    by_main(lambda: keep_settings(kept, folder, free=FREE), accelerator)
    try:
        benches = open_benches(settings, collection, tokenizer, backbone)
    except (ValueError, OSError) as error:
        raise SystemExit(shown(error)) from error
    runs = [(bench, seed, name) for bench in benches for seed in settings.seeds for name in settings.systems]
    missing = [run for run in runs if not result_file(folder, *run).is_file()]
    accelerator.wait_for_everyone()  # before any process can finish one
    special = tokenizer.num_special_tokens_to_add()
    for bench, seed, name in missing:
        console.print(f"{bench.collection.name}, seed {seed}: {name}")
        try:
            run_system(bench, seed, name, special, settings, folder, accelerator)
        except (ValueError, OSError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, seed {seed}, {name}: {shown(error)}") from error
    if accelerator.is_main_process:
        report(benches, [result_file(folder, *run) for run in runs], settings, accelerator)
    accelerator.end_training()


def open_benches(
    settings: Settings, collection: Collection, tokenizer: Any, backbone: str | Path
) -> list[Bench]:
    """The task at every length; the BM25 that the paper takes ranks the candidates."""
    counts = {"train": settings.train_queries, "dev": settings.dev_queries, "test": settings.test_queries}
    if settings.task == "answers":
        answers = read_answers(Path(settings.collection))
        tasks = question_passages(collection, answers, counts, settings.lengths, tokenizer)
    else:
        tasks = containing_passages(
            articles(by_module(collection)),
            counts,
            lengths=settings.lengths,
            passages=settings.passages or None,
            distractors=settings.distractors,
            tokenizer=tokenizer,
        )
    pieces = backbone if settings.terms == "pieces" else None
    answering = settings.task == "answers"
    measures = {n: f"Success@{settings.tokens // n}" if answering else "RR@10" for n in tasks}
    first = UNI if answering else BI
    return [open_bench(n, task, measures[n], first, settings.depth, pieces) for n, task in tasks.items()]


def report(benches: list[Bench], files: list[Path], settings: Settings, accelerator: Accelerator) -> None:
    """The page, from the results of all systems, of BM25 and of theory."""
    results = [lexical(bench, settings.depth) for bench in benches for _ in settings.seeds]
    results += [json.loads(file.read_text(encoding="utf-8")) for file in files]
    sizes = {result["system"]: result["numbers"] for result in results if result["numbers"]}
    predictions = {bench.length: predicted(bench, sizes, settings) for bench in benches}
    found = Results(settings.task, settings.lengths, gather(results), predictions, sizes)
    counts = {name: len(split.queries) for name, split in benches[0].collection.splits.items()}
    passages = ", ".join(f"{len(bench.collection.corpus):,} of {bench.length} tokens" for bench in benches)
    summary = (
        f"{counts['test']} test queries, the same at all lengths; passages: {passages}. Every neural system "
        f"comes from {settings.backbone} and learned from {counts['train']:,} queries in {settings.steps} "
        f"steps of {settings.batch_size}, with {settings.negatives} negative(s) each, once for every length "
        f"and each of {len(settings.seeds)} seed(s). Intervals (95 %) resample seeds and queries."
    )
    titles = {"containing": "the passage that contains the query", "answers": "question answering"}
    title = f"Passage length and capacity: {titles[settings.task]}"
    publish(settings, title, summary, describe(found), draw(found), accelerator)


def result_file(folder: Path, bench: Bench, seed: int, name: str) -> Path:
    """Written last: the system is measured."""
    return folder / f"length-{bench.length}" / f"seed-{seed}" / f"{name}.json"


def run_system(
    bench: Bench,
    seed: int,
    name: str,
    special: int,
    settings: Settings,
    folder: Path,
    accelerator: Accelerator,
) -> None:
    """Train one system on the passages of one length, and measure it and its hybrids."""
    file = result_file(folder, bench, seed, name)
    own = file.with_suffix("")
    torch.manual_seed(seed)
    model: Any = build(name, bench.length, special, settings).to(accelerator.device)  # `fit` takes one kind
    tau = temperature(model, bench)
    training = TrainingSettings(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        head_learning_rate=settings.head_learning_rate,
        temperature=tau,
        save_every=200,
        seed=seed,
    )
    splits, runs = (bench.collection.split("train"), Split({}, {})), (bench.mined, Run())
    given = training, own / "training", accelerator
    model = fit(model, bench.collection, splits, runs, settings.negatives, 0, *given)

    def finish() -> None:
        found = {"system": name, "length": bench.length, "seed": seed, "numbers": numbers_of(model)}
        found |= {"τ": tau} | measure(model, name, bench, settings, accelerator.mixed_precision)
        if settings.keep_models:
            model.save_pretrained(own / "checkpoint")
        write_json(file, found)
        shutil.rmtree(own / "training" / "checkpoints")  # of no use any more, each three times the model

    by_main(finish, accelerator)
    accelerator.free_memory()


def build(name: str, length: int, special: int, settings: Settings) -> Paradigm | CrossAttention:
    """The system of this name, untrained; it sees whole passages of `length` tokens."""
    common: dict[str, Any] = {"query_length": settings.query_length, "document_length": length + special}
    common["pooling"] = settings.pooling
    match = SYSTEM.fullmatch(name)
    if match is None:
        return RERANKERS["cross_attention"](settings.backbone, **common)
    common["normalize"] = False
    if match[2]:
        common |= {"dim": int(match[2]), "layer_norm": True}
    if match[1] == "ME":
        return PARADIGMS["me_bert"](settings.backbone, first=settings.vectors, **common)
    return PARADIGMS["dpr"](settings.backbone, **common)


def temperature(model: Paradigm | CrossAttention, bench: Bench) -> float:
    """τ of the softmax: how much the untrained system's scores of a training query spread.

    Inner products spread by √k and more where vectors are layer-normed, less where they are means of many
    tokens. With one temperature for all, the softmax would start saturated for one system and flat for
    another, and a short training would compare that. Cross-attention has 1: its head starts near 0 and finds
    a scale of its own.
    """
    if isinstance(model, CrossAttention):
        return 1.0
    train, corpus = bench.collection.split("train"), bench.collection.corpus
    passages = np.linspace(0, len(corpus) - 1, SPREAD).astype(int).tolist()
    documents = model.encode_documents([corpus[n] for n in passages])
    scores = model.score(documents, model.encode_queries(list(train.queries.values())[:SPREAD]))
    # Rounded: a run may be gone on with where sums end in other bits.
    return float(f"{float(scores.std(-1).mean()):.2g}")


def numbers_of(model: Paradigm | CrossAttention) -> int:
    """How many numbers a document is encoded into; 0 where it is not encoded."""
    if isinstance(model, CrossAttention):
        return 0
    encoder = model.encoder
    return encoder.dim * (encoder.settings.first if encoder.settings.document_vectors == "first" else 1)


def measure(
    model: Paradigm | CrossAttention, name: str, bench: Bench, settings: Settings, precision: str
) -> dict[str, Any]:
    """stages: system -> stage -> the measure of each test query; weights: hybrid -> λ."""
    corpus, queries = bench.collection.corpus, bench.collection.split("test").queries
    if isinstance(model, CrossAttention):
        run = model.rerank(queries, corpus, bench.pool, precision=precision, progress=True)
        return {"stages": {name: {"rerank": bench.values(run)}}, "weights": {}}
    stages: dict[str, dict[str, list[float]]] = {}
    weights: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = ExactIndex.build(
            model, corpus.ids, corpus, f"{folder}/index", precision=precision, progress=True
        )
        search, rerank = partial(index.search, model), partial(index.rerank, model)
        stages[name] = {
            "rerank": bench.values(rerank(queries, bench.pool)),
            "retrieve": bench.values(search(queries, settings.depth)),
        }
        dense = System(search, rerank)
        for sparse, bm25 in bench.bm25.items() if name in settings.hybrids else ():
            hybrid = f"HYBRID-{name}-{sparse.removeprefix('BM25-')}"
            parts = dense, System(bm25.search, bm25.rerank)
            scores = candidate_scores(*parts, bench.collection.split("dev").queries, settings.depth)
            tuning = tune(*scores, bench.judged(scores[0], "dev"), measure=bench.measure)
            found = candidate_scores(*parts, queries, settings.depth)
            stages[hybrid] = {"retrieve": bench.values(combine(*found, tuning.weight))}
            weights[hybrid] = tuning.weight
    return {"stages": stages, "weights": weights}


def lexical(bench: Bench, depth: int) -> dict[str, Any]:
    """Both BM25, as a result like the others."""
    queries = bench.collection.split("test").queries
    stages = {
        name: {
            "rerank": bench.values(bm25.rerank(queries, bench.pool)),
            "retrieve": bench.values(bm25.search(queries, depth)),
        }
        for name, bm25 in bench.bm25.items()
    }
    return {"system": UNI, "length": bench.length, "numbers": 0, "stages": stages}


def predicted(bench: Bench, sizes: dict[str, int], settings: Settings) -> dict[str, Any]:
    """`predict` for every size, kept in the results folder for the sizes that it was asked for."""
    file = Path(settings.output) / f"length-{bench.length}" / "theory.json"
    dimensions = sorted(set(sizes.values()))
    if file.is_file():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if {str(k) for k in dimensions} <= kept["values"].keys():
            return kept
    found = predict(bench, dimensions, settings.theory_queries, settings.samples)
    write_json(file, found)
    return found


if __name__ == "__main__":
    main(Settings(**given))
