"""Set up and run training: splits, examples, the dev measure, and states of frozen layers."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import (
    Collection,
    Corpus,
    Problems,
    Run,
    Split,
    hold_out,
    read_run,
    write_run,
)
from paradigms.data.identical import own_documents, without_own
from paradigms.data.trec import check_ids
from paradigms.encoder.batches import Batch
from paradigms.encoder.frozen import KEPT, LowerStates
from paradigms.encoder.settings import SIDES, Side
from paradigms.encoder.towers import TwoTowers
from paradigms.evaluate import candidates, per_query
from paradigms.io.files import check_locks, locked, remove_folder, write_text
from paradigms.io.terminal import shown
from paradigms.model import Paradigm, autocast
from paradigms.retrieve import Model, Reranking
from paradigms.train.contrastive import Contrastive, Listwise
from paradigms.train.examples import Example, build_examples, step_batches
from paradigms.train.loop import Dev, Paused, TrainingSettings, freeze, train
from paradigms.train.losses import Objective
from paradigms.train.mining import mine
from paradigms.train.state import by_main, locked_by_main
from paradigms.train.teacher import FalseNegatives, ScorePairs

Encoded = TypeVar("Encoded", Paradigm, CrossAttention)
Drawn = TypeVar("Drawn")

DEV_DEPTH = 10  # documents per dev query that the dev measure reranks
NEGATIVES_DEPTH = 100  # documents per training query from which hard negatives are drawn
STATES = "states"  # folder for states of frozen layers during a run
PAUSED = "paused.txt"  # file in STATES between the calls of a run that has used its minutes


class DevMeasure:
    """Measure a paradigm by its nDCG@10 for each dev query.

    Candidates are the first DEV_DEPTH documents of `run` and the relevant documents; queries are chosen by
    hash.
    """

    def __init__(self, corpus: Corpus, split: Split, run: Run, queries: int, precision: str) -> None:
        drawn = sorted(split.queries, key=lambda q: hashlib.sha256(q.encode("utf-8", "replace")).digest())
        self.corpus, self.precision = corpus, precision
        self.queries = {query: split.queries[query] for query in sorted(drawn[:queries])}
        self.judgements = {query: split.judgements[query] for query in self.queries}
        self.pool = candidates({q: run.get(q, {}) for q in self.queries}, self.judgements, DEV_DEPTH)

    def __call__(self, model: Model) -> Dev:
        reranker = Reranking(model, self.corpus, precision=self.precision)
        reranked = reranker.rerank(self.queries, self.pool)
        return per_query(reranked, self.judgements, ("nDCG@10",)).values["nDCG@10"]


def training_splits(collection: Collection, seed: int, *measured: str) -> tuple[Split, Split]:
    """Choose (train, dev) splits that have judgements and are not `measured` (by default, test).

    Without a dev split, a tenth of the training queries is held out.
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
    own_negatives: bool = False,
) -> Encoded:
    """Train on splits[0] and choose the best state by nDCG@10 on `dev_queries` queries of splits[1].

    The dev measure is `DevMeasure`. runs: first-stage rankings of both splits' queries, for hard negatives
    and for reranking. own_negatives: the model itself ranks the training queries, once before training
    (`own_run`). Without dev queries, the last state is returned. Cross-attention needs negatives.
    teacher: provides the scores for `training.distillation`. suspects: detects hard negatives to leave out.
    states: folder for states of frozen layers (`keep_states`), which training runs share and the caller
    deletes; by default, a temporary folder in `folder`.
    """
    corpus, (queries, dev_split) = collection.corpus, splits
    if own_negatives and not negatives:
        raise ValueError("own_negatives draws hard negatives from the model's own run: set negatives")
    if (teacher is None) != (training.distillation is None):
        raise ValueError("a teacher needs a distillation loss, and a distillation loss needs a teacher")
    if own_negatives:
        runs = own_run(lambda: paradigm, corpus, queries, folder, accelerator), runs[1]
    # A query that is itself a document is not its own negative.
    train_run, dev_run = (without_own(r, own_documents(corpus, s)) for s, r in zip(splits, runs, strict=True))
    problems = Problems()
    options: dict[str, Any] = {"suspects": suspects, "teacher": teacher, "problems": problems}
    examples = build_examples(
        corpus, queries, train_run, negatives, NEGATIVES_DEPTH, training.seed, **options
    )
    if suspects is not None:
        accelerator.print(shown(problems or "No hard negative scores as high as a relevant document."))
    objective: Objective
    layers = training.trained_layers
    if isinstance(paradigm, CrossAttention):
        objective = Listwise(paradigm, corpus, examples)
        layers = 0  # it reads pairs, so single texts have no states
    else:
        objective = Contrastive(paradigm, corpus, examples)
    objective.configure(training)  # refuses settings before states are stored
    dev = None
    if dev_split.queries and dev_queries:
        dev = DevMeasure(corpus, dev_split, dev_run, dev_queries, accelerator.mixed_precision)
    kept = deleted_after(folder / STATES, accelerator) if layers and not states else nullcontext(states)
    with kept as place:
        if place and layers:
            texts = _texts(corpus, examples, dev, training, accelerator)
            keep_states(paradigm, layers, place, texts, accelerator)
        trained = train(paradigm, objective, training, folder, accelerator=accelerator, dev=dev)
    trained = trained.to(accelerator.device)
    if layers and states is not None:
        keep_states(trained, layers, states, {}, accelerator)
    return trained


