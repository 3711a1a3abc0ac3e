"""What every training script does around the loop: keep settings, open data, make splits, fit, tell where."""

import hashlib
import math
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Names
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from rich.console import Console

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Collection, Corpus, Problems, Run, Split, hold_out, load
from paradigms.data.identical import own_documents, without_own
from paradigms.data.trec import check_ids
from paradigms.encoder.frozen import LowerStates
from paradigms.encoder.text import SIDES, Batch, Side, TextEncoder, TwoTowers
from paradigms.evaluate import per_query
from paradigms.evaluate.reranking import candidates, rerank
from paradigms.generative.model import Generative
from paradigms.generative.pairs import (
    Pair,
    document_span_pairs,
    generated_pairs,
    indexing_pairs,
    read_generated,
    retrieval_pairs,
    span_pairs,
)
from paradigms.generative.small import small_t5
from paradigms.io.files import write_json
from paradigms.io.plugins import LOADED
from paradigms.io.terminal import Terminal, shown
from paradigms.io.typed import parse_json
from paradigms.model import Paradigm, autocast
from paradigms.train import tracking
from paradigms.train.checkpoint import sha256
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example, StepSampler, build_examples
from paradigms.train.likelihood import Likelihood
from paradigms.train.listwise import Listwise
from paradigms.train.loop import TrainingSettings, freeze, train
from paradigms.train.losses import Objective
from paradigms.train.parallel import sharded
from paradigms.train.state import by_main
from paradigms.train.teacher import FalseNegatives, ScorePairs

Encoded = TypeVar("Encoded", Paradigm, CrossAttention)

DEV_DEPTH = 10  # first documents of the dev queries' run that the dev measure reranks
NEGATIVES_DEPTH = 100  # first documents of the training queries' run that hard negatives are drawn from
# Of each document that a generative model learns to name: several and short, as a query is.
PASSAGES, PASSAGE_WORDS = 6, 16
SPANS = 3  # of each document whose text is its name

STATES = "states"  # folder, for as long as a run lasts, of what the frozen layers of its encoders give
BEFORE_RESULTS = {"config.json", "environment.json", "wandb", STATES}  # what a run that failed at once leaves


class DevMeasure:
    """paradigm → (mean nDCG@10, its standard error) over dev queries.

    Candidates are the first `depth` documents of `run` and the relevant ones; queries are drawn by hash.
    """

    def __init__(
        self, corpus: Corpus, split: Split, run: Run, queries: int, depth: int, precision: str
    ) -> None:
        drawn = sorted(split.queries, key=lambda q: hashlib.sha256(q.encode("utf-8", "replace")).digest())
        self.corpus, self.precision = corpus, precision
        self.queries = {query: split.queries[query] for query in sorted(drawn[:queries])}
        self.judgements = {query: split.judgements[query] for query in self.queries}
        self.pool = candidates({q: run.get(q, {}) for q in self.queries}, self.judgements, depth)

    def __call__(self, paradigm: Paradigm | Generative | CrossAttention) -> tuple[float, float]:
        reranked = rerank(paradigm, self.queries, self.corpus, self.pool, precision=self.precision)
        values = per_query(reranked, self.judgements, ("nDCG@10",)).values["nDCG@10"]
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return float(values.mean()), float(error)


def begin(settings: Any) -> tuple[Accelerator, Console]:
    """The accelerator of a script's settings (tracker, precision, output), and a terminal of its main
    process.

    SystemExit while another run holds the output folder.
    """
    config = {  # trackers take no lists
        name: value if isinstance(value, int | float | str) else str(value)
        for name, value in asdict(settings).items()
    }
    accelerator = tracking.start(
        tracker=settings.tracker, precision=settings.precision, config=config, folder=Path(settings.output)
    )
    tracking.take(Path(settings.output), accelerator)
    return accelerator, Terminal(quiet=not accelerator.is_main_process)


def keep_settings(settings: dict[str, Any], folder: Path, free: Names[str]) -> None:
    """Write config.json; a folder with results of other settings, the `free` ones apart, is refused."""
    file = folder / "config.json"
    if file.is_file() and any(entry.name not in BEFORE_RESULTS for entry in folder.iterdir()):
        old = parse_json(file.read_text(encoding="utf-8"), str(file))
        changed = [k for k in settings if k not in free and old.get(k) != settings[k]]
        if changed:
            raise SystemExit(
                f"{folder} holds results with other settings ("
                + "; ".join(f"{k}: {old.get(k)} then, {settings[k]} now" for k in changed)
                + "). Choose another --output, or delete that folder."
            )
    write_json(file, settings)


