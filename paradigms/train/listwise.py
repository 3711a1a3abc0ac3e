"""−(1/b) Σ log softmax(s/τ)[positive] over one relevant document and its query's own negatives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus
from paradigms.encoder.text import Batch
from paradigms.train.examples import Example, check_taught, teacher_scores
from paradigms.train.losses import Distillation, Objective, contrastive


@dataclass(frozen=True)
class ListBatch:
    """b · (1 + k) pairs, each query's positive first."""

    pairs: Batch
    teacher: Float[Tensor, "b c"] | None = None  # t of each query's c = 1 + k documents

    def to(self, device: torch.device | str) -> "ListBatch":
        return ListBatch(self.pairs.to(device), None if self.teacher is None else self.teacher.to(device))


class Listwise(Objective):
    """A reranker's objective: Luan et al. 2021, §4.2; localised contrastive estimation (Gao et al. 2021).

    Documents of other queries are no negatives: each would cost one more pass of the encoder. ValueError
    where examples have no negatives, or some more than others.
    """

    def __init__(
        self,
        model: CrossAttention,
        corpus: Corpus,
        examples: Sequence[Example],
        temperature: float | None = None,  # τ; None = 1: s has a scale of its own
        distillation: Distillation | None = None,
    ) -> None:
        counts = sorted({len(example.negatives) for example in examples})
        if len(counts) != 1 or counts[0] < 1:
            raise ValueError(
                f"{model.name} needs equally many hard negatives for every query, at least one, and has "
                f"{' or '.join(map(str, counts)) or 'no examples'}: set negatives"
            )
        self.model, self.corpus, self.examples = model, corpus, examples
        if distillation is not None:
            check_taught(examples)
        self.candidates = 1 + counts[0]
        self.temperature = temperature or 1.0
        self.distillation = distillation

    def collate(self, examples: list[Example]) -> ListBatch:
        queries = [example.query for example in examples for _ in range(self.candidates)]
        documents = [p for example in examples for p in (example.positive, *example.negatives)]
        pairs = self.model.tokenize(queries, [self.corpus[p] for p in documents])
        return ListBatch(pairs, teacher_scores(examples))

    def loss(self, model: nn.Module, batch: ListBatch) -> Tensor:
        scores = model(batch.pairs).view(-1, self.candidates)
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        loss = contrastive(scores, first, torch.zeros_like(scores, dtype=torch.bool), self.temperature)
        if self.distillation is None:
            return loss
        assert batch.teacher is not None
        return self.distillation.joined(loss, scores / self.temperature, batch.teacher)
