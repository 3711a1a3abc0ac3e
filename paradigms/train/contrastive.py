"""−(1/b) Σ log softmax(rel/τ)[positive] over all processes' negatives, or over the query's own negatives."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.bge_m3 import PARTS, BgeM3Settings, part_of
from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.encoder.text import Batch, first_coordinates
from paradigms.model import Paradigm
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.splade import SpladeSettings
from paradigms.train.coded import straight_through
from paradigms.train.examples import Example, TrainingBatch, own_count
from paradigms.train.losses import LossSettings, Objective, contrastive, sparsity
from paradigms.train.parallel import gather, gather_documents, place_among


class Contrastive(Objective):
    """The objective for all paradigms that encode queries and documents separately.

    The loss also includes γ · mean u, where γ is the encoder's `salience_l1`, SPLADE's sparsity term
    (`SpladeSettings`), which rises over the first third of the steps, and the losses of BGE-M3's parts
    (`bge_m3`). distillation: a loss combined with the first term, over each query's positive and hard
    negatives. chunk: as in `batches.in_parts`. in_batch: whether other queries' documents are negatives. If
    not, only the query's hard negatives count, as in ColBERTv1 (Khattab and Zaharia 2020, §3.4). matryoshka:
    numbers h′ < h; for each, the loss on the first h′ coordinates, renormalised, is added to the loss on all
    coordinates (Kusupati et al. 2022, arXiv:2205.13147, Eq. 1 with weights 1). coded_bits: bits per dimension
    of the codes that replace document vectors (`coded.straight_through`). Only encoders use mixed precision:
    rel, softmax and loss are float32.
    """

    reads = "chunk", "temperature", "in_batch", "matryoshka", "coded_bits", "distillation"

    def __init__(self, model: Paradigm, corpus: Corpus, examples: Sequence[Example]) -> None:
        self.model, self.corpus, self.examples = model, corpus, examples
        self.share = 1.0  # of SPLADE's term

    def configure(self, settings: LossSettings) -> Objective:
        encoder = self.model.encoder
        shorter = settings.matryoshka
        joined = encoder.settings.pooled_dim or isinstance(encoder.settings, BgeM3Settings)
        if shorter and (max(shorter) >= encoder.dim or joined):
            raise ValueError(
                f"matryoshka={shorter} must be below the {encoder.dim} dimensions of {self.model.name}, and "
                "not of vectors that a pooled one joins"
            )
        if settings.distillation is not None or not settings.in_batch:
            own_count(self.examples, self.model.name, settings.distillation is not None)
        return super().configure(settings)

    def without_negatives(self, batches: Sequence[Sequence[Example]]) -> int:
        together = [example for batch in batches for example in batch]
        pool = {p for example in together for p in (example.positive, *example.negatives)}
        return sum(pool.issubset(example.relevant) for example in together)

    def collate(self, examples: list[Example]) -> TrainingBatch:
        tokenize = self.model.encoder.tokenize
        positions = [e.positive for e in examples] + [n for e in examples for n in e.negatives]
        relevant = [torch.tensor(e.relevant) for e in examples]
        return TrainingBatch(
            tokenize([e.query for e in examples], "query"),
            tokenize([self.corpus[p] for p in positions], "document"),
            torch.tensor(positions),
            pad_sequence(relevant, batch_first=True, padding_value=-1),
            torch.tensor([e.teacher for e in examples]) if self.settings.distillation else None,
        )

    def prepare(self, step: int, steps: int) -> None:
        self.share = min(1.0, (step + 1) / (steps / 3)) ** 2

    def loss(self, model: nn.Module, batch: TrainingBatch) -> Tensor:
        queries, documents = model(batch.queries, batch.documents, self.settings.chunk)
        pool = gather_documents(documents)
        positions = gather(batch.positions[None])[0]
        which = torch.arange(len(positions), device=positions.device)
        if "pool" in getattr(self.model.align, "reads", ()):  # the pool has each document once
            places, which = distinct(positions)
            pool = pool.map(lambda t: t[:, places])
        settings = self.model.encoder.settings
        loss = pool.vectors.new_zeros(())
        for dim in (None, *self.settings.matryoshka):
            sides = [first_coordinates(t, dim, settings.normalize) if dim else t for t in (pool, queries)]
            if self.settings.coded_bits:
                sides[0] = straight_through(sides[0], self.settings.coded_bits)
            scores = in_batch_rel(sides[0], sides[1], self.model.align, self.model.normalise)
            loss = loss + self._of_scores(scores[:, which], batch, positions)
        if isinstance(settings, BgeM3Settings):
            for part, share in settings.losses.items():
                recipe, sides = PARTS[part], [part_of(t, part) for t in (pool, queries)]
                scores = in_batch_rel(sides[0], sides[1], recipe.align, recipe.normalise_function)
                scores = scores / settings.weights[part]  # which Q has
                loss = loss + share * self._of_scores(scores, batch, positions)
            loss = loss / (1 + len(settings.losses))
        if isinstance(settings, SpladeSettings):
            all_queries = gather_documents(queries.map(lambda t: t.transpose(0, 1)))
            few = settings.query_sparsity * sparsity(all_queries, settings.sparsity)
            loss = loss + self.share * (few + settings.document_sparsity * sparsity(pool, settings.sparsity))
        gamma = settings.salience_l1
        return loss + gamma * (mean_salience(queries) + mean_salience(documents)) if gamma else loss

    def _of_scores(self, scores: Tensor, batch: TrainingBatch, positions: Tensor) -> Tensor:
        """Compute the loss on labels and, if there is a teacher, on its scores. scores: rel [b, n]."""
        first = place_among(len(batch.positions))
        distillation = self.settings.distillation
        temperature = self.settings.temperature or self.model.recipe.temperature
        target = torch.arange(first, first + len(batch.relevant), device=scores.device)
        if self.settings.in_batch:
            loss = contrastive(scores, target, batch.excluded(positions), temperature)
        else:
            candidates = scores.gather(1, batch.own(first)) / temperature
            loss = cross_entropy(candidates, torch.zeros_like(target))
        if distillation is not None:
            assert batch.teacher is not None
            candidates = scores.gather(1, batch.own(first)) / temperature
            loss = distillation.joined(loss, candidates, batch.teacher)
        return loss


def distinct(positions: Int[Tensor, " m"]) -> tuple[Int[Tensor, " d"], Int[Tensor, " m"]]:
    """Return the first place of each distinct position, and for each position the number of its place.

    >>> distinct(torch.tensor([5, 2, 5]))
    (tensor([1, 0]), tensor([1, 0, 1]))
    """
    values, which = positions.unique(return_inverse=True)
    places = torch.arange(len(positions), device=positions.device)
    return places[: len(values)].scatter_reduce(0, which, places, "amin", include_self=False), which


class Listwise(Objective):
    """Objective for rerankers (Luan et al. 2021, §4.2): localised contrastive estimation (Gao et al. 2021).

    Documents of other queries are not negatives, because each would cost another pass of the encoder. The
    default temperature is 1, because training sets the scale of s. Raises ValueError unless all examples have
    the same number of negatives, at least one.
    """

    reads = "temperature", "distillation"

    def __init__(self, model: CrossAttention, corpus: Corpus, examples: Sequence[Example]) -> None:
        self.candidates = own_count(examples, model.name, taught=False)
        self.model, self.corpus, self.examples = model, corpus, examples

    def configure(self, settings: LossSettings) -> Objective:
        own_count(self.examples, self.model.name, settings.distillation is not None)
        return super().configure(settings)

    def collate(self, examples: list[Example]) -> tuple[Batch, Tensor | None]:
        """Tokenise b · (1 + k) pairs, each query's positive first; with distillation, add t of each pair."""
        queries = [example.query for example in examples for _ in range(self.candidates)]
        documents = [p for example in examples for p in (example.positive, *example.negatives)]
        scores = torch.tensor([e.teacher for e in examples]) if self.settings.distillation else None
        return self.model.tokenize(queries, [self.corpus[p] for p in documents]), scores

    def loss(self, model: nn.Module, batch: tuple[Batch, Tensor | None]) -> Tensor:
        pairs, teacher = batch
        distillation = self.settings.distillation
        scores = model(pairs).view(-1, self.candidates) / (self.settings.temperature or 1.0)
        loss = cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))
        if distillation is None:
            return loss
        assert teacher is not None
        return distillation.joined(loss, scores, teacher)


def mean_salience(tokens: Tokens) -> Tensor:
    """1/x Σ_texts ‖u‖₁/length: the L1 penalty on salience (Qian et al. 2022, §4.3); 0 without salience.

    With Z = Σ A, scaling all saliences of a text does not change rel. The penalty can therefore shrink
    without any sparsity; it makes saliences sparse only while gate scores fall below 0 faster than saliences
    shrink.
    """
    if tokens.salience is None:
        return tokens.vectors.new_zeros(())
    length = tokens.mask.sum(-1).clamp(min=1)
    return (tokens.salience.where(tokens.mask, 0).sum(-1) / length).mean()
