"""Tell whether weights have changed, for whatever is computed from weights and kept in memory."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Result = TypeVar("Result")
SAMPLED = 64  # values read per tensor, a few more if it is small


class Watch:
    """Tensors, and the values of each that `state` reads.

    tensors: strided ones of any device and type, such as `Module.parameters()`.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)
        self._samples: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        with torch.inference_mode():  # without it, views take twice as long
            for tensor in self.tensors:
                sample = self._samples.setdefault((tensor.device, tensor.dtype), [])
                sample.append(_sampled(tensor))

    def state(self) -> tuple[Any, ...]:
        """Return a value that differs if a tensor was moved, or changed as a whole, by any means.

        The state consists of each tensor's address, strides and version, and of values read from it. Changes
        that autograd does not see, such as those through `.data` or NumPy and the steps of fused optimizers,
        are seen if they reach one of the `SAMPLED` values of a tensor, which are equally spaced. For the 101
        weights of a BERT with 6 layers, this takes 80 to 90 µs (AMD EPYC, Zen 5).
        """
        places = tuple(
            (w.data_ptr(), w.stride(), 0 if w.is_inference() else w._version) for w in self.tensors
        )
        with torch.inference_mode():
            values = (torch.cat(sample).view(torch.uint8).cpu() for sample in self._samples.values())
            return places, *(value.numpy().tobytes() for value in values)


def state_of(tensors: Iterable[Tensor]) -> tuple[Any, ...]:
    """Return `Watch.state` of tensors that are not kept; it is hashable and holds no reference to them."""
    return Watch(tensors).state()


def cached_by_weights(make: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a function of tensors to compute its result again only if `Watch.state` of a tensor changes.

    One result is cached for each first tensor, and freed with it.
    """
    results = WeakTensorKeyDictionary()  # first tensor -> (state of all, result)

    @wraps(make)
    def cached(*tensors: Tensor) -> Result:
        state = state_of(tensors)
        entry = results.get(tensors[0])
        if entry is None or entry[0] != state:
            entry = state, make(*tensors)
            results[tensors[0]] = entry
        return entry[1]

    return cached


def _sampled(tensor: Tensor) -> Tensor:
    """Return a view of equally distant values in the memory that a tensor spans."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in sizes) if tensor.numel() else 0
    step = span // SAMPLED | 1  # odd, because the values would share a column if the width divided the step
    return tensor.as_strided((-(-span // step),), (step,))
