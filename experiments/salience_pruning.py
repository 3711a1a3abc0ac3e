"""nDCG@10 of ALIGNER against the share of tokens that its salience keeps: Qian et al. 2022, Figures 6 and 7.

Trains ALIGNER once for each way to make salience sparse and each seed, then stores β^d of every document's
tokens, searches with β^q of every query's, and refines what was found with all vectors. Bytes, milliseconds
and multiply-adds stand beside every pair of ratios. Finished models are not trained again: more methods and
seeds may be added to a results folder.
"""

from __future__ import annotations

import json
import tempfile
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
    methods: list[str] = field(default_factory=lambda: ["entropic", "relu", "hard", "l1", "first"])
    """which of entropic, relu, hard, l1, first (the first tokens, without salience), eq5"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    query_ratio: float = 0.5
    """α^q of the training; also β^q where β^d varies"""
    document_ratio: float = 0.4
    """α^d of the training; also β^d where β^q varies"""
    eps: float = 0.002
    """ε of the entropic gate"""
    l1: float = 1.0
    """coefficient of the mean salience in the loss of method l1"""
    query_keeps: list[float] = field(default_factory=lambda: [1.0, 0.5, 0.3, 0.1])
    """the β^q that are tried"""
    document_keeps: list[float] = field(default_factory=lambda: [1.0, 0.6, 0.4, 0.2, 0.1, 0.05])
    """the β^d that are tried"""
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
    save_every: int = 100
    """steps between checkpoints"""
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
        keeps = [*self.query_keeps, *self.document_keeps]
        if not all(0 < keep <= 1 for keep in keeps):
            raise SystemExit(f"a share of tokens that is kept must lie in (0, 1], got {keeps}")
        self.output = self.output or f"results/salience-pruning-{folder_name(self.collection)}"

    def pairs(self) -> list[tuple[float, float]]:
        """The (β^q, β^d) that are measured: none pruned, each ratio with the other as trained, Figure 7."""
        documents = [(self.query_ratio, d) for d in self.document_keeps]
        queries = [(q, self.document_ratio) for q in self.query_keeps]
        return list(dict.fromkeys([(1.0, 1.0), *documents, *queries, FIGURE_7]))


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from accelerate import Accelerator
from rich.console import Console
from studies.pages import print_sections, write_page
from studies.salience_report import describe, draw, write_rows

from paradigms import Paradigm
from paradigms.aligner import aligner
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import per_query
from paradigms.index import ExactIndex
from paradigms.index.pruning import most_salient
from paradigms.io.files import write_json
from paradigms.train.job import (
    NEGATIVES_DEPTH,
    begin,
    environment,
    fit,
    keep_settings,
    open_collection,
)
from paradigms.train.loop import TrainingSettings, training_seconds
from paradigms.train.state import by_main

METHODS: dict[str, dict[str, Any]] = {
    "entropic": {"salience": "entropic"},
    "relu": {"salience": "relu"},
    "hard": {"salience": "hard"},
    "l1": {"salience": "relu"},  # with the coefficient of the settings
    "first": {"salience": "none"},  # the control: texts are cut off
    "eq5": {"salience": "entropic", "iterations": 5},  # "only a few iterations" of Eq. 5, not the solution
}
MEASURES = ("nDCG@10", "R@100")
FIGURE_7 = (0.3, 0.2)  # β^q and β^d of "up to 94% reduction in the computation cost"


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    collection = open_collection(settings.collection, settings.documents or None, console)
    for split in ("train", "test"):
        if split not in collection.splits:
            raise SystemExit(
                f"{collection.name} has no split {split!r}; it has {', '.join(collection.splits)}"
            )
    kept = asdict(settings) | {"fingerprint": collection.fingerprint}
    kept |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    by_main(lambda: keep_settings(kept, folder, free={"methods", "seeds", "tracker", "output"}), accelerator)
    models = [(method, seed) for seed in settings.seeds for method in settings.methods]
    # Before any process can finish one, so that all agree on which are left.
    missing = [model for model in models if not result_file(folder, *model).is_file()]
    accelerator.wait_for_everyone()
    for method, seed in missing:
        console.print(f"{method}, seed {seed}")
        try:
            run_model(method, seed, collection, settings, folder, accelerator)
        except (ValueError, OSError, FloatingPointError) as error:
            raise SystemExit(f"{method}, seed {seed}: {error}") from error
    if accelerator.is_main_process:
        results = [json.loads(result_file(folder, *model).read_text(encoding="utf-8")) for model in models]
        show(results, settings, folder, accelerator)
    accelerator.end_training()


def result_file(folder: Path, method: str, seed: int) -> Path:
    """Written last: the model is finished."""
    return folder / f"{method}-{seed}" / "points.json"


def run_model(
    method: str,
    seed: int,
    collection: Collection,
    settings: Settings,
    folder: Path,
    accelerator: Accelerator,
) -> None:
    """Train one ALIGNER and measure it at every pair of ratios."""
    own = result_file(folder, method, seed).parent
    paradigm = trained(method, seed, collection, settings, own / "training", accelerator)
    if accelerator.is_main_process:
        paradigm.save_pretrained(own / "checkpoint")
        ids, test = collection.corpus.ids, collection.split("test")
        with tempfile.TemporaryDirectory(dir=own) as indexes:
            began = time.perf_counter()
            index = ExactIndex.build(
                paradigm,
                ids,
                collection.corpus,
                Path(indexes) / "all",
                precision=accelerator.mixed_precision,
                progress=True,
            )
            costs = {
                "train s": training_seconds(own / "training"),
                "encode s": time.perf_counter() - began,
                "bytes/document": index.bytes_per_document,
                "salient": salient(index),
            }
            measured = measure(paradigm, index, test, settings, Path(indexes))
        write_json(result_file(folder, method, seed), {"method": method, "seed": seed} | costs | measured)
    accelerator.wait_for_everyone()
    accelerator.free_memory()


def trained(
    method: str, seed: int, collection: Collection, settings: Settings, folder: Path, accelerator: Accelerator
) -> Paradigm:
    """ALIGNER with one of METHODS after all steps: a dev measure might prefer the start, without salience."""
    torch.manual_seed(seed)
    paradigm = aligner(
        settings.backbone,
        query_length=settings.query_length,
        document_length=settings.document_length,
        query_ratio=settings.query_ratio,
        document_ratio=settings.document_ratio,
        eps=settings.eps,
        salience_l1=settings.l1 if method == "l1" else 0.0,
        **METHODS[method],
    ).to(accelerator.device)
    train = collection.split("train")
    mined: Run = {}
    if settings.negatives:
        bm25 = BM25.build(collection.corpus, collection.corpus.ids)
        mined = bm25.search(train.queries, NEGATIVES_DEPTH)
    names = TrainingSettings.__dataclass_fields__.keys() & asdict(settings).keys()
    training = TrainingSettings(**{name: getattr(settings, name) for name in names}, seed=seed)
    splits, runs = (train, Split({}, {})), (mined, {})
    return fit(paradigm, collection, splits, runs, settings.negatives, 0, training, folder, accelerator)


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
    pairs, depth, asked = settings.pairs(), settings.depth, max(1, len(test.queries))
    pruned = {d: index if d == 1 else index.prune(d, folder / str(d)) for d in {d for _, d in pairs}}
    queries = paradigm.encode_queries(list(test.queries.values()))
    searching = {q: int(most_salient(queries, q).mask.sum()) / asked for q in {q for q, _ in pairs}}
    found: list[tuple[dict[str, Any], Run]] = []
    for q, d in pairs:
        began = time.perf_counter()
        run = pruned[d].search(paradigm, test.queries, depth, keep=q)
        cost = {
            "query_keep": q,
            "document_keep": d,
            "bytes/document": pruned[d].bytes_per_document,
            "search ms/query": 1000 * (time.perf_counter() - began) / asked,
            "search multiply-adds/query": searching[q] * int(pruned[d].offsets[-1]) * paradigm.encoder.dim,
        }
        found.append((cost, run))
    # One pass over every pair's candidates gives each pair the scores that a rerank of its own would give.
    union = {name: {d: 0.0 for _, run in found for d in run[name]} for name in test.queries}
    began = time.perf_counter()
    scores = index.rerank(paradigm, test.queries, union)
    seconds = (time.perf_counter() - began) / max(1, sum(map(len, union.values())))
    tokens = int(index.offsets[-1]) / max(1, len(index.ids))
    points = []
    for cost, run in found:
        refined = {name: {d: scores[name][d] for d in documents} for name, documents in run.items()}
        stages = {"pruned": run, "refined": refined}
        measured = {
            stage: per_query(of_stage, test.judgements, MEASURES) for stage, of_stage in stages.items()
        }
        values = {
            stage: {name: v.tolist() for name, v in result.values.items()}
            for stage, result in measured.items()
        }
        points.append(cost | values)
    return {
        "refine ms/query": 1000 * seconds * depth,
        "refine multiply-adds/query": searching[1.0] * depth * tokens * paradigm.encoder.dim,
        "points": points,
    }


def show(results: list[dict[str, Any]], settings: Settings, folder: Path, accelerator: Accelerator) -> None:
    """The table of all points, figures, the page, and the same on the console and to W&B."""
    write_rows(folder / "points.csv", results)
    sections = describe(results, settings.query_ratio, settings.document_ratio)
    where = environment(accelerator)
    write_json(folder / "environment.json", where)
    write_json(folder / "claims.json", sections[0].rows)
    title = f"Pruning by salience on {folder_name(settings.collection)}"
    summary = (
        f"{len(settings.seeds)} training seed(s), {settings.steps} steps of {settings.batch_size} queries "
        f"from {settings.backbone}; 95% intervals resample "
        + (
            "seeds and test queries."
            if len(settings.seeds) > 1
            else "test queries, and know nothing of training."
        )
    )
    figures = draw(results, settings.query_ratio, settings.document_ratio)
    page = write_page(folder, title, summary, sections, figures, asdict(settings) | where)
    print_sections(sections)
    Console().print(f"{summary}\nReport: {page}")
    if accelerator.trackers:
        import wandb

        run = accelerator.get_tracker("wandb").tracker
        run.log({name: wandb.Image(str(folder / f"{name}.png")) for name in figures})


if __name__ == "__main__":
    main(Settings(**given))
