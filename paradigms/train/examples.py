"""(query, relevant document, hard negatives): what training reads, from a collection, runs and a teacher."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import Sampler

from paradigms.data import Corpus, Problems, Run, Split, best_first
from paradigms.encoder.batches import Batch
from paradigms.encoder.towers import Encoder
from paradigms.train.teacher import FalseNegatives, ScorePairs, score_of


@dataclass(frozen=True)
class Example:
    query: str
    positive: int  # positions in the corpus
    negatives: tuple[int, ...]
    relevant: tuple[int, ...]  # judged relevant to the query, or taken to be: never a negative of it
    teacher: tuple[float, ...] = ()  # a teacher's scores of the positive and of each negative


def build_examples(
    corpus: Corpus,
    split: Split,
    run: Run | None = None,
    negatives: int = 0,
    depth: int = 100,
    seed: int = 0,
    *,
    suspects: FalseNegatives | None = None,
    teacher: ScorePairs | None = None,
    problems: Problems | None = None,
) -> list[Example]:
    """One example per (query, relevant document) pair, with `negatives` documents drawn from `run`'s top.

    Drawn without replacement from the first `depth` ranks without the relevant ones, then from the corpus;
    the same arguments give the same result. suspects: tells false negatives by their scores; these are left
    out of the draw and of the in-batch negatives, and counted in `problems`. teacher: scores each example's
    documents. ValueError names a pair without a score.
    """
    if negatives and run is None:
        raise ValueError(f"{negatives} hard negatives per query were asked for, but no run to mine them from")
    gold: dict[str, list[str]] = {}
    ranked: dict[str, list[str]] = {}
    for query in sorted(split.judgements):
        judged, scores = split.judgements[query], (run or {}).get(query, {})
        if any(grade > 0 for grade in judged.values()):
            gold[query] = [d for d in sorted(judged) if judged[d] > 0]
            ranked[query] = list(best_first(scores, depth))
    if not gold:
        raise ValueError("the training split has no relevant document: nothing to train on")
    rated: Run = {}
    if suspects is not None:
        rated = suspects.scores({q: list(dict.fromkeys((*gold[q], *ranked[q]))) for q in gold})
    problems = Problems() if problems is None else problems
    made: list[tuple[str, Example]] = []
    for query, relevant in gold.items():
        for document in relevant:
            likely: set[str] = set()
            if suspects is not None:
                likely = suspects.of(query, document, ranked[query], rated).difference(relevant)
                for dropped in sorted(likely):
                    problems.add("hard negative that may be relevant (left out)", f"{query} -> {dropped}")
            never = [corpus.position(d) for d in (*relevant, *sorted(likely))]
            positive = corpus.position(document)
            avoided = set(never)
            hard = [p for p in map(corpus.position, ranked[query]) if p not in avoided]
            if suspects is not None and len(hard) < negatives:
                problems.add("example with too few hard negatives left (others drawn at random)", query)
            drawn = _draw(hard, avoided, negatives, len(corpus), random.Random(f"{seed} {query} {positive}"))
            if len(drawn) < negatives:
                raise ValueError(f"query {query!r}: {len(corpus)} documents hold no {negatives} negatives")
            made.append((query, Example(split.queries[query], positive, tuple(drawn), tuple(never))))
    return [example for _, example in made] if teacher is None else _taught(made, corpus, teacher)


def _draw(hard: list[int], never: set[int], count: int, size: int, rng: random.Random) -> list[int]:
    """`count` of the positions `hard`, then of any below `size` but those of `never`; all, if too few."""
    chosen = rng.sample(hard, min(count, len(hard)))
    others = size - len(never.union(chosen))
    while len(chosen) < count and others > 0:
        p = rng.randrange(size)
        if p not in never and p not in chosen:
            chosen.append(p)
            others -= 1
    return chosen


def _taught(made: Sequence[tuple[str, Example]], corpus: Corpus, teacher: ScorePairs) -> list[Example]:
    """The examples, each with its query's id, with the teacher's scores of their documents."""
    documents = [[corpus.ids[p] for p in (example.positive, *example.negatives)] for _, example in made]
    wanted: dict[str, dict[str, None]] = {}
    for (query, _), ids in zip(made, documents, strict=True):
        wanted.setdefault(query, {}).update(dict.fromkeys(ids))
    scores = teacher({query: list(ids) for query, ids in wanted.items()})
    return [
        replace(example, teacher=tuple(score_of(scores, query, d, "teacher") for d in ids))
        for (query, example), ids in zip(made, documents, strict=True)
    ]


@dataclass(frozen=True)
class TrainingBatch:
    """b queries and n = b · (1 + k) documents: first every query's positive, then each one's k negatives."""

    queries: Batch
    documents: Batch
    positions: Int[Tensor, " n"]  # of the documents, in the corpus
    relevant: Int[Tensor, "b r"]  # positions relevant to each query, padded with −1
    teacher: Float[Tensor, "b c"] | None = None  # t of each query's own c = 1 + k documents

    def to(self, device: torch.device | str) -> "TrainingBatch":
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return TrainingBatch(**{name: part.to(device) for name, part in parts.items() if part is not None})

    def excluded(self, positions: Int[Tensor, " m"]) -> Bool[Tensor, "b m"]:
        """Which of the pool's documents (all processes') are relevant to each query."""
        found = torch.zeros(len(self.relevant), len(positions), dtype=torch.bool, device=positions.device)
        for relevant in self.relevant.T:  # [b, r, m] at once would not fit where a filter found many
            found |= relevant[:, None] == positions
        return found

    def own(self, first: int = 0) -> Int[Tensor, "b c"]:
        """Where a pool with this batch at `first` has each query's own documents, its positive first."""
        b = len(self.relevant)
        places = torch.arange(len(self.positions), device=self.positions.device) + first
        return torch.cat([places[:b, None], places[b:].view(b, -1)], 1)


