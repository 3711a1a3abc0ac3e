"""nDCG@10 of ALIGNER against the share of tokens that its salience keeps: Qian et al. 2022, Figures 6 and 7.

Trains ALIGNER once for each way to make salience sparse and each seed, then stores β^d of every document's
tokens, searches with β^q of every query's, and refines what was found with all vectors. Bytes, milliseconds
and multiply-adds stand beside every pair of ratios. The full model that pruned ones are compared with has no
salience. Finished models are not trained again: more methods and seeds may be added to a results folder.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings:
    """Which ALIGNERs are trained on what, and how far they are pruned."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 0
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    output: str = ""
    """results folder; empty: results/salience-pruning-COLLECTION"""
    methods: list[str] = field(default_factory=lambda: ["entropic", "relu", "hard", "l1", "none"])
    """which of entropic, relu, hard, l1, eq5, and none: no salience, the paper's full model"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    query_ratio: float = 0.5
    """α^q of the training; also β^q where β^d varies"""
    document_ratio: float = 0.4
    """α^d of the training; also β^d where β^q varies"""
    eps: float = 0.002
    """ε of the entropic gate"""
    l1: float = 1.0
    """coefficient of the mean salience in the loss of method l1"""
    depth: int = 100
    """documents that the pruned search finds for each query, and that are refined"""
    steps: int = 300
    batch_size: int = 32
    """queries per step and process"""
    negatives: int = 0
    """hard negatives per query, mined from BM25's top 100"""
    learning_rate: float = 3e-5
    head_learning_rate: float = 1e-3
    """of projection and salience heads, which start untrained"""
    query_length: int = 48
    document_length: int = 128
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    def __post_init__(self) -> None:
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown:
            raise SystemExit(f"unknown method {', '.join(unknown)}; there are {', '.join(METHODS)}")
        for name in ("methods", "seeds"):
            if not getattr(self, name):
                raise SystemExit(f"{name} must name at least one")
        self.output = self.output or f"results/salience-pruning-{folder_name(self.collection)}"

    def pairs(self) -> list[tuple[float, float]]:
        """The (β^q, β^d) that are measured: none pruned, each ratio with the other as trained, Figure 7."""
        documents = [(self.query_ratio, d) for d in (1.0, 0.6, 0.4, 0.2, 0.1, 0.05)]
        queries = [(q, self.document_ratio) for q in (1.0, 0.5, 0.3, 0.1)]
        return list(dict.fromkeys([(1.0, 1.0), *documents, *queries, (0.3, 0.2)]))


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
from studies.model_runs import Bench, Job, Measured, open_bench, run_jobs
from studies.pages import publish
from studies.salience_report import Found, describe

from paradigms import Paradigm
from paradigms.aligner import aligner
from paradigms.data import Run, Split
from paradigms.evaluate import per_query
from paradigms.index import ExactIndex
from paradigms.index.pruning import most_salient
from paradigms.train.job import begin, keep_settings
from paradigms.train.state import by_main

METHODS: dict[str, dict[str, Any]] = {
    "entropic": {"salience": "entropic"},
    "relu": {"salience": "relu"},
    "hard": {"salience": "hard"},
    "l1": {"salience": "relu"},  # with the coefficient of the settings
    "none": {"salience": "none"},  # pruned, texts are cut off: the control
    "eq5": {"salience": "entropic", "iterations": 5},  # "only a few iterations" of Eq. 5, not the solution
}
MEASURES = ("RR@10", "nDCG@10")
FREE = {"methods", "seeds", "tracker", "output"}


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    bench = open_bench(settings.collection, settings, console, ("training", "test"))
    kept = asdict(settings) | {"fingerprint": bench.collection.fingerprint, "training": "without dev queries"}
    kept |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    by_main(lambda: keep_settings(kept, Path(settings.output), FREE), accelerator)
    jobs = [job(method, seed, bench, settings) for seed in settings.seeds for method in settings.methods]
    results = run_jobs(jobs, bench, settings, accelerator, console)
    if accelerator.is_main_process:
        trained_with = (settings.query_ratio, settings.document_ratio)
        found = Found(results, trained_with, bench.lexical(MEASURES))
        summary = (
            f"Seeds {settings.seeds}, {settings.steps} steps of {settings.batch_size} queries from "
            f"{settings.backbone}; 95% intervals resample seeds and test queries."
        )
        title = f"Pruning by salience on {bench.collection.name}"
        publish(settings, title, summary, *describe(found), accelerator)
    accelerator.end_training()


