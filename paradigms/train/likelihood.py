"""−(1/b) Σ log p(target | source): maximum likelihood of identifiers, the loss of generative retrieval.

If the model has token sets or the pairs have hard negatives, a loss on rel over several documents is added.
"""

from collections.abc import Sequence

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, broadcast_object_list
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.encoder.text import Batch
from paradigms.generative.identifiers import Targets
from paradigms.generative.model import Generative
from paradigms.generative.pairs import Pair
from paradigms.train.examples import own_count
from paradigms.train.losses import LossSettings, Objective, contrastive

NEGATIVES = 7  # documents of other pairs in the batch, for sets of tokens without hard negatives

# Sources, targets, and where several documents are ranked, their positions and a teacher's scores of them.
Pairs = tuple[Batch, Targets] | tuple[Batch, Targets, Int[Tensor, "b n"], Float[Tensor, "b c"]]


class Likelihood(Objective):
    """Minus the mean over targets of Σ_tokens log p (Wu et al. 2024, Eq. 8).

    If documents have token sets (PAG: Zeng et al. 2024, arXiv:2404.14600), or pairs have hard negatives, the
    softmax cross-entropy over the pair's document and its negatives is added, with rel under the model's
    ranking score. With distillation, `Distillation.joined` combines the likelihood with the teacher's scores
    instead, averaged over prefix lengths i: the teacher's scores are multiplied by √(i/m), and the student's
    score is the sum over the first i tokens plus the set part. With "margin_mse", this is RIPOR's loss on
    prefixes (Zeng et al. 2024, arXiv:2311.09134, §3.3), whose factor 1 − 2/i also rises with falling
    increments, but is negative for short identifiers.

    corpus: documents from which NP-decoding's clusters are rebuilt every `model.settings.refresh` steps.
    """

    reads = ("distillation",)
    learns_alone = True  # to write its identifier

    def __init__(self, model: Generative, corpus: Corpus, pairs: Sequence[Pair]) -> None:
        if not pairs:
            raise ValueError(f"{model.name} has no training pairs: no judged query, and no text to index")
        if any(pair.negatives for pair in pairs):
            own_count(pairs, model.name, taught=False)
        self.model, self.corpus, self.examples = model, corpus, pairs
        self.ranks = model.sets is not None or bool(pairs[0].negatives)
        if self.ranks and model.identifiers.end is None:
            raise ValueError(f"{model.name} has no identifier to rank: its negatives would be n-grams")
        self.renews = model.settings.refresh > 0
        self.relevant: dict[str, set[int]] = {}  # source -> documents that any pair gives it
        for pair in pairs if self.ranks else ():
            self.relevant.setdefault(pair.source, set()).add(self._first(pair.document))

    def configure(self, settings: LossSettings) -> Objective:
        if settings.distillation is not None and not all(
            pair.negatives and len(pair.teacher) == 1 + len(pair.negatives) for pair in self.examples
        ):
            raise ValueError(
                f"{self.model.name} learns a teacher's scores: build the pairs with negatives and a teacher"
            )
        return super().configure(settings)

    def without_negatives(self, batches: Sequence[Sequence[Pair]]) -> int:
        return sum(
            {pair.document}.issuperset(negatives)
            for batch in (batches if self.ranks else ())
            for pair, negatives in zip(batch, self.negatives(batch), strict=True)
        )

    def negatives(self, batch: Sequence[Pair]) -> list[list[int]]:
        """Return each pair's hard negatives or, without any, the documents of the next pairs in the batch.

        Other documents of the same source and their copies are replaced by the pair's own, which `ranking`
        excludes.
        """
        own = [pair.document for pair in batch]
        around = [(own[n + 1 :] + own[:n])[:NEGATIVES] for n in range(len(own))]
        return [
            list(pair.negatives)
            or [pair.document if self._first(d) in self.relevant[pair.source] else d for d in others]
            for pair, others in zip(batch, around, strict=True)
        ]

    def collate(self, examples: list[Pair]) -> Pairs:
        """Tokenise b sources and their targets; for a ranking loss, also the negatives' identifiers."""
        model, sources = self.model, self.model.tokenize([pair.source for pair in examples])
        targets = [[model.written(pair.document, pair.target)] for pair in examples]
        if not self.ranks:
            return sources, model.targets(targets)
        ranked = [
            [pair.document, *others] for pair, others in zip(examples, self.negatives(examples), strict=True)
        ]
        for row, (_, *others) in zip(targets, ranked, strict=True):
            row += [model.names(document)[0] for document in others]
        documents = torch.tensor(ranked)
        teacher = torch.tensor([pair.teacher if self.settings.distillation else () for pair in examples])
        return sources, model.targets(targets), documents, teacher

    def _first(self, document: int) -> int:
        return self.corpus.first(self.corpus.ids[document])

    def loss(self, model: nn.Module, batch: Pairs) -> Tensor:
        if len(batch) == 2:
            return -model(*batch).sum() / len(batch[1].ids)
        sources, targets, documents, teacher = batch
        sets = documents if self.model.sets is not None else None
        parts = model(sources, targets, "log_probability", self.model.settings.score, documents=sets)
        return self.ranking(parts, targets.ids.shape[-1], documents, teacher)

    def ranking(
        self,
        parts: Float[Tensor, "two b n m"],
        tokens: int,
        documents: Int[Tensor, "b n"],
        teacher: Float[Tensor, "b c"],
    ) -> Tensor:
        """Compute the loss from log p and from the contributions to rel.

        parts: log p and the contributions, each with `tokens` columns, plus one column for the set part if
        documents have sets.
        """
        likelihood = -parts[0, :, 0, :tokens].sum(-1).mean()
        prefixes = parts[1, ..., :tokens].cumsum(-1) + parts[1, ..., tokens:].sum(-1, keepdim=True)
        if self.settings.distillation is None:
            first = torch.zeros(len(documents), dtype=torch.long, device=documents.device)
            excluded: Bool[Tensor, "b n"] = documents == documents[:, :1]
            return likelihood + contrastive(prefixes[..., -1], first, excluded, 1.0)
        scores = teacher.to(prefixes.dtype)
        losses = [
            self.settings.distillation.joined(
                likelihood, prefixes[..., i], scores * ((i + 1) / tokens) ** 0.5
            )
            for i in range(tokens)
        ]
        return torch.stack(losses).mean()

    def prepare(self, step: int, steps: int) -> None:
        """Rebuild NP-decoding's clusters on the first process, if due, and send them to the others."""
        every, clusters = self.model.settings.refresh, self.model.clusters
        due = every > 0 and step > 0 and step % every == 0
        if due and PartialState().is_main_process:
            self.model.refresh(self.corpus)
        if clusters is not None and (due or step == 0):
            broadcast(clusters.vectors.data)
            (clusters.labels,) = broadcast_object_list([clusters.labels])