def checksum(path: Path) -> str:
    """sha256 of a file; of a folder, such as a saved model, that of its files' names and contents."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = "".join(f"{sha256(file)} {file.relative_to(path)}\n" for file in files)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


def open_collection(name: str, documents: int | None, console: Console) -> Collection:
    """The collection, with its size and problems told; SystemExit for what cannot be opened.

    documents: size of a fixed subset, of pydocs alone. All ids can stand in a TREC run.
    """
    try:
        collection = load(name, documents=documents)
        check_ids(collection.corpus.ids, "document id")
        for split in collection.splits.values():
            check_ids(split.queries, "query id")
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(shown(error)) from error
    queries = ", ".join(f"{len(split.queries):,} {name}" for name, split in collection.splits.items())
    console.print(f"{collection.name}: {len(collection.corpus):,} documents; queries: {queries}")
    if collection.problems:
        console.print(f"Problems in the data:\n{collection.problems}")
    return collection


def training_splits(collection: Collection, seed: int, *measured: str) -> tuple[Split, Split]:
    """(train, dev) of queries with judgements, neither among the splits that are `measured` (test).

    Without a dev split a tenth of the training queries is held out.
    """
    splits = {name: split for name, split in collection.splits.items() if name not in (measured or ("test",))}
    judged = {name: split for name, split in splits.items() if any(split.judgements.values())}
    train = judged.get("train", Split({}, {}))
    return (train, judged["dev"]) if "dev" in judged else hold_out(train, share=0.1, seed=seed)


def fit(
    paradigm: Encoded,
    collection: Collection,
    splits: tuple[Split, Split],
    runs: tuple[Run, Run],
    negatives: int,
    dev_queries: int,
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
    *,
    teacher: ScorePairs | None = None,
    suspects: FalseNegatives | None = None,
    states: Path | None = None,
) -> Encoded:
    """The paradigm trained on splits[0] and chosen by nDCG@10 on `dev_queries` of splits[1] (`DevMeasure`).

    runs: a first ranking of each split's queries, to draw hard negatives from and to rerank. Without dev
    queries the last state is the result. Cross-attention needs negatives. teacher: whose scores
    `training.distillation` learns. suspects: hard negatives to leave out. states: folder of what frozen
    layers give (`keep_states`), which trainings share and the caller deletes; without it, one in `folder` is
    made for this training alone.
    """
    if (teacher is None) != (training.distillation is None):
        raise ValueError("a distillation needs a teacher, and a teacher a distillation: give both or neither")
    corpus, (queries, dev_split) = collection.corpus, splits
    train_run, dev_run = map(partial(_others, corpus), splits, runs)
    problems = Problems()
    given: dict[str, Any] = {"suspects": suspects, "teacher": teacher, "problems": problems}
    examples = build_examples(corpus, queries, train_run, negatives, NEGATIVES_DEPTH, training.seed, **given)
    if suspects is not None:
        accelerator.print(problems or "No hard negative scores as high as a relevant document.")
    objective = _objective(paradigm, corpus, examples, training)
    dev = _dev(collection, dev_split, dev_run, dev_queries, accelerator)
    layers, own = training.trained_layers, folder / STATES
    if layers and isinstance(paradigm, Paradigm):
        texts = _texts(corpus, examples, dev, training, accelerator)
        keep_states(paradigm, layers, states or own, texts, accelerator)
    trained = train(paradigm, objective, training, folder, accelerator=accelerator, dev=dev)
    trained = trained.to(accelerator.device)
    if layers and states is not None and isinstance(trained, Paradigm):
        keep_states(trained, layers, states, {}, accelerator)
    elif layers:
        by_main(lambda: shutil.rmtree(own, ignore_errors=True), accelerator)
    return trained


def _others(corpus: Corpus, split: Split, run: Run) -> Run:
    """The run of the split without a query's own document, no negative of it (`own_documents`)."""
    return without_own(run, own_documents(corpus, split))


def keep_states(
    paradigm: Paradigm,
    trained_layers: int,
    folder: Path,
    texts: Mapping[Side, Sequence[str]],
    accelerator: Accelerator,
) -> None:
    """`freeze` the paradigm, and keep in `folder` what its frozen layers give of the texts of each side.

    What is there, from whichever paradigm or run, is read. Every process calls this, and sees the same
    folder.
    """
    freeze(paradigm, trained_layers)
    encoder = paradigm.encoder
    for side in SIDES:
        tower = encoder.of(side) if isinstance(encoder, TwoTowers) else encoder
        assert isinstance(tower, TextEncoder)
        assert tower.split is not None
        with autocast(accelerator.device, accelerator.mixed_precision):
            store = tower.keep_states(folder)
            tokenize = partial(tower.tokenize, side=side)
            _add(store, texts.get(side, ()), tokenize, tower.split.compute, accelerator, tower.layout(side))


def _add(
    store: LowerStates,
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Batch],
    compute: Callable[[Batch], torch.Tensor],
    accelerator: Accelerator,
    layout: str = "",
) -> None:
    """Every process its share of the texts, and then all of them."""
    share = {"process": accelerator.process_index, "processes": accelerator.num_processes}
    store.add(texts, tokenize, compute, layout=layout, **share, progress=accelerator.is_main_process)
    accelerator.wait_for_everyone()
    store.open()


