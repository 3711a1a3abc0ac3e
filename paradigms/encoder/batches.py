"""Encode texts with less padding, in parts of similar length or in one row, and with less memory."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from paradigms.core import Tokens, join_documents, join_queries

Item = TypeVar("Item")
Result = TypeVar("Result")
M_TRIM_THRESHOLD = -1  # constants of malloc.h
M_MMAP_THRESHOLD = -3
AGAIN = ContextVar("again", default=False)  # whether a part is encoded again, in the backward pass
ROUNDING = 0.05  # of the largest value, between two computations in bfloat16
PASS = 64  # tokens whose training takes a CPU about as long as what each further pass costs


@dataclass(frozen=True)
class Batch:
    """Tokenised and padded texts, with a mask of the tokens that count."""

    input_ids: Int[Tensor, "x l"]
    attention_mask: Int[Tensor, "x l"]
    counts: Bool[Tensor, "x l"]
    types: Int[Tensor, "x l"] | None = None  # 0 or 1: first or second of two joined texts; None = one text

    def __len__(self) -> int:
        return len(self.input_ids)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply a function to every tensor of the batch."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{name: function(t) for name, t in tensors.items() if t is not None})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        return self.map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Copy to page-locked memory for a DataLoader, so that copies to a GPU overlap with computation."""
        return self.map(Tensor.pin_memory)

    def inputs(self) -> dict[str, Tensor]:
        types = {} if self.types is None else {"token_type_ids": self.types}
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask} | types

    def lengths(self) -> list[int]:
        """Return each text's length up to the last token that is attended to or counted."""
        used = self.attention_mask.bool() | self.counts
        return (used * torch.arange(1, used.shape[1] + 1, device=used.device)).amax(1).tolist()

    def select(self, places: Int[Tensor, " y"], width: int) -> "Batch":
        return self.map(lambda t: t[places, :width])


def by_length(lengths: Sequence[int], tokens: int | None = None, rows: int | None = None) -> list[list[int]]:
    """Group positions of texts with similar lengths, longest first.

    A group has at most `rows` texts and at most `tokens` tokens after padding, but at least one text. With
    `tokens`, the groups have the fewest padded tokens, where each group counts as `PASS` more.
    """
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    rows = max(1, len(order)) if rows is None else rows
    if tokens is None:
        return [order[start : start + rows] for start in range(0, len(order), rows)]
    costs = [0]  # of the best groups of the first texts
    starts = [0]  # of the last of these groups
    for stop in range(1, len(order) + 1):
        cheapest = (costs[-1] + lengths[order[stop - 1]] + PASS, stop - 1)
        for start in range(stop - 2, max(-1, stop - 1 - rows), -1):
            padded = (stop - start) * lengths[order[start]]
            if padded > tokens:
                break
            cheapest = min(cheapest, (costs[start] + padded + PASS, start))
        costs.append(cheapest[0])
        starts.append(cheapest[1])
    groups = []
    stop = len(order)
    while stop:
        groups.append(order[starts[stop] : stop])
        stop = starts[stop]
    return groups[::-1]


