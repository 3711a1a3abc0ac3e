"""The order of training examples: which of them make which batch, as a function of the seed and the step."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch


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
    """Yield one process's batches from step `start`, each from one collection, as a function of (seed, step).

    examples: number of examples of each collection; positions count through all of them. shares: probability
    that a step draws from each collection, the same in all processes. From each collection, steps take blocks
    of W·batch_size examples of an endless sequence of seeded permutations, without incomplete last blocks,
    and process w of W takes the block's w-th part, so that runs resume exactly. A permutation takes 4 bytes
    per example.
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
