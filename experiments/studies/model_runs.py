"""Train a study's missing models, and measure each model once."""

import atexit
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Names
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from rich.console import Console
from studies.gains import DEV
from studies.pages import Measured, spent
from studies.settings import EncoderStudy, Output, refusing, training_fields

from paradigms import Paradigm, load
from paradigms.baselines.bm25 import BM25, SAVED
from paradigms.data import Collection, Corpus, Run, Split
from paradigms.data.collection import hash_order
from paradigms.evaluate import PerQuery, candidates, per_query
from paradigms.find import Index, Store, kinds
from paradigms.io.checks import json_or_empty, read_json
from paradigms.io.command_line import folder_name
from paradigms.io.files import remove_folder, write_json
from paradigms.retrieve import AllProcesses
from paradigms.train.checkpoints import STATES, TRAINED, dev_values, kept_step, training_seconds
from paradigms.train.fit import DEV_DEPTH, deleted_after, fit, keep_states, training_splits
from paradigms.train.loop import TrainingSettings
from paradigms.train.negatives import NEGATIVES_DEPTH, SharedBM25
from paradigms.train.parallel import by_main
from paradigms.train.script import content, keep_settings, open_collection


@dataclass(frozen=True)
class StudyData:
    """A collection with training and dev queries, the measured test queries, BM25, and the settings."""

    collection: Collection
    train: Split
    dev: Split
    test: Split
    bm25: BM25
    settings: Any = None  # those of the script
    accelerator: Any = None  # of a script that trains
    progress: bool = False  # show progress of BM25's searches for training

    @cached_property
    def mined(self) -> Run:
        """BM25's run for the training queries, from which hard negatives are drawn."""
        return self.searched(self.train, NEGATIVES_DEPTH)

    @cached_property
    def dev_sample(self) -> Split:
        """The dev queries that choose: as many as the settings say, drawn at random; 0: all."""
        return some_queries(self.dev, self.settings.dev_queries)

    @cached_property
    def dev_run(self) -> Run:
        return self.searched(self.dev, DEV_DEPTH)

    def fit(
        self,
        model: Any,
        training: TrainingSettings,
        folder: Path,
        negatives: int = 0,
        *,
        mined: Run | None = None,
        dev_queries: int | None = None,
        **more: Any,
    ) -> Any:
        """Train a model with `train.fit.fit`.

        mined: run from which hard negatives are drawn; by default BM25's. dev_queries: by default as in the
        settings. more: keyword arguments of `fit`.
        """
        if mined is None:
            mined = self.mined if negatives else {}
        count = self.settings.dev_queries if dev_queries is None else dev_queries
        splits = (self.train, self.dev)
        runs = (mined, self.dev_run)
        return fit(
            model, self.collection, splits, runs, negatives, count, training, folder, self.accelerator, **more
        )

    def searched(self, split: Split, depth: int) -> Run:
        """Return BM25's run for a split. All processes call this, and divide the queries."""
        return AllProcesses(self.bm25, PartialState()).search(split.queries, depth, progress=self.progress)

    @cached_property
    def measured_queries(self) -> list[str]:
        """Test queries with a relevant document, in the order of `per_query`."""
        return [
            q for q, judged in self.test.judgements.items() if any(grade > 0 for grade in judged.values())
        ]

    def clusters(self, queries: Sequence[str]) -> list[str]:
        """Return, for each query, the title of the most relevant document, or its id if it has no title.

        Queries about the same article are not independent.
        """
        corpus = self.collection.corpus
        ids = [self.most_relevant(query) for query in queries]
        return [corpus.titles[corpus.position(id)] or id for id in ids]

    def most_relevant(self, query: str) -> str:
        """Return the document of the highest grade for a test query."""
        return min((-grade, id) for id, grade in self.test.judgements[query].items() if grade > 0)[1]

    def pool(self, depth: int) -> Run:
        """For each test query, return BM25's first `depth` documents, with scores."""
        return candidates(self.bm25.search(self.test.queries, depth), depth)

    def lexical(self, measures: tuple[str, ...]) -> PerQuery:
        """Return BM25's value of each measure for each test query."""
        return per_query(self.bm25.search(self.test.queries, 100), self.test.judgements, measures)


