"""Train a model on a collection: splits, examples, the dev measure, and states of frozen layers."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator

from paradigms.data import Collection, Corpus, Problems, Run, Split, hold_out
from paradigms.data.identical import own_documents, without_own
from paradigms.encoder.batches import Batch
from paradigms.encoder.frozen import WRITTEN, LowerStates
from paradigms.encoder.precision import autocast
from paradigms.encoder.settings import SIDES, Side
from paradigms.evaluate import candidates, per_query
from paradigms.io.files import check_locks, remove_folder
from paradigms.io.terminal import printable
from paradigms.model import Paradigm
from paradigms.retrieve import AllProcesses, Reranking, Retriever
from paradigms.train.checkpoints import STATES
from paradigms.train.contrastive import Contrastive, Listwise
from paradigms.train.examples import Example, build_examples
from paradigms.train.loop import Dev, Paused, TrainingSettings, freeze, train
from paradigms.train.losses import Objective, digest_of
from paradigms.train.negatives import NEGATIVES_DEPTH, FalseNegatives, ScorePairs, mined_run
from paradigms.train.order import mixed_batches
from paradigms.train.parallel import by_main, locked_by_main, sharded
from paradigms.trainable import Trainable

Encoded = TypeVar("Encoded", bound=Trainable)  # a `Paradigm` or a `CrossAttention`
Used = TypeVar("Used")
DEV_DEPTH = 10  # documents per dev query that the dev measure reranks


class DevMeasure:
    """Measure a paradigm by its nDCG@10 for each dev query.

    Candidates are the first DEV_DEPTH documents of `run` and the relevant documents; queries are chosen by
    hash. launch: processes that all call the measure, and divide the queries. digest: SHA-256 of the queries,
    their judgements, and the candidates' texts.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: Split,
        run: Run,
        queries: int,
        precision: str,
        launch: Accelerator | None = None,
    ) -> None:
        self.corpus = corpus
        self.precision = precision
        self.launch = launch
        self.queries = dev_queries(split, queries)
        self.judgements = {query: split.judgements[query] for query in self.queries}
        retrieved = {query: run.get(query, {}) for query in self.queries}
        self.pool = candidates(retrieved, DEV_DEPTH, with_relevant=self.judgements)
        texts = {id: corpus[corpus.position(id)] for pool in self.pool.values() for id in pool}
        judged = ((q, text, sorted(self.judgements[q].items())) for q, text in self.queries.items())
        pools = ((query, sorted(pool)) for query, pool in self.pool.items())
        self.digest = digest_of(chain(judged, pools, sorted(texts.items())))

    def __call__(self, model: Any) -> Dev:
        reranker: Retriever = Reranking(model, self.corpus, precision=self.precision)
        if self.launch is not None:
            reranker = AllProcesses(reranker, self.launch)
        reranked = reranker.rerank(self.queries, self.pool)
        return per_query(reranked, self.judgements, ("nDCG@10",)).values["nDCG@10"]


def dev_queries(split: Split, count: int) -> dict[str, str]:
    """Choose `count` queries of a split by a hash of their ids."""
    ordered = sorted(split.queries, key=lambda q: hashlib.sha256(q.encode("utf-8", "replace")).digest())
    return {query: split.queries[query] for query in sorted(ordered[:count])}


def dev_measure(
    corpus: Corpus, split: Split, run: Run, queries: int, accelerator: Accelerator
) -> DevMeasure | None:
    """Make the dev measure on `queries` queries of a split, or None if there are none."""
    if not split.queries or not queries:
        return None
    launch = None if sharded() else accelerator
    return DevMeasure(corpus, split, run, queries, accelerator.mixed_precision, launch)


def training_splits(collection: Collection, seed: int, *excluded: str) -> tuple[Split, Split]:
    """Choose (train, dev) splits that have judgements and are not `excluded` (by default, test).

    Without a dev split, a tenth of the training queries is held out.
    """
    splits = {name: split for name, split in collection.splits.items() if name not in (excluded or ("test",))}
    judged = {name: split for name, split in splits.items() if any(split.judgements.values())}
    train = judged.get("train", Split({}, {}))
    return (train, judged["dev"]) if "dev" in judged else hold_out(train, share=0.1, seed=seed)


