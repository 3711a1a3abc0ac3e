"""Train one paradigm on one collection; an interrupted run resumes exactly where it stopped.

The output folder will contain checkpoint/ (the paradigm that was best on dev queries, for
`Paradigm.from_pretrained` and experiments/rerank.py), training/ (newest checkpoints, history.jsonl),
config.json and environment.json. To train with several processes or GPUs:

    accelerate launch --config_file experiments/configs/gpus.yaml experiments/train.py
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from studies.settings import (
    EncoderTraining,
    OneCollection,
    Options,
    Results,
    Seed,
    TimeLimit,
    at_least,
    launch,
    refusing,
    training_fields,
)

from paradigms.io.command_line import flags
from paradigms.train.checkpoints import dev_values, kept_step, read_progress, training_seconds
from paradigms.train.settings import LossOptions, RunOptions


@dataclass(frozen=True, kw_only=True)
class Source:
    """A collection, or a file of pairs, of a training on several; see `Settings.sources`."""

    collection: str = ""
    pairs: str = ""
    share: float | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    negatives: int = 0
    loss: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.collection) == bool(self.pairs):
            raise ValueError(
                f"give either pairs or a collection, not pairs={self.pairs!r} and "
                f"collection={self.collection!r}"
            )
        if self.negatives and self.pairs:
            raise ValueError("negatives of pairs stand in their file")


@flags(steps=1000, trained_layers=0, salience_learning_rate=None, evaluate_every=100, dev_queries=128)
class Settings(LossOptions, RunOptions, Results, OneCollection, EncoderTraining, TimeLimit, Options, Seed):
    """Settings for the model, the collection and the training."""

    paradigm: str = "colbert"
    """dpr, me_bert, colbert, coil, aligner, xtr or splade; generative: dsi, ripor, genre or seal; a
    reranker: cross_attention"""
    backbone: str = ""
    """Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package. For
    generative paradigms a T5; small: a T5 with random weights and few layers. Empty: offline, or small"""
    run: str = ""
    """TREC run of the training queries from whose first 100 documents to draw negatives, or folder of a saved
    paradigm that searches for them (another round of mining); empty: BM25. Generative paradigms take
    negatives from BM25's results for each training text"""
    filter: str = ""
    """model or run whose scores decide which hard negatives are left out as probably relevant: a TREC run
    that scores all candidates and relevant documents, or a model as in `teacher`, which scores each pair
    once"""
    filter_margin: float | None = None
    """leave out negatives whose score is at most this much below the relevant document's score"""
    filter_share: float | None = None
    """leave out negatives whose score is at least this share of the relevant document's score"""
    teacher: str = ""
    """model or run whose scores of each query's relevant document and hard negatives are learned: a TREC run,
    the folder of a saved paradigm or reranker, or a reranker on the hub, OWNER/NAME; a model scores each pair
    once. Generative paradigms need a model, since they also read passages"""
    distil: Literal["none", "kl", "margin_mse"] = "none"
    """loss between the paradigm's and the teacher's scores"""
    distil_temperature: float = 1.0
    """divisor of the teacher's scores; `temperature` divides the paradigm's"""
    generated: str = ""
    """generated queries for a generative paradigm: a file of JSON lines {"document": id, "query": text}"""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """what to train on instead of the collection, which then provides dev queries alone; each batch is drawn
    from one source. Fields: pairs, a file of JSON lines or CSV with a query, a positive and any negatives, or
    collection; share of the steps; query_prompt and document_prompt, texts before those of the encoder;
    negatives, drawn from BM25's results in a collection; loss, such as {"temperature": 0.05, "in_batch":
    false, "distil": "kl"}, which learns the scores in the pairs"""
    mixing: float = 1.0
    """T: sources without a share are drawn in proportion to n^(1/T), for n examples"""

    def __post_init__(self) -> None:
        names = ", ".join(PARADIGMS | GENERATIVE | RERANKERS)
        if self.paradigm not in PARADIGMS | GENERATIVE | RERANKERS:
            raise SystemExit(
                f"unknown paradigm {self.paradigm}; there are {names}. To use your own paradigm, "
                "add --plugin FILE.py"
            )
        self.backbone = self.backbone or ("small" if self.paradigm in GENERATIVE else "offline")
        if self.generated and self.paradigm not in GENERATIVE:
            raise SystemExit(f"generated queries train {', '.join(GENERATIVE)}, not {self.paradigm}")
        for name in ("run", "filter", "teacher"):
            if name != "teacher" and getattr(self, name) and self.paradigm in GENERATIVE:
                raise SystemExit(f"{self.paradigm} takes hard negatives from BM25: leave out --{name}")
            if getattr(self, name) and not self.negatives:
                raise SystemExit(f"{name} needs hard negatives: set --negatives")
        unused = [name for name in ("negatives", "run", "filter", "teacher") if getattr(self, name)]
        if self.sources and (unused or self.paradigm not in PARADIGMS):
            named = unused[0] if unused else f"{self.paradigm}, which is trained on one collection"
            raise SystemExit(f"sources cannot be combined with {named}: give it to a source, or leave it out")
        for n, source in enumerate(self.sources):
            with refusing(f"source {n}: ", options=True):
                Source(**source)
        at_least(self, mixing=1)
        if self.mixing != 1 and not self.sources:
            raise SystemExit("mixing divides the steps among sources: give --sources")
        if self.distil == "none" and self.distil_temperature != 1:
            raise SystemExit("distil_temperature divides a teacher's scores: set --distil")
        if bool(self.teacher) != (self.distil != "none"):
            raise SystemExit("a teacher needs a loss: set both --teacher and --distil, or neither")
        if not self.filter and (self.filter_margin, self.filter_share) != (None, None):
            raise SystemExit("filter_margin and filter_share apply to scores: set --filter")
        if self.paradigm in RERANKERS and not self.negatives:
            raise SystemExit(f"{self.paradigm} learns from hard negatives: set --negatives")
        super().__post_init__()

    @property
    def experiment(self) -> str:
        return f"train-{self.paradigm}"


