"""What every training script does around the loop: keep settings, open data, make splits, fit, tell where."""

import hashlib
import math
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Names
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from rich.console import Console

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Collection, Corpus, Problems, Run, Split, hold_out, load_collection
from paradigms.data.identical import own_documents, without_own
from paradigms.data.trec import check_ids
from paradigms.encoder.batches import Batch
from paradigms.encoder.frozen import LowerStates
from paradigms.encoder.settings import SIDES, Side
from paradigms.encoder.towers import TwoTowers
from paradigms.evaluate import per_query
from paradigms.evaluate.reranking import candidates, rerank
from paradigms.generative.model import Generative
from paradigms.io.files import write_json
from paradigms.io.plugins import LOADED
from paradigms.io.terminal import Terminal, shown
from paradigms.io.typed import parse_json
from paradigms.model import Paradigm, autocast
from paradigms.train import tracking
from paradigms.train.checkpoint import sha256
from paradigms.train.contrastive import Contrastive, Listwise
from paradigms.train.examples import Example, build_examples, step_batches
from paradigms.train.loop import TrainingSettings, freeze, train
from paradigms.train.losses import Objective
from paradigms.train.parallel import sharded
from paradigms.train.state import by_main
from paradigms.train.teacher import FalseNegatives, ScorePairs

Encoded = TypeVar("Encoded", Paradigm, CrossAttention)

DEV_DEPTH = 10  # first documents of the dev queries' run that the dev measure reranks
NEGATIVES_DEPTH = 100  # first documents of the training queries' run that hard negatives are drawn from
STATES = "states"  # folder, for as long as a run lasts, of what the frozen layers of its encoders give
BEFORE_RESULTS = {"config.json", "environment.json", "wandb", STATES}  # what a run that failed at once leaves


class DevMeasure:
    """paradigm → (mean nDCG@10, its standard error) over dev queries.

    Candidates are the first DEV_DEPTH documents of `run` and the relevant ones; queries are drawn by hash.
    """

    def __init__(self, corpus: Corpus, split: Split, run: Run, queries: int, precision: str) -> None:
        drawn = sorted(split.queries, key=lambda q: hashlib.sha256(q.encode("utf-8", "replace")).digest())
        self.corpus, self.precision = corpus, precision
        self.queries = {query: split.queries[query] for query in sorted(drawn[:queries])}
        self.judgements = {query: split.judgements[query] for query in self.queries}
        self.pool = candidates({q: run.get(q, {}) for q in self.queries}, self.judgements, DEV_DEPTH)

    def __call__(self, paradigm: Paradigm | Generative | CrossAttention) -> tuple[float, float]:
        reranked = rerank(paradigm, self.queries, self.corpus, self.pool, precision=self.precision)
        values = per_query(reranked, self.judgements, ("nDCG@10",)).values["nDCG@10"]
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return float(values.mean()), float(error)


def begin(settings: Any) -> tuple[Accelerator, Console]:
    """The accelerator of a script's settings (output, precision, maybe tracker), and a terminal of its main
    process, which holds the output folder (`tracking.take`).

    precision "auto": bf16 where the hardware multiplies it natively. SystemExit while another run holds the
    folder, and for fp16 on a CPU, which would run in float32.
    """
    folder, tracker = Path(settings.output), getattr(settings, "tracker", "none")
    automatic = settings.precision == "auto"
    accelerator = Accelerator(
        mixed_precision=tracking.native_precision() if automatic else settings.precision,
        log_with=None if tracker == "none" else tracker,
        project_dir=folder,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=tracking.PATIENCE)],
    )
    if settings.precision == "fp16" and accelerator.device.type == "cpu":
        raise SystemExit("precision fp16 needs a GPU: a processor would silently compute in float32")
    tracking.take(folder, accelerator)  # before its W&B run is joined
    if tracker == "wandb" and accelerator.is_main_process:  # which alone logs
        tracking.start_wandb(accelerator, asdict(settings), folder)
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
        collection = load_collection(name, documents=documents)
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
    corpus, (queries, dev_split) = collection.corpus, splits
    # Without a query's own document, which is no negative of it.
    train_run, dev_run = (without_own(r, own_documents(corpus, s)) for s, r in zip(splits, runs, strict=True))
    problems = Problems()
    given: dict[str, Any] = {"suspects": suspects, "teacher": teacher, "problems": problems}
    examples = build_examples(corpus, queries, train_run, negatives, NEGATIVES_DEPTH, training.seed, **given)
    if suspects is not None:
        accelerator.print(shown(problems or "No hard negative scores as high as a relevant document."))
    asked = corpus, examples, training.temperature, training.distillation
    objective: Objective
    if isinstance(paradigm, CrossAttention):
        objective = Listwise(paradigm, *asked)
    else:
        objective = Contrastive(paradigm, *asked, training.chunk, training.in_batch, training.steps)
    dev = None
    if dev_split.queries and dev_queries:
        dev = DevMeasure(corpus, dev_split, dev_run, dev_queries, accelerator.mixed_precision)
    layers = training.trained_layers
    with deleted_after(folder / STATES, accelerator) as own:
        if layers and isinstance(paradigm, Paradigm):
            texts = _texts(corpus, examples, dev, training, accelerator)
            keep_states(paradigm, layers, states or own, texts, accelerator)
        trained = train(paradigm, objective, training, folder, accelerator=accelerator, dev=dev)
    trained = trained.to(accelerator.device)
    if layers and states is not None and isinstance(trained, Paradigm):
        keep_states(trained, layers, states, {}, accelerator)
    return trained


@contextmanager
def deleted_after(folder: Path, accelerator: Accelerator) -> Iterator[Path]:
    """A folder that all processes may use inside, deleted when they are done, or when one of them fails.

    Not by a BlockingIOError: then another run uses it.
    """
    ours = True
    try:
        yield folder
        accelerator.wait_for_everyone()
    except BlockingIOError:
        ours = False
        raise
    finally:
        if ours and accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)


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
        assert tower.split is not None
        tokenize, layout = partial(tower.tokenize, side=side), tower.layout(side)
        with autocast(accelerator.device, accelerator.mixed_precision):
            store = tower.keep_states(folder)
            add_states(store, texts.get(side, ()), tokenize, tower.split.compute, accelerator, layout)


def add_states(
    store: LowerStates,
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Batch],
    compute: Callable[[Batch], torch.Tensor],
    accelerator: Accelerator,
    layout: str = "",
) -> None:
    """Every process its share of the texts, and then all of them; none that are `too_large`."""
    share = {"process": accelerator.process_index, "processes": accelerator.num_processes}
    if large := by_main(lambda: store.too_large(texts, tokenize, compute), accelerator):
        accelerator.print(f"The frozen layers run in every step: {large}")
    else:
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
    batches = step_batches(len(examples), together, count, seed=training.seed)
    drawn = [examples[n] for n in sorted({n for batch in batches for n in batch})]
    documents = {position for example in drawn for position in (example.positive, *example.negatives)}
    queries = {example.query: None for example in drawn}
    if dev is not None:
        documents |= {corpus.position(d) for row in dev.pool.values() for d in row}
        queries |= dict.fromkeys(dev.queries.values())
    return {"query": list(queries), "document": [corpus[position] for position in sorted(documents)]}


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
