"""Train on several collections: each batch from one of them, with its own prompts and its own loss.

parts = [Contrastive(model, nli_texts, nli), Contrastive(model, marco, examples)]
parts = [Part(parts[0], share=1.0, loss={"temperature": 0.05}), Part(parts[1], share=3.0)]
train(model, Mixture(parts), settings, "results")
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from paradigms.data.collection import Joined
from paradigms.train.contrastive import Contrastive
from paradigms.train.losses import LossSettings, Objective


@dataclass(frozen=True)
class Part:
    """A collection of a `Mixture`."""

    objective: Contrastive
    share: float = 1.0  # steps that draw from it, relative to the other parts'
    loss: Mapping[str, Any] = field(default_factory=dict)  # settings that replace the training's


class MixedExamples(Joined):
    """(part, example) of all parts, one part after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__([part.objective.examples for part in parts])
        described = [(part.objective.digest(), part.share, sorted(part.loss.items())) for part in parts]
        self.digest = hashlib.sha256(repr(described).encode()).hexdigest()

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return bisect_right(self.ends, range(len(self))[index]), super().__getitem__(index)


class Mixture(Objective):
    """The loss of one part in each step, drawn by the parts' shares; all processes draw the same part.

    Negatives in the batch are therefore of the query's own collection.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        if not parts or any(part.share < 0 for part in parts) or not sum(part.share for part in parts):
            raise ValueError(f"shares must be at least 0, and one above: {[part.share for part in parts]}")
        self.model = parts[0].objective.model
        if any(part.objective.model is not self.model for part in parts):
            raise ValueError("the parts of a mixture train one model: give each objective the same object")
        self.parts = parts
        self.examples = MixedExamples(parts)

    def configure(self, settings: LossSettings) -> Objective:
        for part in self.parts:
            part.objective.configure(replace(settings, **part.loss))
        self.settings = settings
        return self

    def collections(self) -> tuple[list[int], list[float]]:
        return [len(part.objective.examples) for part in self.parts], [part.share for part in self.parts]

    def without_negatives(self, batches: Sequence[Sequence[tuple[int, Any]]]) -> int:
        part, _ = batches[0][0]
        return self.parts[part].objective.without_negatives([[e for _, e in batch] for batch in batches])

    def collate(self, examples: list[tuple[int, Any]]) -> tuple[int, Any]:
        part, _ = examples[0]
        return part, self.parts[part].objective.collate([example for _, example in examples])

    def prepare(self, step: int, steps: int) -> None:
        for part in self.parts:
            part.objective.prepare(step, steps)

    def loss(self, model: nn.Module, batch: tuple[int, Any]) -> Tensor:
        part, part_batch = batch
        return self.parts[part].objective.loss(model, part_batch)
