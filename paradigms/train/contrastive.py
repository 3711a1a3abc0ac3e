"""−(1/b) Σ log softmax(rel/τ)[positive] over in-batch and hard negatives of all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.model import Paradigm
from paradigms.train.distributed import gather, gather_documents, place_among
from paradigms.train.examples import Example, TrainingBatch, tokenised
from paradigms.train.losses import contrastive
from paradigms.train.objective import Objective
from paradigms.train.scoring import in_batch_rel


class Contrastive(Objective):
    """The objective of every paradigm that encodes queries and documents apart."""

    def __init__(
        self,
        paradigm: Paradigm,
        corpus: Corpus,
        examples: Sequence[Example],
        temperature: float | None = None,  # τ; None = the paradigm's own
    ) -> None:
        self.paradigm, self.corpus, self.examples = paradigm, corpus, examples
        self.temperature = temperature or paradigm.recipe.temperature

    def collate(self, examples: list[Example]) -> TrainingBatch:
        return tokenised(examples, self.paradigm.encoder, self.corpus)

    def loss(self, model: nn.Module, batch: TrainingBatch) -> Tensor:
        queries, documents = model(batch.queries, batch.documents)
        positions = gather(batch.positions[None])[0]
        pool = gather_documents(documents)
        scores = in_batch_rel(pool, queries, self.paradigm.align, self.paradigm.normalise)
        first = place_among(len(batch.positions))
        target = torch.arange(first, first + len(batch.relevant), device=scores.device)
        return contrastive(scores, target, batch.excluded(positions), self.temperature)
