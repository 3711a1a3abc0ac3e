"""The order of training examples: which of them make which batch, as a function of the seed and the step."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch


def step_batches(
    examples: int, batch_size: int, steps: int, *, start: int = 0, rank: int = 0, world: int = 1, seed: int
) -> Iterator[list[int]]:
    """Yield one process's batches from step `start`; each batch depends only on (seed, step).

    Step t takes the t-th block of W·batch_size examples from an endless sequence of seeded permutations, and
    process w of W takes the block's w-th part. Each permutation's incomplete last block is left out. Runs can
    therefore resume exactly. A permutation takes 4 bytes per example.
    """
    return mixed_batches([examples], [1.0], batch_size, steps, start=start, rank=rank, world=world, seed=seed)


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
    total = batch_size * world
    smallest = min(count for count, share in zip(examples, shares, strict=True) if share)
    if total > smallest:
        raise ValueError(
            f"a batch of {batch_size} on {world} process(es) is larger than the {smallest} training "
            "examples: choose a smaller batch"
        )
    firsts = np.cumsum([0, *examples])
    chosen = np.zeros(steps, dtype=int)
    if len(examples) > 1:
        chosen = np.random.default_rng(seed).choice(len(examples), steps, p=np.array(shares) / sum(shares))
    taken = np.bincount(chosen[:start], minlength=len(examples))
    epochs = [-1] * len(examples)  # of the permutations in `orders`
    orders = [torch.empty(0)] * len(examples)
    for part in chosen[start:]:
        epoch, within = divmod(int(taken[part]), examples[part] // total)
        if epoch != epochs[part]:
            generator = torch.Generator().manual_seed((seed + 7919 * int(part)) * 1_000_003 + epoch)
            kind = torch.int32 if examples[part] < 1 << 31 else torch.int64  # the same permutation in both
            orders[part] = torch.randperm(examples[part], generator=generator, dtype=kind)
            epochs[part] = epoch
        first = within * total + rank * batch_size
        yield [int(firsts[part]) + position for position in orders[part][first : first + batch_size].tolist()]
        taken[part] += 1
