"""k-means within many small groups at once: the vectors of each surface token, for NP-decoding."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms.io.progress import progress_bar

ROUNDS = 20  # iterations of Lloyd's algorithm, at most
ALIKE = 1e-4  # vectors with a smaller relative distance count as equal up to rounding
BLOCK = 1 << 14  # vectors in memory at once
SAMPLE = 1 << 15  # a larger group's centroids are fitted to this many evenly spaced vectors


@dataclass(frozen=True)
class Groups:
    """t vectors in g groups, and an order of the vectors by group, smallest group first."""

    group: Int[np.ndarray, " t"]  # group of each vector
    counts: Int[np.ndarray, " g"]
    by_size: Int[np.ndarray, " g"]  # groups, ascending by size
    starts: Int[np.ndarray, " g"]  # start of each group in the order
    place: Int[np.ndarray, " t"]  # position of each vector in the order

    @classmethod
    def of(cls, group: Int[np.ndarray, " t"]) -> "Groups":
        """Build from the group of each vector; groups are numbered 0 … g − 1 without gaps."""
        counts = np.bincount(group)
        by_size = np.argsort(counts, kind="stable")
        starts, place = np.empty_like(counts), np.empty(len(group), dtype=np.int64)
        starts[by_size] = np.cumsum(counts[by_size]) - counts[by_size]
        place[np.argsort(starts[group], kind="stable")] = np.arange(len(group))
        return cls(group, counts, by_size, starts, place)

    def blocks(self) -> Iterator[Int[np.ndarray, " b"]]:
        """Yield groups of similar size that fit into a block together; a larger group forms its own block."""
        first, sizes = 0, self.counts[self.by_size]
        for last in range(1, len(sizes) + 1):
            if last == len(sizes) or (last + 1 - first) * sizes[last] > BLOCK:
                yield self.by_size[first:last]
                first = last


def grouped_kmeans(
    vectors: Float[np.ndarray, "t h"],
    groups: Groups,
    wanted: Int[np.ndarray, " g"],
    warm: Int[np.ndarray, " t"] | None,
    seed: int,
    progress: bool = False,
) -> tuple[Float[Tensor, "g k h"], Int[np.ndarray, " t"]]:
    """argmin over C and c of Σ_t ‖x_t − C_{g(t), c(t)}‖², a local minimum, with c(t) < wanted[g(t)].

    Lloyd's algorithm, started from the means of the labels `warm`. Empty clusters start from vectors drawn as
    in k-means++ (Arthur & Vassilvitskii, SODA 2007); a cluster for which no distinct vector is left gets the
    group's mean and no member. vectors: in the order of `groups.place`, for example a memory map; each is
    read twice. warm and the returned labels are in the original order. A group's draws depend only on the
    seed and the group's number.
    """
    k = int(wanted.max())
    centroids = torch.zeros(len(wanted), k, vectors.shape[1])
    labels = np.empty(len(groups.group), dtype=np.int64)
    begin = np.full(len(labels), -1)
    if warm is not None:
        begin[groups.place] = warm
    draws = torch.from_numpy(np.random.default_rng(seed).random((len(wanted), k)))
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # the order of sums, and so the cluster of a borderline vector, depends on threads
    try:
        with progress_bar(progress) as bar:
            task = bar.add_task("cluster tokens", total=len(wanted))
            for block in groups.blocks():
                longest = int(groups.counts[block].max())
                sample = np.arange(longest)
                if longest > SAMPLE:
                    sample = np.linspace(0, longest - 1, SAMPLE).astype(np.int64)
                X, real, rows = _read(vectors, groups, block, sample)
                mean = (X * real[..., None]).sum(1, keepdim=True) / real.sum(1)[:, None, None]
                apart = ALIKE**2 * X.square().sum(-1)
                started = torch.from_numpy(begin[rows])[..., None] == torch.arange(k)
                allowed = torch.from_numpy(np.arange(k) < wanted[block, None])
                C, alive = _fit(X - mean, real, apart, started & real[..., None], allowed, draws[block])
                centroids[block] = C + mean
                for first in range(0, longest, SAMPLE):
                    part = np.arange(first, min(first + SAMPLE, longest))
                    X, real, rows = _read(vectors, groups, block, part)
                    labels[rows[real.numpy()]] = _nearest(X - mean, C, alive)[real].numpy()
                bar.advance(task, len(block))
    finally:
        torch.set_num_threads(threads)
    return centroids, labels[groups.place]


def _read(
    vectors: np.ndarray, groups: Groups, block: np.ndarray, members: np.ndarray
) -> tuple[Float[Tensor, "b n h"], Bool[Tensor, "b n"], Int[np.ndarray, "b n"]]:
    """Vectors of the given members of each group in the block, which of them exist, and their rows."""
    rows = groups.starts[block, None] + members
    return torch.from_numpy(vectors[rows]), torch.from_numpy(members < groups.counts[block, None]), rows


def _fit(
    X: Float[Tensor, "b n h"],
    real: Bool[Tensor, "b n"],
    apart: Float[Tensor, "b n"],
    started: Bool[Tensor, "b n k"],
    allowed: Bool[Tensor, "b k"],
    draws: Float[Tensor, "b k"],
) -> tuple[Float[Tensor, "b k h"], Bool[Tensor, "b k"]]:
    """Centroids of groups with mean 0, and which are in use.

    apart: squared distance below which vectors count as equal.
    """
    C, alive = _seed(X, real, apart, *_means(X, started), allowed, draws)
    labels = torch.full(real.shape, -1)
    for _ in range(ROUNDS):
        before, labels = labels, _nearest(X, C, alive)
        if torch.equal(before, labels):
            break
        means, filled = _means(X, (labels[..., None] == torch.arange(C.shape[1])) & real[..., None])
        C = means.where(filled[..., None], C)
    return C, alive


def _seed(
    X: Tensor, real: Tensor, apart: Tensor, C: Tensor, alive: Tensor, allowed: Tensor, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """Start unused allowed centroids from vectors, drawn ∝ their squared distance to the other centroids."""
    distance = torch.full(real.shape, torch.inf)

    def add(c: int, which: Tensor) -> Tensor:
        square = (X - C[:, c, None]).square().sum(-1)
        nearer = torch.minimum(distance, square.where(square > apart, 0))
        return nearer.where(which[:, None], distance)

    for c in range(C.shape[1]):
        distance = add(c, alive[:, c])
    for c in range(C.shape[1]):
        weights = distance.where(distance.isfinite(), 1).double() * real  # uniform for the first centroid
        cumulative = weights.cumsum(-1)
        total = cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, draws[:, c, None] * total, right=True)
        drawn = drawn.clamp(max=X.shape[1] - 1)
        fresh = allowed[:, c] & ~alive[:, c] & (total[:, 0] > 0)
        C[:, c] = X.take_along_dim(drawn[..., None], 1)[:, 0].where(fresh[:, None], C[:, c])
        alive[:, c] |= fresh
        distance = add(c, fresh)
    return C, alive


def _nearest(X: Tensor, C: Tensor, alive: Tensor) -> Int[Tensor, "b n"]:
    scores = X @ C.mT - 0.5 * C.square().sum(-1)[:, None]
    return scores.masked_fill(~alive[:, None], -torch.inf).argmax(-1)


def _means(X: Tensor, members: Bool[Tensor, "b n k"]) -> tuple[Tensor, Tensor]:
    """Mean of every cluster's members, and whether it has any."""
    counts = members.sum(1)
    return members.mT.to(X.dtype) @ X / counts.clamp(min=1)[..., None], counts > 0
