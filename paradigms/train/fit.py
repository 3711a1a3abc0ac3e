"""Train a model on a collection: splits, examples, the dev measure, and states of frozen layers."""

import hashlib
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator

from paradigms.data import Collection, Corpus, Problems, Run, Split, hold_out
from paradigms.data.identical import own_documents, without_own
from paradigms.encoder.settings import Side
from paradigms.evaluate import candidates, per_query
from paradigms.io.terminal import printable
from paradigms.model import Paradigm
from paradigms.retrieve import AllProcesses, Reranking, Retriever
from paradigms.train.contrastive import Contrastive, Listwise
from paradigms.train.examples import Example, build_examples
from paradigms.train.loop import Dev, TrainingSettings, train
from paradigms.train.losses import Objective, digest_of
from paradigms.train.negatives import NEGATIVES_DEPTH, FalseNegatives, ScorePairs, mined_run
from paradigms.train.parallel import sharded
from paradigms.train.states import STATES, deleted_after, keep_states, used_examples
from paradigms.trainable import Trainable

Encoded = TypeVar("Encoded", bound=Trainable)  # a `Paradigm` or a `CrossAttention`

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
        judged = (
            (query, text, sorted(self.judgements[query].items())) for query, text in self.queries.items()
        )
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
    """Return the texts that a training run encodes: those of the examples and of the dev measure."""
    documents = {position for example in examples for position in (example.positive, *example.negatives)}
    queries = {example.query: None for example in examples}
    if dev is not None:
        documents |= {corpus.position(d) for row in dev.pool.values() for d in row}
        queries |= dict.fromkeys(dev.queries.values())
    return {"query": list(queries), "document": [corpus[position] for position in sorted(documents)]}
