"""Count the bytes of tensors that live at once, also without data, and those of in-batch scores."""

import weakref
from typing import Any, Self

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paradigms.align import NORMALISERS, Alignment, PoolTopK, QueryToDocument, TopK
from paradigms.core import Tokens
from paradigms.scoring import in_batch


class Living(TorchDispatchMode):
    """Count the bytes of all storages made within the context: `now`, and the largest number, `peak`.

    Of tensors in shards, this process's part counts. number: the value to return wherever code reads a number
    from a tensor, which needs data.
    """

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self.number = number
        self.now = 0
        self.peak = 0
        self._bytes: dict[int, int] = {}  # storage -> bytes
        self._ignored: set[int] = set()

    def ignore(self, *tensors: Tensor) -> None:
        """Do not count the storages of these tensors, such as inputs."""
        for tensor in tensors:
            self._count(tensor.untyped_storage(), 0)
            self._ignored.add(tensor.untyped_storage()._cdata)

    def __enter__(self) -> Self:
        self._resize = UntypedStorage.resize_

        def resize(storage: UntypedStorage, size: int) -> UntypedStorage:
            """Shards free gathered weights, and gather them again, in the same storage."""
            self._resize(storage, size)
            if storage._cdata in self._bytes.keys() - self._ignored:
                self._count(storage, size)
            return storage

        UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # operations on its local tensor follow
        if self.number is not None and function is torch.ops.aten._local_scalar_dense.default:
            return self.number
        result = function(*arguments, **(keywords or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._bytes:
                    self._count(storage, storage.nbytes())
        return result

    def _count(self, storage: UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key not in self._bytes:
            weakref.finalize(storage, self._free, key)
        self.now += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._bytes.pop(key)
        self._ignored.discard(key)


def score_bytes(
    queries: int,
    documents: int,
    query_tokens: int,
    document_tokens: int,
    dim: int,
    bound: int,
    align: Alignment | None = None,
) -> int:
    """Count the bytes of in-batch scores, forward and backward, besides D and Q.

    align: by default ColBERT's. The queries of two pieces or, if A is soft or has many pairs, of 16 tiles are
    scored, and twice as many; each further query takes as much more.
    """
    pairs = documents * query_tokens
    number: int | None = None  # of tokens that a query token is aligned with, or retrieves from the pool
    if isinstance(align, TopK | PoolTopK):
        number = int(align.k if align.k >= 1 else align.k * documents * document_tokens)
    if isinstance(align, TopK):
        pairs *= align.k
    few = bound // (pairs * in_batch.KEPT) + 1
    if align is not None and number is None:  # computed again in tiles, without pieces
        few = 16 * max(1, in_batch.MANY_CELLS // (pairs * document_tokens))

    def tokens(x: int, n: int, length: int) -> Tokens:
        mask = torch.ones(x, n, length, dtype=torch.bool, device="meta")
        return Tokens(torch.empty(x, n, length, dim, device="meta", requires_grad=True), mask)

    def peak(count: int) -> int:
        D = tokens(1, documents, document_tokens)
        Q = tokens(count, 1, query_tokens)
        with Living(number) as living:
            living.ignore(D.vectors, D.mask, Q.vectors, Q.mask)
            # `in_batch_rel` turns autocast off, which these tensors do not know.
            scores = in_batch._rel(D, Q, align or QueryToDocument(), NORMALISERS["one"], None, bound)
            scores.logsumexp(1).sum().backward()
        return living.peak

    if queries <= 2 * few:
        return peak(queries)
    first = peak(few)
    return first + (peak(2 * few) - first) * (queries - few) // few
