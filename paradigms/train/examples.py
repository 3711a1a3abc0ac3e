"""(query, relevant document, hard negatives): what the contrastive loss trains on, from a collection."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from paradigms.data import Corpus, Run, Split
from paradigms.encode import Batch, TextEncoder


@dataclass(frozen=True)
class Example:
    query: str
    positive: int  # positions in the corpus
    negatives: tuple[int, ...]
    relevant: tuple[int, ...]  # every document judged relevant to the query: never a negative of it


def build_examples(
    corpus: Corpus,
    split: Split,
    run: Run | None = None,
    negatives: int = 0,
    depth: int = 100,
    seed: int = 0,
    *,
    skip: int = 0,
) -> list[Example]:
    """One example per (query, relevant document) pair, with `negatives` documents drawn from `run`'s top.

    The draw is without replacement from ranks skip + 1 … depth of the query's ranking, those judged relevant
    left out; where those are too few, the rest is drawn from the corpus. Same arguments, same result. A run
    of the model that has been trained so far (`mining.mine`) makes the examples of another round.
    """
    if not 0 <= skip < depth:
        raise ValueError(
            f"negatives come from ranks skip + 1 to depth: skip={skip} and depth={depth} hold none"
        )
    if negatives and run is None:
        raise ValueError(f"{negatives} hard negatives per query were asked for, but no run to mine them from")
    examples = []
    for query_id in sorted(split.judgements):
        judged = split.judgements[query_id]
        relevant = tuple(corpus.position(d) for d in sorted(judged) if judged[d] > 0)
        ranking = (run or {}).get(query_id, {})
        top = sorted(ranking, key=lambda d: (-ranking[d], d))[skip:depth]
        hard = [p for p in (corpus.position(d) for d in top) if p not in relevant]
        for positive in relevant:
            rng = random.Random(f"{seed} {query_id} {positive}")
            chosen = rng.sample(hard, min(negatives, len(hard)))
            others = len(corpus) - len(set(relevant) | set(chosen))
            while len(chosen) < negatives and others > 0:
                p = rng.randrange(len(corpus))
                if p not in relevant and p not in chosen:
                    chosen.append(p)
                    others -= 1
            if len(chosen) < negatives:
                raise ValueError(
                    f"query {query_id!r}: a corpus of {len(corpus)} documents has no {negatives} negatives"
                )
            examples.append(Example(split.queries[query_id], positive, tuple(chosen), relevant))
    if not examples:
        raise ValueError("the training split has no relevant document: nothing to train on")
    return examples


@dataclass(frozen=True)
class TrainingBatch:
    """b queries and n = b · (1 + negatives) documents: first every query's positive, then the negatives."""

    queries: Batch
    documents: Batch
    positions: Int[Tensor, " n"]  # of the documents, in the corpus
    relevant: Int[Tensor, "b r"]  # positions relevant to each query, padded with −1

    def to(self, device: torch.device | str) -> TrainingBatch:
        return TrainingBatch(
            self.queries.to(device),
            self.documents.to(device),
            self.positions.to(device),
            self.relevant.to(device),
        )

    def excluded(self, positions: Int[Tensor, " m"]) -> Bool[Tensor, "b m"]:
        """Which of the pool's documents (all processes') are relevant to each query."""
        return (self.relevant[:, None, :] == positions[None, :, None]).any(-1)


class Examples(Dataset):
    """Examples by index, for a DataLoader."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


def tokenised(examples: list[Example], encoder: TextEncoder, corpus: Corpus) -> TrainingBatch:
    """Examples as a tokenised batch."""
    positions = [e.positive for e in examples] + [n for e in examples for n in e.negatives]
    width = max(len(e.relevant) for e in examples)
    return TrainingBatch(
        encoder.tokenize([e.query for e in examples], "query"),
        encoder.tokenize([corpus[p] for p in positions], "document"),
        torch.tensor(positions),
        torch.tensor([[*e.relevant, *[-1] * (width - len(e.relevant))] for e in examples]),
    )


class StepSampler(Sampler[list[int]]):
    """The batches of one process from `start` on, as a pure function of (seed, step): resuming is exact.

    Step t of all W processes together takes the t-th run of W·batch_size examples from an endless sequence
    of seeded permutations; process w takes its w-th part. One process with W·batch_size sees the same.
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
        """An epoch's last, incomplete batch is left out, so that no batch holds an example twice."""
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
