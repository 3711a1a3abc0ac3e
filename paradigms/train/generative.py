"""Train generative models in scripts: the backbone, training pairs and stored encoder states."""

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from accelerate import Accelerator

from paradigms.baselines.bm25 import BM25
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
from paradigms.train.examples import draw
from paradigms.train.fit import (
    NEGATIVES_DEPTH,
    STATES,
    DevMeasure,
    add_states,
    deleted_after,
    drawn,
    training_splits,
)
from paradigms.train.likelihood import Likelihood
from paradigms.train.loop import Dev, TrainingSettings, train
from paradigms.train.state import by_main
from paradigms.train.teacher import ScorePairs, pair_scores, score_of

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
    negatives: int = 0,
    teacher: str = "",
) -> Generative:
    """Train a model on pairs from splits[0] and the corpus, and choose its best state as `fit` does.

    generated: JSON lines of generated queries (`pairs.read_generated`). negatives, teacher: see
    `with_negatives`; the teacher is a model for `pair_scores`.
    """
    problems = Problems()
    pairs = training_pairs(model, collection.corpus, splits[0], problems, training.seed)
    if generated is not None:
        pairs += generated_pairs(read_generated(generated), model.identifiers, problems)
    if negatives:

        def scores(queries: dict[str, str]) -> ScorePairs:
            return pair_scores(teacher, folder / "teacher.run", queries, collection.corpus, accelerator)

        pairs = with_negatives(
            pairs, collection.corpus, negatives, training.seed, scores if teacher else None
        )
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
    """Train a model on pairs. On a CPU, a frozen encoder's states for the sources in the training's batches
    are stored on disk.

    states: folder for these states, as in `fit`. On a GPU, nothing is stored, because encoding is faster than
    reading. problems: problems found in the pairs, printed after the identifiers' problems.
    """
    for report in (model.identifiers.problems, problems):
        if report:
            accelerator.print(shown(f"{model.name}: {report}"))
    objective = Likelihood(model, corpus, pairs).configure(training)
    stored = model.settings.frozen and accelerator.device.type == "cpu"
    with (
        deleted_after(folder / STATES, accelerator) if stored and not states else nullcontext(states) as place
    ):
        if stored and place:
            with model.evaluating(), autocast(accelerator.device, accelerator.mixed_precision):
                store = model.keep_states(place)
                sources = list(dict.fromkeys(pair.source for pair in drawn(pairs, training, accelerator)))
                add_states(store, sources, model.tokenize, model.encode, accelerator)
        trained = train(model, objective, training, folder, accelerator=accelerator, dev=dev)
    return trained.to(accelerator.device)


def with_negatives(
    pairs: Sequence[Pair],
    corpus: Corpus,
    negatives: int,
    seed: int,
    teacher: Callable[[dict[str, str]], ScorePairs] | None = None,
) -> list[Pair]:
    """Add to each pair `negatives` documents drawn from BM25's top `NEGATIVES_DEPTH` for its source.

    Documents that are paired with the source in any pair, and their copies, are not drawn. teacher: receives
    the sources, keyed by number, and returns a function that scores their documents. Raises ValueError if the
    corpus has too few documents.
    """
    numbers: dict[str, int] = {}
    own: dict[int, set[int]] = {}
    for pair in pairs:
        first = corpus.first(corpus.ids[pair.document])
        own.setdefault(numbers.setdefault(pair.source, len(numbers)), set()).add(first)
    sources = {str(n): source for source, n in numbers.items()}
    run = BM25(corpus).search(sources, NEGATIVES_DEPTH, progress=True)
    ranked = []
    for pair in pairs:
        n = numbers[pair.source]
        hard = list(dict.fromkeys(p for id in run[str(n)] if (p := corpus.first(id)) not in own[n]))
        rng = random.Random(f"{seed} {pair.source} {pair.document}")
        others = draw(hard, own[n], negatives, corpus, rng, pair.source)
        ranked.append(replace(pair, negatives=tuple(others)))
    if teacher is None:
        return ranked
    wanted: dict[str, dict[str, None]] = {id: {} for id in sources}
    for pair in ranked:
        documents = (pair.document, *pair.negatives)
        wanted[str(numbers[pair.source])] |= dict.fromkeys(corpus.ids[p] for p in documents)
    scores = teacher(sources)({id: list(documents) for id, documents in wanted.items()})

    def taught(pair: Pair) -> tuple[float, ...]:
        id, documents = str(numbers[pair.source]), (pair.document, *pair.negatives)
        return tuple(score_of(scores, id, corpus.ids[p], "teacher") for p in documents)

    return [replace(pair, teacher=taught(pair)) for pair in ranked]


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
