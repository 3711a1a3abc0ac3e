"""The order of training examples: which of them make which batch, as a function of the seed and the step."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def step_batches(
    examples: int, batch_size: int, steps: int, *, start: int = 0, rank: int = 0, world: int = 1, seed: int
) -> Iterator[list[int]]:
    """Yield one process's batches from step `start`; each batch depends only on (seed, step).

    Step t takes the t-th block of W·batch_size examples from an endless sequence of seeded permutations, and
    process w of W takes the block's w-th part. Each permutation's incomplete last block is left out. Runs can
    therefore resume exactly. A permutation takes 4 bytes per example.
    """
    batch = Shuffled(examples, batch_size, rank, world, seed)
    return map(batch, range(start, steps))


class Shuffled:
    """Map a step to this process's batch, as `step_batches` does."""

    def __init__(self, examples: int, batch_size: int, rank: int, world: int, seed: int) -> None:
        self.total = batch_size * world
        if self.total > examples:
            raise ValueError(
                f"a batch of {batch_size} on {world} process(es) is larger than the {examples} training "
                "examples: choose a smaller batch"
            )
        self.examples = examples
        self.size = batch_size
        self.rank = rank
        self.seed = seed
        self._order = lru_cache(maxsize=1)(self._permutation)

    def __call__(self, step: int) -> list[int]:
        epoch, within = divmod(step, self.examples // self.total)
        first = within * self.total + self.rank * self.size
        positions: list[int] = self._order(epoch)[first : first + self.size].tolist()
        return positions

    def _permutation(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        kind = torch.int32 if self.examples < 1 << 31 else torch.int64  # the same permutation in both
        return torch.randperm(self.examples, generator=generator, dtype=kind)


def mixed_batches(
    examples: Sequence[int],
    shares: Sequence[float],
    batch_size: int,
    steps: int,
    *,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    seed: int,
) -> Iterator[list[int]]:
    """Yield batches as `step_batches` does, from several collections, each batch from one of them.

    examples: number of examples of each collection; positions count through all of them. shares: probability
    that a step draws from each collection, the same in all processes.
    """
    firsts = np.cumsum([0, *examples])
    batches = [
        Shuffled(count, batch_size, rank, world, seed + 7919 * n) if share else None
        for n, (count, share) in enumerate(zip(examples, shares, strict=True))
    ]
    chosen = np.random.default_rng(seed).choice(len(examples), steps, p=np.array(shares) / sum(shares))
    taken = np.bincount(chosen[:start], minlength=len(examples))
    for part in chosen[start:]:
        batch = batches[part]
        assert batch is not None
        yield [int(firsts[part]) + position for position in batch(int(taken[part]))]
        taken[part] += 1