def own_run(
    open_model: Callable[[], Encoded], corpus: Corpus, split: Split, folder: Path, accelerator: Accelerator
) -> Run:
    """Use a model to find NEGATIVES_DEPTH documents for each query; cache the run in folder/mined.run.

    One process opens the model and searches. Raises ValueError if the model cannot search, if the file is
    damaged, or if it cannot hold an id.
    """
    file = folder / "mined.run"
    check_ids([*split.queries, *corpus.ids], "id")

    def search() -> None:
        if not file.is_file():
            model, precision = open_model().to(accelerator.device), accelerator.mixed_precision
            run = mine(model, corpus, split, NEGATIVES_DEPTH, precision=precision, progress=True)
            write_run(file, run, tag=model.name)

    by_main(search, accelerator)
    run = read_run(file)
    if split.queries and not run:
        raise ValueError(
            f"{file} is damaged: it holds no query. Delete it, and the queries are searched again"
        )
    return run


@contextmanager
def deleted_after(folder: Path, accelerator: Accelerator) -> Iterator[Path]:
    """Create and lock a folder for states of frozen layers, and delete it when the run ends or fails.

    States left there by a killed or `Paused` run are reused. Raises BlockingIOError while another run uses
    the folder.
    """
    with locked_by_main(folder, accelerator):
        by_main(lambda: (folder / PAUSED).unlink(missing_ok=True), accelerator)
        try:
            yield folder
            accelerator.wait_for_everyone()
        except Paused as paused:
            # `sweep_states` does not delete files of this kind.
            by_main(partial(write_text, folder / PAUSED, f"{paused}\n"), accelerator)
            raise
        finally:
            with suppress(BlockingIOError):  # the folder was deleted and may belong to another run
                check_locks(folder / "states")
                if accelerator.is_main_process and not (folder / PAUSED).is_file():
                    try:
                        remove_folder(folder, KEPT)
                    except FileExistsError as error:
                        warnings.warn(f"{folder} is not removed: {error}", RuntimeWarning, stacklevel=2)


def sweep_states(output: Path) -> list[Path]:
    """Delete the states that killed runs left in results folders next to `output`; return their folders.

    States of `Paused` runs are kept, as are the states in `output`, which the repeated command reads.
    """
    beside = output.resolve().parent
    places = [*beside.glob(f"*/{STATES}"), *beside.glob(f"*/*/{STATES}")]
    swept = []
    for place in places:
        if output.resolve() in place.parents:
            continue
        with suppress(OSError):  # gone, in use, owned by another user, or with foreign files
            if any(place.iterdir()):
                with locked(place):
                    remove_folder(place, KEPT)
                swept.append(place)
    return swept


def keep_states(
    paradigm: Encoded,
    trained_layers: int,
    folder: Path,
    texts: Mapping[Side, Sequence[str]],
    accelerator: Accelerator,
    untrained: bool = False,
) -> None:
    """Freeze the paradigm, and store its frozen layers' states for each side's texts in `folder`.

    States that other paradigms or runs stored there are reused. Every process calls this and sees the same
    folder. untrained: also store the last layer's output, for a paradigm that is not trained afterwards.
    """
    freeze(paradigm, trained_layers)
    encoder: Any = paradigm.encoder
    for side in SIDES:
        tower = encoder.of(side) if isinstance(encoder, TwoTowers) else encoder
        assert tower.split is not None
        tokenize, layout = partial(tower.tokenize, side=side), tower.layout(side)
        with autocast(accelerator.device, accelerator.mixed_precision):
            store = tower.keep_states(folder)
            add_states(store, texts.get(side, ()), tokenize, tower.split.compute, accelerator, layout)
            tower.split.outputs = None
            if untrained and not tower.split.has_head:  # logits of the whole vocabulary would be large
                store = tower.keep_states(folder, outputs=True)
                add_states(store, texts.get(side, ()), tokenize, tower.split.untrained, accelerator, layout)


def add_states(
    store: LowerStates,
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Batch],
    compute: Callable[[Batch], torch.Tensor],
    accelerator: Accelerator,
    layout: str = "",
) -> None:
    """Store each process's share of the texts' states, unless they are `too_large`; then open all states."""
    share = {"process": accelerator.process_index, "processes": accelerator.num_processes}
    if texts and not [*store.folder.parent.glob("[0-9a-f]*/")]:
        accelerator.print(
            f"States of frozen layers are kept in {store.folder.parent} until this run ends. "
            "If it is killed, the next run in a folder beside it deletes them."
        )
    if large := by_main(lambda: store.too_large(texts, tokenize, compute), accelerator):
        accelerator.print(f"States are not stored, and layers run again for every text: {large}")
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
    """Return the texts that a training run encodes: the dev texts and the texts of the drawn examples."""
    used = drawn(examples, training, accelerator)
    documents = {position for example in used for position in (example.positive, *example.negatives)}
    queries = {example.query: None for example in used}
    if dev is not None:
        documents |= {corpus.position(d) for row in dev.pool.values() for d in row}
        queries |= dict.fromkeys(dev.queries.values())
    return {"query": list(queries), "document": [corpus[position] for position in sorted(documents)]}


def drawn(examples: Sequence[Drawn], training: TrainingSettings, accelerator: Accelerator) -> list[Drawn]:
    """Return the examples that the batches of a training run hold, in the given order."""
    together = training.batch_size * accelerator.num_processes
    count = training.steps * training.accumulation
    batches = step_batches(len(examples), together, count, seed=training.seed)
    return [examples[n] for n in sorted({n for batch in batches for n in batch})]