def job(method: str, seed: int, bench: Bench, settings: Settings) -> Job:
    """How ALIGNER with one of METHODS is trained and measured."""

    def make() -> Paradigm:
        return aligner(
            settings.backbone,
            query_length=settings.query_length,
            document_length=settings.document_length,
            query_ratio=settings.query_ratio,
            document_ratio=settings.document_ratio,
            eps=settings.eps,
            salience_l1=settings.l1 if method == "l1" else 0.0,
            **METHODS[method],
        )

    def measured(paradigm: Paradigm, index: ExactIndex, folder: Path) -> Measured:
        keys = {"method": method, "seed": seed, "salient": salient(index)}
        return keys | measure(paradigm, index, bench.test, settings, folder)

    return Job(f"{method}, seed {seed}", Path(settings.output) / f"{method}-{seed}", seed, make, measured)


def salient(index: ExactIndex) -> float:
    """The share of stored tokens whose salience is above a hundredth of their document's largest."""
    if "salience" not in index.fields:
        return 1.0
    values, lengths = index.fields["salience"], np.diff(index.offsets)
    starts = index.offsets[:-1][lengths > 0]
    largest = np.maximum.reduceat(values, starts) if len(starts) else values
    return float((values > np.repeat(largest, lengths[lengths > 0]) / 100).mean())


def measure(
    paradigm: Paradigm, index: ExactIndex, test: Split, settings: Settings, folder: Path
) -> dict[str, Any]:
    """Each pair's costs, and its measures of every query, before and after refinement."""
    pairs, asked, dim = settings.pairs(), max(1, len(test.queries)), paradigm.encoder.dim
    pruned = {d: index if d == 1 else index.prune(d, folder / str(d)) for d in {d for _, d in pairs}}
    queries = paradigm.encode_queries(list(test.queries.values()))
    searching = {q: int(most_salient(queries, q).mask.sum()) / asked for q in {q for q, _ in pairs}}
    found: list[tuple[dict[str, Any], Run]] = []
    for q, d in pairs:
        began = time.perf_counter()
        run = pruned[d].search(paradigm, test.queries, settings.depth, keep=q)
        cost = {
            "query_keep": q,
            "document_keep": d,
            "bytes/document": pruned[d].bytes_per_document,
            "search ms/query": 1000 * (time.perf_counter() - began) / asked,
            "search multiply-adds/query": searching[q] * int(pruned[d].offsets[-1]) * dim,
        }
        found.append((cost, run))
    # One pass over every pair's candidates gives each pair the scores that a rerank of its own would give.
    union = {name: {d: 0.0 for _, run in found for d in run[name]} for name in test.queries}
    began = time.perf_counter()
    scores = index.rerank(paradigm, test.queries, union)
    seconds = (time.perf_counter() - began) / max(1, sum(map(len, union.values())))
    points = []
    for cost, run in found:
        refined = {name: {d: scores[name][d] for d in documents} for name, documents in run.items()}
        for stage, of_stage in (("pruned", run), ("refined", refined)):
            values = per_query(of_stage, test.judgements, MEASURES).values
            cost[stage] = {name: of.tolist() for name, of in values.items()}
        points.append(cost)
    tokens = int(index.offsets[-1]) / max(1, len(index.ids))
    return {
        "refine ms/query": 1000 * seconds * settings.depth,
        "refine multiply-adds/query": searching[1.0] * settings.depth * tokens * dim,
        "points": points,
    }


if __name__ == "__main__":
    main(Settings(**given))
