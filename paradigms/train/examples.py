"""Training examples (query, relevant document, hard negatives) from a collection, runs and a teacher."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms.data import Corpus, Problems, Run, Split, best_first
from paradigms.encoder.batches import Batch
from paradigms.train.teacher import FalseNegatives, ScorePairs, score_of


@dataclass(frozen=True)
class Example:
    query: str
    positive: int  # positions in the corpus; of documents with equal texts, that of the first one
    negatives: tuple[int, ...]
    relevant: tuple[int, ...]  # judged or presumed relevant to the query; never negatives
    teacher: tuple[float, ...] = ()  # the teacher's scores of the positive and of each negative


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
    """Build one example per (query, relevant document) pair, with `negatives` hard negatives from `run`.

    Queries with equal texts are one query, whose judgements and rankings are joined; documents with equal
    texts are one document. Negatives are drawn without replacement from the non-relevant documents in the
    first `depth` ranks, then from the corpus; the same arguments give the same result. suspects: detects
    false negatives by their scores; these become neither hard nor in-batch negatives, and are counted in
    `problems`. teacher: scores each example's documents. Raises ValueError if a pair has no score.
    """
    if negatives and run is None:
        raise ValueError(f"{negatives} hard negatives per query were requested, but no run to mine them from")
    same: dict[str, list[str]] = {}  # text -> ids of queries; the first id names them all
    for query, judged in sorted(split.judgements.items()):
        if any(grade > 0 for grade in judged.values()):
            same.setdefault(split.queries[query], []).append(query)
    if not same:
        raise ValueError("the training split has no relevant document: nothing to train on")

    def joined(found: Run) -> Run:
        """Join the scores of equal queries and of equal documents; the larger score counts."""
        run: Run = {}
        for first, *others in same.values():
            scores = run[first] = {}
            for document, score in chain(*(found.get(id, {}).items() for id in (first, *others))):
                name = corpus.copies.get(document, document)
                scores[name] = max(score, scores.get(name, score))
        return run

    gold: dict[str, list[str]] = {}
    for ids in same.values():
        relevant = sorted({d for id in ids for d, grade in split.judgements[id].items() if grade > 0})
        gold[ids[0]] = list(dict.fromkeys(corpus.ids[corpus.first(d)] for d in relevant))
    found = {id: best_first((run or {}).get(id, {}), depth) for ids in same.values() for id in ids}
    ranked = {query: list(best_first(scores, depth)) for query, scores in joined(found).items()}
    rated: Run = {}
    if suspects is not None:
        rated = joined(suspects.scores({q: list(dict.fromkeys((*gold[q], *ranked[q]))) for q in gold}))
    problems = Problems() if problems is None else problems
    pairs: list[tuple[str, Example]] = []
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
            rng = random.Random(f"{seed} {query} {positive}")
            drawn = draw(hard, avoided, negatives, corpus, rng, query)
            pairs.append((query, Example(split.queries[query], positive, tuple(drawn), tuple(never))))
    if teacher is None:
        return [example for _, example in pairs]
    return _taught(pairs, corpus, lambda wanted: joined(teacher(wanted)))


def draw(
    hard: Sequence[int], never: set[int], count: int, corpus: Corpus, rng: random.Random, query: str
) -> list[int]:
    """Draw `count` positions from `hard`, then from all positions except `never` and copies.

    hard, never: positions of documents that are not copies (`Corpus.first`). Raises ValueError, which names
    the query, if the corpus has too few documents.
    """
    drawn = rng.sample(hard, min(count, len(hard)))
    different = len(corpus) - len(corpus.copies)
    if different - len(never.union(drawn)) < count - len(drawn):
        raise ValueError(f"query {query!r}: {different} different documents hold no {count} negatives")
    while len(drawn) < count:
        p = rng.randrange(len(corpus))
        if p not in never and p not in drawn and corpus.ids[p] not in corpus.copies:
            drawn.append(p)
    return drawn


def _taught(pairs: Sequence[tuple[str, Example]], corpus: Corpus, teacher: ScorePairs) -> list[Example]:
    """Add the teacher's scores to examples. pairs: (query id, example)."""
    documents = [[corpus.ids[p] for p in (example.positive, *example.negatives)] for _, example in pairs]
    wanted: dict[str, list[str]] = {}
    for (query, _), ids in zip(pairs, documents, strict=True):
        wanted[query] = list(dict.fromkeys(wanted.get(query, []) + ids))
    scores = teacher(wanted)
    return [
        replace(example, teacher=tuple(score_of(scores, query, d, "teacher") for d in ids))
        for (query, example), ids in zip(pairs, documents, strict=True)
    ]


class TrainingBatch(NamedTuple):
    """b queries and n = b · (1 + k) documents: every query's positive, then each query's k negatives."""

    queries: Batch
    documents: Batch
    positions: Int[Tensor, " n"]  # the documents' positions in the corpus
    relevant: Int[Tensor, "b r"]  # positions relevant to each query, padded with −1
    teacher: Float[Tensor, "b c"] | None = None  # t of each query's c = 1 + k documents

    def excluded(self, positions: Int[Tensor, " m"]) -> Bool[Tensor, "b m"]:
        """Return a mask of the pool's documents, over all processes, that are relevant to each query."""
        mask = torch.zeros(len(self.relevant), len(positions), dtype=torch.bool, device=positions.device)
        for relevant in self.relevant.T:  # [b, r, m] may not fit into memory if r is large
            mask |= relevant[:, None] == positions
        return mask

    def own(self, first: int = 0) -> Int[Tensor, "b c"]:
        """Each query's document positions, positive first, in a pool where the batch starts at `first`."""
        b = len(self.relevant)
        places = torch.arange(len(self.positions), device=self.positions.device) + first
        return torch.cat([places[:b, None], places[b:].view(b, -1)], 1)


def own_count(examples: Sequence[Any], name: str, taught: bool) -> int:
    """Return 1 + k, the number of documents per example (`Example`, or `Pair` of a generative model).

    Raises ValueError if k is 0 or varies, or if `taught` examples lack a teacher's scores.
    """
    counts = sorted({len(example.negatives) for example in examples})
    if len(counts) != 1 or counts[0] < 1:
        raise ValueError(
            f"{name} needs the same number of hard negatives for every query, at least one, but has "
            f"{' or '.join(map(str, counts)) or 'no examples'}: set negatives"
        )
    if taught and any(len(example.teacher) != 1 + counts[0] for example in examples):
        raise ValueError(f"{name} learns a teacher's scores: build the examples with a teacher")
    return 1 + counts[0]


def step_batches(
    examples: int, batch_size: int, steps: int, *, start: int = 0, rank: int = 0, world: int = 1, seed: int
) -> Iterator[list[int]]:
    """Yield one process's batches from step `start`; each batch depends only on (seed, step).

    Step t takes the t-th block of W·batch_size examples from an endless sequence of seeded permutations, and
    process w of W takes the block's w-th part. Each permutation's incomplete last block is left out. Runs can
    therefore resume exactly.
    """
    total = batch_size * world
    if total > examples:
        raise ValueError(
            f"a batch of {batch_size} on {world} process(es) is larger than the {examples} training "
            "examples: choose a smaller batch"
        )

    @lru_cache(maxsize=1)
    def order(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return torch.randperm(examples, generator=generator).tolist()

    def batch(step: int) -> list[int]:
        epoch, within = divmod(step, examples // total)
        first = within * total + rank * batch_size
        return order(epoch)[first : first + batch_size]

    return map(batch, range(start, steps))