def fit(
    paradigm: Encoded,
    collection: Collection,
    splits: tuple[Split, Split],
    runs: tuple[Run, Run],
    negatives: int,
    dev_count: int,
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
    *,
    teacher: ScorePairs | None = None,
    suspects: FalseNegatives | None = None,
    states: Path | None = None,
    own_negatives: bool = False,
) -> Encoded:
    """Train on splits[0] and choose the best state by nDCG@10 on `dev_count` queries of splits[1].

    The dev measure is `DevMeasure`. runs: first-stage rankings of both splits' queries, for hard negatives
    and for reranking. own_negatives: the model itself ranks the training queries, once before training
    (`mined_run`). Without dev queries, the last state is returned. Cross-attention needs negatives.
    teacher: provides the scores for `training.distillation`. suspects: detects hard negatives to leave out.
    states: folder for states of frozen layers (`keep_states`), which training runs share and the caller
    deletes; by default, a temporary folder in `folder`.
    """
    corpus = collection.corpus
    if own_negatives and not negatives:
        raise ValueError("own_negatives draws hard negatives from the model's own run: set negatives")
    if (teacher is None) != (training.distillation is None):
        raise ValueError("a teacher needs a distillation loss, and a distillation loss needs a teacher")
    if own_negatives:
        runs = mined_run(lambda: paradigm, corpus, splits[0], folder, accelerator), runs[1]
    dev_run = without_own(runs[1], own_documents(corpus, splits[1]))
    problems = Problems()
    examples = build_examples(
        corpus,
        splits[0],
        runs[0],
        negatives,
        NEGATIVES_DEPTH,
        training.seed,
        suspects=suspects,
        teacher=teacher,
        problems=problems,
    )
    if suspects is not None:
        accelerator.print(printable(problems or "No hard negative scores as high as a relevant document."))
    objective: Objective
    if isinstance(paradigm, Paradigm):
        objective = Contrastive(paradigm, corpus, examples)
        layers = training.trained_layers
    else:
        objective = Listwise(paradigm, corpus, examples)
        layers = 0  # it reads pairs, so single texts have no states
    objective.configure(training)  # refuses settings before states are stored
    dev = dev_measure(corpus, splits[1], dev_run, dev_count, accelerator)
    temporary = bool(layers) and states is None
    with deleted_after(folder / STATES, accelerator) if temporary else nullcontext(states) as place:
        if layers and place is not None:
            texts = _texts(corpus, used_examples(examples, training, accelerator), dev)
            keep_states(paradigm, layers, place, texts, accelerator)
        trained = train(paradigm, objective, training, folder, accelerator=accelerator, dev=dev)
    trained = trained if sharded() else trained.to(accelerator.device)
    if layers and states is not None:
        keep_states(trained, layers, states, {}, accelerator)
    return trained


def _texts(corpus: Corpus, examples: list[Example], dev: DevMeasure | None) -> dict[Side, list[str]]:
    documents = {position for example in examples for position in (example.positive, *example.negatives)}
    queries = {example.query: None for example in examples}
    if dev is not None:
        documents |= {corpus.position(d) for row in dev.pool.values() for d in row}
        queries |= dict.fromkeys(dev.queries.values())
    return {"query": list(queries), "document": [corpus[position] for position in sorted(documents)]}


@contextmanager
def deleted_after(folder: Path, accelerator: Accelerator) -> Iterator[Path]:
    """Create and lock a folder for states of frozen layers, and delete it when the run ends or fails.

    States left there by a killed or `Paused` run are reused. Raises BlockingIOError while another run uses
    the folder.
    """
    with locked_by_main(folder, accelerator):
        paused = False
        try:
            yield folder
            accelerator.wait_for_everyone()
        except Paused:
            paused = True
            raise
        finally:
            with suppress(BlockingIOError):  # the folder was deleted and may belong to another run
                check_locks(folder / "states")
                if accelerator.is_main_process and not paused:
                    try:
                        remove_folder(folder, WRITTEN)
                    except FileExistsError as error:
                        warnings.warn(f"{folder} is not removed: {error}", RuntimeWarning, stacklevel=2)


def keep_states(
    paradigm: Trainable,
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
        tower = encoder.of(side)
        assert tower.split is not None
        side_texts = texts.get(side, ())
        tokenize = partial(tower.tokenize, side=side)
        with autocast(accelerator.device, accelerator.mixed_precision):
            store = tower.split.keep_states(folder)
            add_states(store, side_texts, tokenize, tower.split.compute, accelerator)
            tower.split.outputs = None
            if untrained and not tower.split.has_head:  # logits of the whole vocabulary would be large
                store = tower.split.keep_states(folder, outputs=True)
                add_states(store, side_texts, tokenize, tower.split.untrained, accelerator)


def add_states(
    store: LowerStates,
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Batch],
    compute: Callable[[Batch], torch.Tensor],
    accelerator: Accelerator,
) -> None:
    """Store each process's share of the texts' states, unless they are `too_large`; then open all states."""
    if texts and not [*store.folder.parent.glob("[0-9a-f]*/")]:
        accelerator.print(
            f"States of frozen layers are kept in {store.folder.parent} until this run ends. "
            "If it is killed, the same command uses them; if you do not repeat it, delete them."
        )
    if large := by_main(lambda: store.too_large(texts, tokenize, compute), accelerator):
        accelerator.print(f"States are not stored, and layers run again for every text: {large}")
    else:
        store.add(
            texts,
            tokenize,
            compute,
            process=accelerator.process_index,
            processes=accelerator.num_processes,
            progress=accelerator.is_main_process,
        )
    accelerator.wait_for_everyone()
    store.open()


def used_examples(
    examples: Sequence[Used], training: TrainingSettings, accelerator: Accelerator
) -> list[Used]:
    """Return the examples that the batches of a training run contain, in the given order."""
    together = training.batch_size * accelerator.num_processes
    batches = mixed_batches([len(examples)], [1.0], together, training.steps, seed=training.seed)
    return [examples[n] for n in sorted({n for batch in batches for n in batch})]
