"""−(1/b) Σ log p(target | source): maximum likelihood of identifiers, what generative retrieval trains on."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.encoder.text import Batch
from paradigms.generative.identifiers import Targets
from paradigms.generative.model import Generative
from paradigms.generative.pairs import Pair
from paradigms.train.losses import Objective
from paradigms.train.parallel import world


class Likelihood(Objective):
    """Wu et al. 2024, Eq. 8: a target's log p is the sum over its tokens; the loss is minus its mean.

    corpus: what NP-decoding's clusters are renewed from, every `settings.refresh` steps.
    """

    def __init__(self, model: Generative, corpus: Corpus, pairs: Sequence[Pair]) -> None:
        if not pairs:
            raise ValueError(f"{model.name} has no training pairs: no judged query, and no text to index")
        self.model, self.corpus, self.examples = model, corpus, pairs
        self.renews = model.settings.refresh > 0

    def collate(self, examples: list[Pair]) -> tuple[Batch, Targets]:
        """b sources and one target for each."""
        targets = [[self.model.written(pair.document, pair.target)] for pair in examples]
        return self.model.tokenize([pair.source for pair in examples]), self.model.targets(targets)

    def loss(self, model: nn.Module, batch: tuple[Batch, Targets]) -> Tensor:
        return -model(*batch).sum() / len(batch[1].ids)

    def prepare(self, step: int) -> None:
        """ASYNC: the clusters anew, made by the first process for all."""
        every, clusters = self.model.settings.refresh, self.model.clusters
        due = every > 0 and step > 0 and step % every == 0
        several = world() > 1
        if due and (not several or dist.get_rank() == 0):
            self.model.refresh(self.corpus)
        if several and clusters is not None and (due or step == 0):
            labels = torch.tensor(clusters.labels, device=clusters.vectors.device)
            dist.broadcast(clusters.vectors.data, 0)
            dist.broadcast(labels, 0)
            clusters.labels = labels.cpu().numpy()
