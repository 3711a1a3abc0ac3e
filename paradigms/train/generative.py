"""Train generative models: the likelihood of identifiers, the pairs, and stored states of the encoder."""

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast, broadcast_object_list
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Corpus, Problems, Run, Split
from paradigms.encoder.precision import autocast
from paradigms.encoder.text import Batch
from paradigms.generative.identifiers import Targets
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
from paradigms.io.terminal import printable
from paradigms.train.checkpoints import STATES
from paradigms.train.examples import draw
from paradigms.train.fit import add_states, deleted_after, dev_measure, training_splits, used_examples
from paradigms.train.loop import Dev, TrainingSettings, train
from paradigms.train.losses import Objective, candidate_count, contrastive
from paradigms.train.negatives import NEGATIVES_DEPTH, ScorePairs, pair_scores, teacher_scores
from paradigms.train.parallel import by_main

PASSAGES = 6  # passages per document to index
PASSAGE_WORDS = 16  # words per passage, as in a query
SPANS = 3  # spans per document if texts are identifiers

# Sources, targets, and where several documents are ranked, their positions and a teacher's scores of them.
Pairs = tuple[Batch, Targets] | tuple[Batch, Targets, Int[Tensor, "b n"], Float[Tensor, "b c"]]


class Likelihood(Objective):
    """Minus the mean over targets of Σ_tokens log p (Wu et al. 2024, Eq. 8).

    If pairs have hard negatives, the softmax cross-entropy over the pair's document and its negatives is
    added, with rel under the model's ranking score. With distillation, `Distillation.joined` combines the
    likelihood with the teacher's scores instead, averaged over prefix lengths i: the teacher's scores are
    multiplied by √(i/m), and the student's score is the sum over the first i tokens. With "margin_mse", this
    is RIPOR's loss on prefixes (Zeng et al. 2024, arXiv:2311.09134, §3.3), whose factor 1 − 2/i also rises
    with falling increments, but is negative for short identifiers.

    corpus: documents from which NP-decoding's clusters are rebuilt every `model.settings.refresh` steps.
    """

    reads = ("distillation",)
    learns_alone = True  # to write its identifier

    corpus: Corpus

    def __init__(self, model: Generative, corpus: Corpus, pairs: Sequence[Pair]) -> None:
        if not pairs:
            raise ValueError(f"{model.name} has no training pairs: no judged query, and no text to index")
        if any(pair.negatives for pair in pairs):
            candidate_count(pairs, model.name, taught=False)
        self.model = model
        self.corpus = corpus
        self.examples = pairs
        self.ranks = bool(pairs[0].negatives)
        if self.ranks and model.identifiers.end is None:
            raise ValueError(f"{model.name} has no identifier to rank: its negatives would be n-grams")
        self.renews = model.settings.refresh > 0

    def without_negatives(self, batches: Sequence[Sequence[Pair]]) -> int:
        pairs = chain.from_iterable(batches if self.ranks else ())
        return sum({pair.document}.issuperset(pair.negatives) for pair in pairs)

    def collate(self, examples: list[Pair]) -> Pairs:
        model = self.model
        sources = model.tokenize([pair.source for pair in examples])
        targets = [[model.target(pair.document)[pair.first : pair.last]] for pair in examples]
        if not self.ranks:
            return sources, model.targets(targets)
        ranked = [[pair.document, *pair.negatives] for pair in examples]
        for row, (_, *others) in zip(targets, ranked, strict=True):
            row += [model.names(document)[0] for document in others]
        documents = torch.tensor(ranked)
        teacher = torch.tensor([pair.teacher if self.settings.distillation else () for pair in examples])
        return sources, model.targets(targets), documents, teacher

    def loss(self, model: nn.Module, batch: Pairs) -> Tensor:
        if len(batch) == 2:
            return -model(*batch).sum() / len(batch[1].ids)
        sources, targets, documents, teacher = batch
        parts = model(sources, targets, "log_probability", self.model.settings.score)
        return self.ranking(parts, documents, teacher)

    def ranking(
        self,
        parts: Float[Tensor, "two b n m"],
        documents: Int[Tensor, "b n"],
        teacher: Float[Tensor, "b c"],
    ) -> Tensor:
        """Compute the loss from `parts`: log p, and the contributions to rel, of each token."""
        likelihood = -parts[0, :, 0].sum(-1).mean()
        prefixes = parts[1].cumsum(-1)
        tokens = prefixes.shape[-1]
        if self.settings.distillation is None:
            first = torch.zeros(len(documents), dtype=torch.long, device=documents.device)
            excluded: Bool[Tensor, "b n"] = documents == documents[:, :1]
            return likelihood + contrastive(prefixes[..., -1], first, excluded, 1.0)
        scores = teacher.to(prefixes.dtype)
        losses = []
        for i in range(tokens):
            taught = scores * ((i + 1) / tokens) ** 0.5
            losses.append(self.settings.distillation.joined(likelihood, prefixes[..., i], taught))
        return torch.stack(losses).mean()

    def prepare(self, step: int, steps: int) -> None:
        """Rebuild NP-decoding's clusters on the first process, if due, and send them to the others."""
        every = self.model.settings.refresh
        clusters = self.model.clusters
        due = every > 0 and step > 0 and step % every == 0
        if due and PartialState().is_main_process:
            self.model.refresh(self.corpus)
        if clusters is not None and (due or step == 0):
            broadcast(clusters.vectors.data)
            (clusters.labels,) = broadcast_object_list([clusters.labels])


