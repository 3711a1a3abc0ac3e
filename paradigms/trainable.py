"""`Trainable`, the interface of all models: what training, saving and retrievers require of one."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from paradigms.encoder.tokenizing import Cut
from paradigms.saved import save_pretrained

if TYPE_CHECKING:
    from paradigms.data import Corpus
    from paradigms.retrieve import Retriever

EVALUATING = threading.RLock()  # held by the thread that encodes or scores (`Trainable.evaluating`)


def _begin_child() -> None:
    """Make a forked process compute with one thread if its parent has computed (`Trainable.evaluating`).

    OpenMP's threads have then begun, and it would wait for them in the child, although no fork copies them.
    """
    EVALUATING.release()
    if Trainable.evaluated:
        torch.set_num_threads(1)


# A fork waits until no other thread encodes, as it would copy the locks that libraries hold meanwhile.
os.register_at_fork(
    before=EVALUATING.acquire, after_in_parent=EVALUATING.release, after_in_child=_begin_child
)


class Trainable(nn.Module, ABC):
    """The interface that the training loop requires of a model."""

    evaluated = False  # whether this process, or one that it was forked from, has entered `evaluating`
    searches: ClassVar[bool] = True  # whether a search need not read every document with every query

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the paradigm's name."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Return all settings. Two runs with equal descriptions train the same model."""

    @abstractmethod
    def write(self, folder: Path, *, merged: bool = False) -> None:
        """Write all files of the model to an existing folder; `from_pretrained` restores it bit for bit.

        merged: add the adapters to the weights that they adapt; the adapters can then no longer be trained.
        """

    @property
    def document_length(self) -> int | None:
        """Return the maximum length of documents in tokens; None if the model's weights store documents."""
        return None

    def count_cut(self, texts: Sequence[str]) -> Cut | None:
        """Return how many documents are truncated, and how far; None if the model encodes no documents."""
        return None

    def hub_task(self) -> tuple[str, list[str]]:
        """Return the task and the tags under which the hub lists models of this kind; ("", []) if none."""
        return "", []

    def check_corpus(self, ids: Sequence[str]) -> None:
        """Raise ValueError if the model can rank only one corpus and `ids` are from another corpus."""

    def retriever(self, corpus: Corpus, precision: str) -> Retriever:
        """Return what searches or reranks the corpus with a model that needs no index (`retriever_of`).

        Raises TypeError unless a subclass defines it. A paradigm does not: `retrieve.Indexed` searches it.
        """
        raise TypeError(f"{self.name} defines no `retriever`: a paradigm is searched with retrieve.Indexed")

    def save_pretrained(self, folder: str | Path, layout: str = "paradigms", card: str | None = None) -> None:
        """Save this model with `saved.save_pretrained`."""
        save_pretrained(self, folder, layout, card)

    save = save_pretrained

    def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
        try:
            return super().__getattr__(name)
        except AttributeError:
            from paradigms.io.guesses import no_attribute

            raise no_attribute(self, name) from None

    @classmethod
    @abstractmethod
    def from_pretrained(cls, folder: str | Path) -> Any:
        """Read a model saved by `write` or `save_pretrained`. No code is loaded: weights are safetensors."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def layers(self) -> list[nn.Module]:
        """Return the backbone's repeated modules, which are sharded and recomputed one at a time."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        return [module for module in self.modules() if isinstance(module, GradientCheckpointingLayer)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Disable dropout within this context, which only one thread at a time can enter.

        A fork waits until no other thread is in it. Processes that are forked after a first context compute
        with one thread.
        """
        with EVALUATING:
            Trainable.evaluated = True
            # Not only the model's mode, because models with other alignments share the encoder.
            training = [module for module in self.modules() if module.training]
            for module in training:
                module.training = False
            try:
                yield
            finally:
                for module in training:
                    module.training = True