launch(__name__, Settings, __doc__, processes=True, shards=True)  # before the slow imports

import torch
from accelerate import Accelerator
from studies.pages import interval_text, markdown_rows

from paradigms import GENERATIVE, PARADIGMS, RERANKERS, CrossAttention, Generative, Paradigm, load
from paradigms.data import Collection, Run, Split, read_run
from paradigms.evaluate import seeds_interval
from paradigms.io.files import write_json, write_text
from paradigms.io.terminal import Terminal
from paradigms.saving.hub import model_card
from paradigms.train import fit, negatives, script
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example, build_examples
from paradigms.train.fit import DEV_DEPTH
from paradigms.train.generative import fit_generative, t5_folder
from paradigms.train.loop import FREE as RESUMED
from paradigms.train.loop import Paused, TrainingSettings, train
from paradigms.train.losses import Distillation
from paradigms.train.mixture import Mixture, Part
from paradigms.train.negatives import NEGATIVES_DEPTH, FalseNegatives, ScorePairs, SharedBM25, pair_scores
from paradigms.train.parallel import built, by_main, sharded
from paradigms.train.rows import open_rows, stored_rows

# Settings that may change in a results folder: more steps lengthen a training, and processes divide a batch.
FREE = {*RESUMED, "tracker", "output", "steps", "batch_size"}
SOURCES = ("backbone", "run", "filter", "teacher", "generated")  # settings that name files or models