def fit_generative(
    model: Generative,
    collection: Collection,
    splits: tuple[Split, Split],
    dev_run: Run,
    dev_queries: int,
    training: TrainingSettings,
    folder: Path,
    accelerator: Accelerator,
    generated: Path | None = None,  # queries, as JSON lines (`pairs.read_generated`)
    negatives: int = 0,
    teacher: str = "",  # a model for `pair_scores`
    search: Callable[[dict[str, str], int], Run] | None = None,
) -> Generative:
    """Train a model on pairs from splits[0] and the corpus, and choose its best state as `fit` does.

    generated: JSON lines of generated queries (`pairs.read_generated`). negatives, teacher, search: see
    `with_negatives`; the teacher is a model for `pair_scores`.
    """
    problems = Problems()
    corpus = collection.corpus
    pairs = training_pairs(model, corpus, splits[0], problems, training.seed)
    if generated is not None:
        pairs += generated_pairs(read_generated(generated), model.identifiers, problems)
    if negatives:
        scores = partial(pair_scores, teacher, folder / "teacher.run", corpus=corpus, accelerator=accelerator)
        pairs = with_negatives(pairs, corpus, negatives, training.seed, scores if teacher else None, search)
    dev = dev_measure(corpus, splits[1], dev_run, dev_queries, accelerator)
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
            accelerator.print(printable(f"{model.name}: {report}"))
    objective = Likelihood(model, corpus, pairs).configure(training)
    stored = model.settings.frozen and accelerator.device.type == "cpu"
    temporary = stored and states is None
    with deleted_after(folder / STATES, accelerator) if temporary else nullcontext(states) as place:
        if stored and place is not None:
            used = used_examples(pairs, training, accelerator)
            sources = list(dict.fromkeys(pair.source for pair in used))
            with model.evaluating(), autocast(accelerator.device, accelerator.mixed_precision):
                add_states(model.keep_states(place), sources, model.tokenize, model.encode, accelerator)
        trained = train(model, objective, training, folder, accelerator=accelerator, dev=dev)
    return trained.to(accelerator.device)


def with_negatives(
    pairs: Sequence[Pair],
    corpus: Corpus,
    negatives: int,
    seed: int,
    teacher: Callable[[dict[str, str]], ScorePairs] | None = None,
    search: Callable[[dict[str, str], int], Run] | None = None,
) -> list[Pair]:
    """Add to each pair `negatives` documents drawn from BM25's top `NEGATIVES_DEPTH` for its source.

    Documents that are paired with the source in any pair, and their copies, are not drawn. teacher: receives
    the sources, keyed by number, and returns a function that scores their documents. search: BM25's search,
    by default in this process. Raises ValueError if the corpus has too few documents.
    """
    numbers: dict[str, int] = {}
    paired: dict[str, set[int]] = {}  # source -> its documents
    for pair in pairs:
        numbers.setdefault(pair.source, len(numbers))
        paired.setdefault(pair.source, set()).add(corpus.first(corpus.ids[pair.document]))
    sources = {str(n): source for source, n in numbers.items()}
    run = (search or BM25(corpus).search)(sources, NEGATIVES_DEPTH)
    ranked = []
    for pair in pairs:
        never = paired[pair.source]
        positions = dict.fromkeys(map(corpus.first, run[str(numbers[pair.source])]))
        hard = [p for p in positions if p not in never]
        rng = random.Random(f"{seed} {pair.source} {pair.document}")
        others = draw(hard, never, negatives, corpus, rng, pair.source)
        ranked.append(replace(pair, negatives=tuple(others)))
    if teacher is None:
        return ranked
    documents = [
        (str(numbers[pair.source]), [corpus.ids[p] for p in (pair.document, *pair.negatives)])
        for pair in ranked
    ]
    scores = teacher_scores(documents, teacher(sources))
    return [replace(pair, teacher=row) for pair, row in zip(ranked, scores, strict=True)]


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

    If identifiers are text (SEAL), targets are spans of relevant documents or of the document itself. Else,
    targets are identifiers, and sources are the queries and `PASSAGES` passages of each document.
    """
    ids = model.identifiers
    length = model.settings.document_length
    if ids.kind == "text":
        spans = span_pairs(corpus, split, model.tokenizer, problems, length=length, seed=seed)
        return spans + document_span_pairs(
            corpus, model.tokenizer, problems, spans=SPANS, length=length, seed=seed
        )
    passages = indexing_pairs(corpus, ids, problems, words=PASSAGE_WORDS, passages=PASSAGES, seed=seed)
    return retrieval_pairs(split, ids) + passages