def open_study(
    settings: Any,
    accelerator: Accelerator,
    console: Console,
    needs: Names[str] = ("training", "test"),
    collection: str = "",
    divide: Callable[[Collection], Collection] = lambda divided: divided,
) -> StudyData:
    """Open `collection` or, by default, `settings.collection`; hold out dev queries if there are none.

    needs: kinds of queries that must exist. divide: replaces the collection that was opened. Raises
    SystemExit if any kind in `needs` has no queries.
    """
    name = collection or settings.collection
    subset = settings.documents or None if name == "pydocs" else None
    divided = divide(open_collection(name, subset, console))
    train, dev = training_splits(divided, seed=0)
    test = some_queries(divided.splits.get("test", Split({}, {})), settings.queries)
    for kind, split in (("training", train), ("dev", dev), ("test", test)):
        if kind in needs and not split.queries:
            raise SystemExit(f"{divided.name} has no {kind} queries; its splits: {', '.join(divided.splits)}")
    bm25 = shared_bm25(divided.corpus, Path(settings.output, f"bm25-{folder_name(name)}"))
    return StudyData(divided, train, dev, test, bm25, settings, accelerator)


def shared_bm25(corpus: Corpus, folder: Path, ngrams: int = 1) -> BM25:
    """Return BM25, which one process builds; several processes map it from `folder`, until they end."""
    processes = PartialState()
    bm25 = SharedBM25(corpus, folder, processes, ngrams).index()
    if processes.num_processes > 1 and processes.is_main_process:
        atexit.register(remove_folder, folder, SAVED)
    return bm25


def some_queries(split: Split, count: int) -> Split:
    """Draw `count` queries (0: all) in a random order that depends only on the query ids.

    The first n queries of the result are a draw of n, from all topics of a collection sorted by topic.
    """
    return split.only(hash_order(split.queries)[: count or None])


def bind(
    settings: Any, accelerator: Accelerator, free: Names[str], named: Names[str] = (), **more: Any
) -> None:
    """Refuse a results folder made with different settings; settings in `free` may differ.

    named: settings that name files or folders, whose contents must not have changed.
    """
    bound_settings = asdict(settings) | more | content(**{name: getattr(settings, name) for name in named})
    bound_settings |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    # Values without ids, from other versions, are of other queries.
    bound_settings |= {"order of queries": "by hash"}
    free = {*free, "output", "tracker"}
    by_main(lambda: keep_settings(bound_settings, Path(settings.output), free), accelerator)


def bind_collection(data: StudyData, folder: Path, **more: Any) -> None:
    """Refuse a folder of results of a collection with the same name and other contents."""
    bound_settings = {"fingerprint": data.collection.fingerprint} | more
    by_main(lambda: keep_settings(bound_settings, folder, ()), data.accelerator)


def trained_once(
    folder: Path,
    seed: int,
    make: Callable[[], Any],
    train: Callable[[Any, Path], Any],
    accelerator: Accelerator,
    read: Callable[[Path], Any] = load,
) -> Any:
    """Return the model in FOLDER/checkpoint, or train(make(), FOLDER/training) with the given seed.

    FOLDER/training keeps the losses and the data for `training_cost`. The checkpoints for resuming, several
    times the size of the model, are deleted after training.
    """
    checkpoint = folder / "checkpoint"
    training = folder / "training"
    finished = checkpoint.is_dir()
    accelerator.wait_for_everyone()  # all processes check before one can finish
    if not finished:
        torch.manual_seed(seed)
        model = train(make().to(accelerator.device), training)

        def keep() -> None:
            cost = {"step": kept_step(training), "seconds": training_seconds(training)}
            write_json(training / "cost.json", cost)
            model.save_pretrained(checkpoint)

        by_main(keep, accelerator)
        accelerator.free_memory()

    def clean() -> None:  # also cleans up after a run that was killed
        for name in ("checkpoints", "best"):
            remove_folder(training / name, TRAINED)

    by_main(clean, accelerator)
    return read(checkpoint).to(accelerator.device).eval()


def training_cost(folder: Path) -> dict[str, Any]:
    """Return the kept step (0: untrained) and seconds of `trained_once`; {} for other folders."""
    return json_or_empty(folder / "training" / "cost.json")


def training_of(folder: Path) -> Measured:
    """Return "kept step", and DEV: nDCG@10 of each dev query, "untrained" and "trained"."""
    step_kept = training_cost(folder).get("step")
    values = {step: scores.tolist() for step, scores in dev_values(folder / "training").items()}
    dev = {"untrained": values[0], "trained": values[step_kept]} if step_kept in values else {}
    return {"kept step": step_kept, DEV: dev}


