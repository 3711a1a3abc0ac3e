"""D of all processes, with exact gradients: what makes every process's documents negatives of all."""

import torch
import torch.distributed as dist
from torch import Tensor

from paradigms.core import Tokens, pad_tokens


def world() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_documents(documents: Tokens) -> Tokens:
    """[1, n, i, h] of this process → [1, W·n, i', h] of all W, in rank order, i' the longest i.

    The backward pass sums the gradients that every process has for this one's documents; with each loss a
    mean over its own queries, the mean that DistributedDataParallel takes is the gradient of the whole batch.
    Every process must bring the same number of documents.
    """
    if world() == 1:
        return documents
    shape = torch.tensor(documents.mask.shape[1:], device=documents.mask.device)
    shapes = _all_gather(shape)
    if any(int(s[0]) != int(shape[0]) for s in shapes):
        raise ValueError(f"processes bring different numbers of documents: {[int(s[0]) for s in shapes]}")
    padded = pad_tokens(documents, max(int(s[1]) for s in shapes))
    return padded.map(gather)


def gather(t: Tensor) -> Tensor:
    """The tensors of all processes, joined along axis 1; differentiable for floating-point ones."""
    if world() == 1:
        return t
    return _Gather.apply(t) if t.is_floating_point() else torch.cat(_all_gather(t), 1)


def place_among(count: int) -> int:
    """Where this process's `count` items begin among those of all processes, gathered in rank order."""
    return count * dist.get_rank() if world() > 1 else 0


def _all_gather(t: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(t, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t.contiguous())
    return parts


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t: Tensor) -> Tensor:
        return torch.cat(_all_gather(t), 1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]
