"""Training of generative models in scripts: backbone, training pairs, stored encoder states."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
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
from paradigms.train.fit import STATES, DevMeasure, add_states, deleted_after, training_splits
from paradigms.train.likelihood import Likelihood
from paradigms.train.loop import Dev, TrainingSettings, train
from paradigms.train.state import by_main

PASSAGES, PASSAGE_WORDS = 6, 16  # passages per document to index, and words per passage, as in a query
SPANS = 3  # spans per document if texts are identifiers


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
    """Train a model on pairs from splits[0] and the corpus, and choose its best state as `fit` does.

    generated: JSON lines of generated queries (`pairs.read_generated`).
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
    dev: Callable[[Generative], Dev] | None = None,
    states: Path | None = None,
    problems: Problems | None = None,
) -> Generative:
    """Train a model on pairs. On a CPU, a frozen encoder's states of the sources are stored on disk.

    states: folder for these states, as in `fit`. On a GPU, nothing is stored, because encoding is faster than
    reading. problems: problems of the pairs, printed after the identifiers' problems.
    """
    for report in (model.identifiers.problems, problems):
        if report:
            accelerator.print(shown(f"{model.name}: {report}"))
    objective = Likelihood(model, corpus, pairs)
    stored = model.settings.frozen and accelerator.device.type == "cpu"
    with (
        deleted_after(folder / STATES, accelerator) if stored and not states else nullcontext(states) as place
    ):
        if stored and place:
            with model.evaluating(), autocast(accelerator.device, accelerator.mixed_precision):
                store = model.keep_states(place)
                sources = list(dict.fromkeys(pair.source for pair in pairs))
                add_states(store, sources, model.tokenize, model.encode, accelerator)
        trained = train(model, objective, training, folder, accelerator=accelerator, dev=dev)
    return trained.to(accelerator.device)


def t5_folder(
    name: str, collection: Collection, folder: Path, seed: int, accelerator: Accelerator
) -> str | Path:
    """Return a backbone's name or, for "small", the path of a random T5 that is created once in `folder`."""
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
    """Build training pairs from the split's queries and from every document.

    If identifiers are text (SEAL), targets are spans of the query's relevant documents or of the document
    itself. Otherwise, targets are identifiers, and sources are the queries and `PASSAGES` passages of each
    document.
    """
    ids, length = model.identifiers, model.settings.document_length
    if ids.kind == "text":
        common = {"length": length, "seed": seed}
        spans = span_pairs(corpus, split, model.tokenizer, problems, **common)
        return spans + document_span_pairs(corpus, model.tokenizer, problems, spans=SPANS, **common)
    passages = indexing_pairs(corpus, ids, problems, words=PASSAGE_WORDS, passages=PASSAGES, seed=seed)
    return retrieval_pairs(split, ids) + passages