def measured_once(file: Path, question: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
    """Return the answer in a file if it is to the same question; else measure, save and return the answer.

    question: what the answer depends on, as JSON; it is compared as a whole.
    """
    if json_or_empty(file).get("question") != question:
        write_json(file, {"question": question, "answer": measure()})
    return read_json(file)["answer"]


@dataclass(frozen=True)
class Job:
    """A measurement: `measure` receives the result of `prepare`, and its own result is saved in `file`."""

    name: str  # name in messages
    file: Path
    prepare: Callable[[], Any]  # runs on every process, such as training
    measure: Callable[[Any], Measured]  # runs only on the main process
    states: Path | None = None  # folder that jobs share, deleted at the end

    def save(self, prepared: Any) -> None:
        write_json(self.file, self.measure(prepared))


def run_jobs(
    jobs: Sequence[Job], settings: Output, accelerator: Accelerator, console: Console
) -> list[Measured]:
    """Run all jobs, and return the results; results of finished jobs are read from files."""
    missing = [job for job in jobs if not job.file.is_file()]
    accelerator.wait_for_everyone()  # all processes find the same missing jobs
    with ExitStack() as stack:
        for states in {job.states for job in jobs if job.states}:
            stack.enter_context(deleted_after(states, accelerator))
        for n, job in enumerate(missing, 1):
            console.print(f"{job.name} ({n} of {len(missing)})")
            try:
                with refusing(f"{job.name}: "):
                    prepared = job.prepare()
                    by_main(partial(job.save, prepared), accelerator)
            finally:
                with suppress(OSError, ValueError, TypeError):  # the job's own error counts
                    if accelerator.is_main_process:
                        spent(Path(settings.output))
            accelerator.free_memory()
    return [read_json(job.file) for job in jobs]


def encoder_job(
    name: str,
    folder: Path,
    seed: int,
    make: Callable[[], Paradigm],
    measure: Callable[[Paradigm, Index], Measured],
    data: StudyData,
    *,
    read: Callable[[Path], Any] = load,
    checkpoint: Path | None = None,
    **changes: Any,
) -> Job:
    """Make a job that trains a paradigm, indexes the documents, and writes FOLDER/values.json.

    checkpoint: a model that `read` opens, to measure without training. The file has two keys besides the keys
    from `measure`. "kept step" is the training step of the kept model: 0 if training improved nothing, None
    for a `checkpoint`. DEV maps "untrained" and "trained" to the dev queries' nDCG@10 after reranking BM25's
    first documents; it is empty if training did not measure dev queries.
    """
    settings: EncoderStudy = data.settings
    accelerator = data.accelerator
    layers = settings.trained_layers
    states = Path(settings.output) / STATES
    corpus = data.collection.corpus

    def train(paradigm: Paradigm, training: Path) -> Paradigm:
        chosen = TrainingSettings(**training_fields(settings) | {"seed": seed} | changes, save_every=100)
        mining: dict[str, Any] = {"negatives": settings.negatives, "own_negatives": settings.own_negatives}
        return data.fit(paradigm, chosen, training, states=states, **mining)

    def prepare() -> Paradigm:
        if checkpoint is not None:
            torch.manual_seed(seed)  # `read` may make an untrained model
            return read(checkpoint).to(accelerator.device).eval()
        paradigm = trained_once(folder, seed, make, train, accelerator, read)
        if layers:
            keep_states(paradigm, layers, states, {"document": corpus}, accelerator)
        return paradigm

    def measure_model(paradigm: Paradigm) -> Measured:
        folder.mkdir(parents=True, exist_ok=True)
        precision = accelerator.mixed_precision
        store = Store.build(kinds.exact(), paradigm, corpus.ids, corpus, precision=precision)
        training = training_of(folder) if checkpoint is None else {"kept step": None, DEV: {}}
        return training | measure(paradigm, Index(store))

    return Job(f"{data.collection.name}, {name}", folder / "values.json", prepare, measure_model, states)


def values_of(run: Run, split: Split, measures: Sequence[str]) -> dict[str, list[float]]:
    """Return each measure's values, one per judged query with a relevant document."""
    return {
        name: scores.tolist() for name, scores in per_query(run, split.judgements, measures).values.items()
    }
