"""What a training run minimises, as the loop sees it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class Objective(ABC):
    """mean over examples of a loss: the examples, how some of them become a batch, and its loss."""

    examples: Sequence[Any]  # each with a repr that tells it from others: a run goes on only with the same
    chunk: int = 0  # texts encoded at once, with gradients cached; 0 = none are cached
    renews: bool = False  # whether `prepare` changes the batches that `collate` makes: none is made ahead

    @abstractmethod
    def collate(self, examples: list[Any]) -> Any:
        """A batch with a method `to(device)`."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of this process's batch; `model` is the paradigm as accelerate wrapped it."""

    def prepare(self, step: int) -> None:  # noqa: B027 - most objectives keep nothing
        """Renew what must be renewed before step `step`, on every process."""
