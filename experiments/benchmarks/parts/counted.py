"""Bytes of tensors that live at once, counted from every operation's results; also of meta tensors."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Living(TorchDispatchMode):
    """Count the bytes of all storages made within the context: `now`, and the largest number, `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def ignore(self, *tensors: Tensor) -> None:
        """Do not count the storages of these tensors, such as inputs."""
        self._known |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known:
                    self._known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
