"""−(1/b) Σ log p(target | source): maximum likelihood of identifiers, the loss of generative retrieval."""

from collections.abc import Sequence

from accelerate import PartialState
from accelerate.utils import broadcast, broadcast_object_list
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.encoder.text import Batch
from paradigms.generative.identifiers import Targets
from paradigms.generative.model import Generative
from paradigms.generative.pairs import Pair
from paradigms.train.losses import Objective


class Likelihood(Objective):
    """Minus the mean over targets of Σ_tokens log p (Wu et al. 2024, Eq. 8).

    corpus: documents from which NP-decoding's clusters are rebuilt every `settings.refresh` steps.
    """

    def __init__(self, model: Generative, corpus: Corpus, pairs: Sequence[Pair]) -> None:
        if not pairs:
            raise ValueError(f"{model.name} has no training pairs: no judged query, and no text to index")
        self.model, self.corpus, self.examples = model, corpus, pairs
        self.renews = model.settings.refresh > 0

    def collate(self, examples: list[Pair]) -> tuple[Batch, Targets]:
        """Tokenise b sources and their targets."""
        targets = [[self.model.written(pair.document, pair.target)] for pair in examples]
        return self.model.tokenize([pair.source for pair in examples]), self.model.targets(targets)

    def loss(self, model: nn.Module, batch: tuple[Batch, Targets]) -> Tensor:
        return -model(*batch).sum() / len(batch[1].ids)

    def prepare(self, step: int) -> None:
        """Rebuild ASYNC's clusters on the first process, for all processes."""
        every, clusters = self.model.settings.refresh, self.model.clusters
        due = every > 0 and step > 0 and step % every == 0
        if due and PartialState().is_main_process:
            self.model.refresh(self.corpus)
        if clusters is not None and (due or step == 0):
            broadcast(clusters.vectors.data)
            (clusters.labels,) = broadcast_object_list([clusters.labels])