def main(settings: Settings) -> int:
    """Train, and return the exit status: 0, or 75 (EX_TEMPFAIL) if `minutes` are used or SIGTERM has come."""
    folder = Path(settings.output)
    accelerator, console = script.begin(settings)
    console.print(f"{accelerator.num_processes} process(es) on {accelerator.device}")
    collection = script.open_collection(settings.collection, settings.documents or None, console)
    by_main(lambda: script.keep_settings(bound(settings, collection), folder, FREE), accelerator)
    try:
        with refusing():
            with SharedBM25(collection.corpus, folder / "training" / "bm25", accelerator) as bm25:
                paradigm = trained(settings, collection, bm25, folder / "training", accelerator)
            if accelerator.is_main_process:
                finish(paradigm, folder, accelerator)
    except Paused as paused:
        console.print(f"Paused: {paused}. The same command resumes.")
        accelerator.end_training()
        return os.EX_TEMPFAIL
    seconds = training_seconds(folder / "training")
    console.print(f"Trained for {seconds:.0f} s. Checkpoint: {folder / 'checkpoint'}")
    accelerator.end_training()
    return 0


def finish(paradigm: Paradigm | Generative | CrossAttention, folder: Path, accelerator: Accelerator) -> None:
    """Save the model with a card that says what training was, and what dev queries say of it."""
    training = folder / "training"
    values = dev_values(training)
    step = kept_step(training) or 0
    states = {"untrained": 0, f"after {step:,} steps": step}
    intervals = {name: seeds_interval(values[n][None]) for name, n in states.items() if n in values}
    if intervals:
        rows = [{"state": name, "nDCG@10, dev": interval_text(of)} for name, of in intervals.items()]
        write_text(folder / "table.md", markdown_rows(rows))
        names = ("dev/nDCG@10", "dev/nDCG@10, low", "dev/nDCG@10, high")
        script.summarise(accelerator, dict(zip(names, [*intervals.values()][-1], strict=True)))
    progress = read_progress(training) or {}
    taken = {"steps": progress.get("step"), "kept state": step, "seconds": training_seconds(training)}
    write_json(folder / "environment.json", script.environment(accelerator) | taken)
    paradigm.save_pretrained(folder / "checkpoint", card=model_card(paradigm, folder, "paradigms"))


def bound(settings: Settings, collection: Collection) -> dict[str, Any]:
    """Return what a results folder depends on: the settings, and the contents of the files that they name."""
    named = {name: getattr(settings, name) for name in SOURCES if getattr(settings, name)}
    named |= {
        f"source {n}": source["pairs"] for n, source in enumerate(settings.sources) if "pairs" in source
    }
    return asdict(settings) | {"fingerprint": collection.fingerprint} | script.content(**named)


def trained(
    settings: Settings, collection: Collection, bm25: SharedBM25, folder: Path, accelerator: Accelerator
) -> Paradigm | Generative | CrossAttention:
    """Train the paradigm named in the settings, write results to `folder`, and return the paradigm.

    BM25 is built only if something is searched.
    """
    splits = fit.training_splits(collection, settings.seed)
    if not splits[0].queries and not settings.sources:
        raise ValueError(f"{collection.name} has no training queries")
    dev_run = bm25.search(fit.dev_queries(splits[1], settings.dev_queries), DEV_DEPTH)
    mined: Run = {}
    if settings.negatives and settings.run:
        if Path(settings.run).is_dir():
            model_of_run = partial(load, settings.run)
            mined = negatives.mined_run(model_of_run, collection.corpus, splits[0], folder, accelerator)
        else:
            mined = read_run(settings.run)
    elif settings.negatives and settings.paradigm not in GENERATIVE:
        mined = bm25.search(splits[0].queries, NEGATIVES_DEPTH)
    torch.manual_seed(settings.seed)
    values = training_fields(settings)
    if settings.distil != "none":
        values["distillation"] = Distillation(settings.distil, temperature=settings.distil_temperature)
    training = TrainingSettings(**values)
    if settings.paradigm in GENERATIVE:
        small = folder.parent / "small-t5"
        backbone = t5_folder(settings.backbone, collection, small, settings.seed, accelerator)
        with refusing(options=True):
            model = GENERATIVE[settings.paradigm](backbone, collection.corpus, **settings.options)
        generated = Path(settings.generated) if settings.generated else None
        return fit_generative(
            model if sharded() else model.to(accelerator.device),
            collection,
            splits,
            dev_run,
            settings.dev_queries,
            training,
            folder,
            accelerator,
            generated,
            settings.negatives,
            settings.teacher,
            bm25.search,
        )
    teacher, suspects = judges(settings, collection, splits[0], folder, accelerator)
    build: Callable[..., Any] = (PARADIGMS | RERANKERS)[settings.paradigm]
    with refusing(options=True):
        model = built(lambda: build(settings.backbone, **settings.options), accelerator)
    if settings.sources:
        objective = Mixture(parts_of(settings, model, folder, accelerator))
        dev = fit.dev_measure(collection.corpus, splits[1], dev_run, settings.dev_queries, accelerator)
        return train(model, objective, training, folder, accelerator=accelerator, dev=dev)
    return fit.fit(
        model,
        collection,
        splits,
        (mined, dev_run),
        settings.negatives,
        settings.dev_queries,
        training,
        folder,
        accelerator,
        teacher=teacher,
        suspects=suspects,
    )