def _texts(
    corpus: Corpus,
    examples: list[Example],
    dev: DevMeasure | None,
    training: TrainingSettings,
    accelerator: Accelerator,
) -> dict[Side, list[str]]:
    """What a training encodes: of examples those that its steps draw."""
    together = training.batch_size * accelerator.num_processes
    count = training.steps * training.accumulation
    sampler = StepSampler(len(examples), together, count, start=0, rank=0, world=1, seed=training.seed)
    drawn = [examples[n] for n in sorted({n for batch in sampler for n in batch})]
    documents = {position for example in drawn for position in (example.positive, *example.negatives)}
    queries = {example.query: None for example in drawn}
    if dev is not None:
        documents |= {corpus.position(d) for row in dev.pool.values() for d in row}
        queries |= dict.fromkeys(dev.queries.values())
    return {"query": list(queries), "document": [corpus[position] for position in sorted(documents)]}


def fit_generative(
    model: Generative,
    collection: Collection,
    splits: tuple[Split, Split],
    dev_run: Run,
    dev_queries: int,
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
    generated: Path | None = None,
) -> Generative:
    """The model trained on pairs of splits[0] and of the corpus, chosen as `fit` chooses.

    generated: JSON lines of queries that a generator wrote for documents (`pairs.read_generated`).
    """
    problems = Problems()
    pairs = training_pairs(model, collection.corpus, splits[0], problems, training.seed)
    if generated is not None:
        pairs += generated_pairs(read_generated(generated), model.identifiers, problems)
    for found in (model.identifiers.problems, problems):
        if found:
            console.print(f"{model.name}: {found}")
    dev = _dev(collection, splits[1], dev_run, dev_queries, accelerator)
    return fit_pairs(model, collection.corpus, pairs, training, folder, accelerator, dev=dev)


def fit_pairs(
    model: Generative,
    corpus: Corpus,
    pairs: Sequence[Pair],
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
    *,
    dev: Callable[[Generative], tuple[float, float]] | None = None,
    states: Path | None = None,
) -> Generative:
    """The model trained on pairs. On a CPU, what a frozen encoder gives of the sources is kept on disk.

    states: folder of that, as in `fit`. A GPU encodes again in less time than it reads.
    """
    objective = Likelihood(model, corpus, pairs)
    kept = model.settings.frozen and accelerator.device.type == "cpu"
    if kept:
        with model.evaluating(), autocast(accelerator.device, accelerator.mixed_precision):
            store = model.keep_states(states or folder / STATES)
            sources = list(dict.fromkeys(pair.source for pair in pairs))
            _add(store, sources, model.tokenize, model.encode, accelerator)
    trained = train(model, objective, training, folder, accelerator=accelerator, dev=dev)
    if kept and states is None:
        by_main(lambda: shutil.rmtree(folder / STATES, ignore_errors=True), accelerator)
    return trained.to(accelerator.device)


def t5_folder(
    name: str, collection: Collection, folder: Path, seed: int, accelerator: Accelerator
) -> str | Path:
    """A backbone's name as it is; for "small" a T5 with random weights, made once in `folder`."""
    if name != "small":
        return name

    def make() -> None:
        if not folder.is_dir():
            texts = [*collection.corpus, *training_splits(collection, seed)[0].queries.values()]
            small_t5(texts, folder, seed=seed)

    by_main(make, accelerator)
    return folder


def training_pairs(
    model: Generative, corpus: Corpus, split: Split, problems: Problems, seed: int
) -> list[Pair]:
    """What a generative model trains on: of the split's queries, and of every document.

    Text as identifiers: spans of the relevant documents (SEAL), and of each document. Else the identifiers of
    the relevant documents, and of each document from `PASSAGES` of its passages.
    """
    ids, length = model.identifiers, model.settings.document_length
    if ids.kind == "text":
        common = {"length": length, "seed": seed}
        spans = span_pairs(corpus, split, model.tokenizer, problems, **common)
        return spans + document_span_pairs(corpus, model.tokenizer, problems, spans=SPANS, **common)
    passages = indexing_pairs(corpus, ids, problems, words=PASSAGE_WORDS, passages=PASSAGES, seed=seed)
    return retrieval_pairs(split, ids) + passages


def _objective(
    paradigm: Paradigm | CrossAttention, corpus: Corpus, examples: list[Example], training: TrainingSettings
) -> Objective:
    given = corpus, examples, training.temperature, training.distillation
    if isinstance(paradigm, CrossAttention):
        return Listwise(paradigm, *given)
    return Contrastive(paradigm, *given, training.chunk, training.in_batch, training.steps)


def _dev(
    collection: Collection, split: Split, run: Run, queries: int, accelerator: Accelerator
) -> DevMeasure | None:
    if not (split.queries and queries):
        return None
    return DevMeasure(collection.corpus, split, run, queries, DEV_DEPTH, accelerator.mixed_precision)


def content(**paths: str) -> dict[str, str]:
    """The checksums of those files and folders that are there."""
    return {f"content of {name}": checksum(Path(path)) for name, path in paths.items() if Path(path).exists()}


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Where a result was made: versions, device, processes, precision."""
    packages = ("torch", "transformers", "accelerate", "numpy", "bm25s", "ir-measures")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(accelerator.device),
        "processes": accelerator.num_processes,
        "sharded": sharded(),
        "threads": torch.get_num_threads(),
        "precision": accelerator.mixed_precision,
        **{f"plug-in {file.name}": sha256(file) for file in LOADED},
    } | {name: version(name) for name in packages}