def tokenised(examples: list[Example], encoder: Encoder, corpus: Corpus) -> TrainingBatch:
    positions = [e.positive for e in examples] + [n for e in examples for n in e.negatives]
    width = max(len(e.relevant) for e in examples)
    return TrainingBatch(
        encoder.tokenize([e.query for e in examples], "query"),
        encoder.tokenize([corpus[p] for p in positions], "document"),
        torch.tensor(positions),
        torch.tensor([[*e.relevant, *[-1] * (width - len(e.relevant))] for e in examples]),
        teacher_scores(examples),
    )


def teacher_scores(examples: Sequence[Example]) -> Float[Tensor, "b c"] | None:
    """t of each example's documents, its positive first; None without a teacher."""
    return torch.tensor([e.teacher for e in examples]) if examples[0].teacher else None


def check_taught(examples: Sequence[Example]) -> None:
    """ValueError where a teacher's scores are missing or compare nothing."""
    counts = {(len(e.teacher), 1 + len(e.negatives)) for e in examples}
    if len(counts) != 1 or (count := counts.pop())[0] != count[1] or count[0] < 2:
        raise ValueError(
            "a distillation compares a teacher's scores of each query's positive and its hard negatives, at "
            "least one and as many for every query: build the examples with a teacher and set negatives"
        )


class StepSampler(Sampler[list[int]]):
    """The batches of one process from `start` on, as a pure function of (seed, step): resuming is exact.

    Step t of all W processes takes the t-th run of W·batch_size examples from an endless sequence of seeded
    permutations, process w its w-th part. An epoch's incomplete batch is left out.
    """

    def __init__(
        self, examples: int, batch_size: int, steps: int, *, start: int, rank: int, world: int, seed: int
    ) -> None:
        if batch_size * world > examples:
            raise ValueError(
                f"a batch of {batch_size} on {world} process(es) is larger than the {examples} training "
                "examples: choose a smaller batch"
            )
        self.examples, self.batch_size, self.steps = examples, batch_size, steps
        self.start, self.rank, self.world, self.seed = start, rank, world, seed

    def __len__(self) -> int:
        return self.steps - self.start

    def __iter__(self) -> Iterator[list[int]]:
        whole = self.batch_size * self.world
        per_epoch = self.examples // whole
        order: list[int] = []
        for step in range(self.start, self.steps):
            epoch, within = divmod(step, per_epoch)
            if within == 0 or not order:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(self.examples, generator=generator).tolist()
            first = within * whole + self.rank * self.batch_size
            yield order[first : first + self.batch_size]