def parts_of(settings: Settings, model: Paradigm, folder: Path, accelerator: Accelerator) -> list[Part]:
    """Open the sources, mine their negatives, and give each its prompts, its loss and its share."""
    sources = [Source(**source) for source in settings.sources]
    objectives = []
    for n, source in enumerate(sources):
        place = folder / f"source-{n}"
        texts: Sequence[str]
        examples: Sequence[Example]
        if source.pairs:
            by_main(partial(store, source.pairs, place), accelerator)
            texts, examples = open_rows(place)
        else:
            texts, examples = examples_of(source, settings.seed, place, accelerator)
        prompts = (source.query_prompt, source.document_prompt)
        objectives.append(Contrastive(model, texts, examples, prompts))
    parts = []
    for source, objective in zip(sources, objectives, strict=True):
        share = len(objective.examples) ** (1 / settings.mixing) if source.share is None else source.share
        loss = dict(source.loss)
        if distil := loss.pop("distil", None):
            loss["distillation"] = Distillation(distil)
        parts.append(Part(objective, float(share), loss))
    return parts


def store(pairs: str, folder: Path) -> None:
    """Make the files of pairs, which every process then opens."""
    stored_rows(pairs, folder)


def examples_of(
    source: Source, seed: int, folder: Path, accelerator: Accelerator
) -> tuple[Sequence[str], Sequence[Example]]:
    """Build a collection's training examples, with negatives from BM25."""
    collection = script.open_collection(
        source.collection, None, Terminal(quiet=not accelerator.is_main_process)
    )
    split, _ = fit.training_splits(collection, seed)
    mined: Run = {}
    with SharedBM25(collection.corpus, folder, accelerator) as bm25:
        if source.negatives:
            mined = bm25.search(split.queries, NEGATIVES_DEPTH)
    examples = build_examples(collection.corpus, split, mined, source.negatives, NEGATIVES_DEPTH, seed)
    return collection.corpus, examples


def judges(
    settings: Settings, collection: Collection, split: Split, folder: Path, accelerator: Accelerator
) -> tuple[ScorePairs | None, FalseNegatives | None]:
    """Return the teacher and the filter named in the settings; one model as both scores each pair once."""

    def scores(source: str, name: str) -> ScorePairs:
        return pair_scores(source, folder / f"{name}.run", split.queries, collection.corpus, accelerator)

    teacher = scores(settings.teacher, "teacher") if settings.teacher else None
    if not settings.filter:
        return teacher, None
    same = teacher if settings.filter == settings.teacher else None
    return teacher, FalseNegatives(
        same or scores(settings.filter, "filter"), settings.filter_margin, settings.filter_share
    )
