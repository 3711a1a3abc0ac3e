"""What training scripts do for generative models: a backbone, pairs, a training with kept encoder states."""

from collections.abc import Callable, Sequence
from pathlib import Path

from accelerate import Accelerator

from paradigms.data import Collection, Corpus, Problems, Run, Split
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
from paradigms.io.terminal import shown
from paradigms.model import autocast
from paradigms.train.job import STATES, DevMeasure, add_states, deleted_after, training_splits
from paradigms.train.likelihood import Likelihood
from paradigms.train.loop import TrainingSettings, train
from paradigms.train.state import by_main

# Of each document that a generative model learns to name: several and short, as a query is.
PASSAGES, PASSAGE_WORDS = 6, 16
SPANS = 3  # of each document whose text is its name


def fit_generative(
    model: Generative,
    collection: Collection,
    splits: tuple[Split, Split],
    dev_run: Run,
    dev_queries: int,
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
    generated: Path | None = None,
) -> Generative:
    """The model trained on pairs of splits[0] and of the corpus, chosen as `fit` chooses.

    generated: JSON lines of queries that a generator wrote for documents (`pairs.read_generated`).
    """
    problems = Problems()
    pairs = training_pairs(model, collection.corpus, splits[0], problems, training.seed)
    if generated is not None:
        pairs += generated_pairs(read_generated(generated), model.identifiers, problems)
    corpus, dev = collection.corpus, None
    if splits[1].queries and dev_queries:
        dev = DevMeasure(corpus, splits[1], dev_run, dev_queries, accelerator.mixed_precision)
    return fit_pairs(model, corpus, pairs, training, folder, accelerator, dev=dev, problems=problems)


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
    problems: Problems | None = None,
) -> Generative:
    """The model trained on pairs. On a CPU, what a frozen encoder gives of the sources is kept on disk.

    states: folder of that, as in `fit`. A GPU encodes again in less time than it reads. problems: of the
    pairs, told with those of the identifiers.
    """
    for found in (model.identifiers.problems, problems):
        if found:
            accelerator.print(shown(f"{model.name}: {found}"))
    objective = Likelihood(model, corpus, pairs)
    kept = model.settings.frozen and accelerator.device.type == "cpu"
    with deleted_after(folder / STATES, accelerator) as own:
        if kept:
            with model.evaluating(), autocast(accelerator.device, accelerator.mixed_precision):
                store = model.keep_states(states or own)
                sources = list(dict.fromkeys(pair.source for pair in pairs))
                add_states(store, sources, model.tokenize, model.encode, accelerator)
        trained = train(model, objective, training, folder, accelerator=accelerator, dev=dev)
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