def in_parts(
    encode: Callable[[Batch], Tokens],
    batch: Batch,
    axis: int,
    *,
    tokens: int | None = None,
    rows: int | None = None,
    least: int = 1,
) -> Tokens:
    """Compute encode(batch) in the parts from `by_length`; equals one call up to rounding and dropout.

    axis: axis of the texts. least: a part has at most ⌈x/least⌉ texts. With more than `rows` texts, only the
    last `rows` keep their activations. The other parts are encoded again, with the same dropout, once the
    gradients of all vectors are known. This gives the gradient of the whole batch in the memory of `rows`
    texts (gradient caching, Gao et al. 2021, arXiv:2101.06983). All parts form one graph, so
    DistributedDataParallel sees one forward and one backward pass. If `tokens` is None, the number of parts
    depends only on the number of texts, as sharded weights require.
    """
    rows = len(batch) if rows is None else rows
    cached = rows < len(batch)
    if not cached and (len(batch) == 1 or (tokens is None and least == 1)):
        return encode(batch)
    lengths = batch.lengths()
    parts = by_length(lengths, tokens, min(rows, -(-len(batch) // least)))
    encoded = []
    left = len(batch)
    for part in parts:
        places = torch.tensor(part, device=batch.counts.device)
        width = max(1, lengths[part[0]])
        texts = batch.select(places, width)
        encoded.append(_cached(encode, texts) if cached and left > rows else encode(texts))
        left -= len(part)
    order = torch.tensor([place for part in parts for place in part], device=batch.counts.device)
    joined = (join_documents if axis == 1 else join_queries)(encoded)
    return joined.map(lambda t: t.index_select(axis, order.argsort()))


def _cached(encode: Callable[[Batch], Tokens], batch: Batch) -> Tokens:
    # checkpoint infers from its tensor arguments which devices' random generators dropout draws from.
    tensors = [t for f in fields(batch) if (t := getattr(batch, f.name)) is not None]
    return checkpoint(
        lambda *parts: encode(Batch(*parts)),
        *tensors,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), switched_on(AGAIN)),
    )


@contextmanager
def switched_on(switch: ContextVar[bool]) -> Iterator[None]:
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def ahead(compute: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield compute(item) for each item; a thread computes the next result while the caller has this one."""
    with ThreadPoolExecutor(1, "ahead") as thread:
        before: Future[Result] | None = None
        for item in items:
            computed = thread.submit(compute, item)
            if before is not None:
                yield before.result()
            before = computed
        if before is not None:
            yield before.result()


def insert(rows: Tensor, at: int, value: int) -> Tensor:
    return torch.cat([rows[:, :at], rows.new_full((len(rows), 1), value), rows[:, at:]], 1)


@cache
def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory, if its malloc is glibc's.

    By default, malloc returns large freed tensors to the system; clearing their pages at the next allocation
    takes a fifth of a training step.
    """
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    # If glibc rejects this mmap threshold, keep its defaults: it adapts both thresholds together.
    if hasattr(library, "mallopt") and library.mallopt(M_MMAP_THRESHOLD, 1 << 30):
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def takes_rows(backbone: Any) -> bool:
    return "flash" in (getattr(backbone.config, "_attn_implementation", None) or "")


def unpadded_hidden(backbone: Any, batch: Batch) -> Float[Tensor, "x l w"]:
    """Compute the backbone's first output for tokens that are attended to; it is 0 elsewhere.

    A GPU waits twice, for the lengths.
    """
    used = batch.attention_mask.bool()
    offsets = pad(used.sum(1).cumsum(0), (1, 0)).int()
    places = used.flatten().nonzero()[:, 0]
    row: dict[str, Any] = {
        name: t.flatten()[places][None] for name, t in batch.inputs().items() if name != "attention_mask"
    }
    # RoBERTa's positions begin after its padding index.
    embeddings = (part for part in backbone.modules() if hasattr(part, "position_embeddings"))
    first = next((part.padding_idx for part in embeddings if hasattr(part, "padding_idx")), -1) + 1
    row["position_ids"] = (used.cumsum(1) - 1 + first).flatten()[places][None]
    longest = used.shape[1]
    ends = {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    hidden = backbone(**row, **ends)[0][0]
    rows = hidden.new_zeros(used.numel(), hidden.shape[-1])
    return rows.index_copy(0, places, hidden).view(*used.shape, -1)


def check_unpadded(backbone: Any, batch: Batch) -> None:
    """Raise ValueError if a backbone computes another output for texts in one row."""
    with evaluated(backbone), torch.no_grad():
        padded = backbone(**batch.inputs())[0] * batch.attention_mask[..., None]
        unpadded = unpadded_hidden(backbone, batch)
    if not torch.allclose(padded, unpadded, rtol=0, atol=ROUNDING * float(padded.abs().max())):
        raise ValueError(
            f"attention={backbone.config._attn_implementation!r}: {type(backbone).__name__} computes other "
            "vectors for texts in one row; leave out the setting"
        )
