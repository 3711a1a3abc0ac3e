"""−(1/b) Σ log softmax(rel/τ)[positive] over all processes' negatives, or over the query's own negatives."""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paradigms.bge_m3 import PARTS, BgeM3Settings, part_of
from paradigms.core import Tokens
from paradigms.encoder.batches import Batch
from paradigms.encoder.text import first_coordinates
from paradigms.model import Paradigm
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.splade import SpladeSettings
from paradigms.train.examples import Example
from paradigms.train.losses import (
    LossSettings,
    Objective,
    candidate_count,
    contrastive,
    first_candidate,
    kl,
    sparsity,
)
from paradigms.train.parallel import gather, gather_documents, place_among
from paradigms.trainable import Trainable


class TrainingBatch(NamedTuple):
    """b queries and n = b · (1 + k) documents: every query's positive, then each query's k negatives."""

    queries: Batch
    documents: Batch
    positions: Int[Tensor, " n"]  # the documents' positions in the corpus
    relevant: Int[Tensor, "b r"]  # positions relevant to each query, padded with −1
    teacher: Float[Tensor, "b c"] | None = None  # t of each query's c = 1 + k documents

    def excluded(self, positions: Int[Tensor, " m"]) -> Bool[Tensor, "b m"]:
        """Return a mask of the pool's documents, over all processes, that are relevant to each query."""
        mask = torch.zeros(len(self.relevant), len(positions), dtype=torch.bool, device=positions.device)
        for relevant in self.relevant.T:  # [b, r, m] may not fit into memory if r is large
            mask |= relevant[:, None] == positions
        return mask

    def candidates(self, first: int = 0) -> Int[Tensor, "b c"]:
        """Places of each query's documents, positive first, in a pool where the batch starts at `first`."""
        b = len(self.relevant)
        places = torch.arange(len(self.positions), device=self.positions.device) + first
        return torch.cat([places[:b, None], places[b:].view(b, -1)], 1)


class Contrastive(Objective):
    """The objective for all paradigms that encode queries and documents separately.

    The loss also includes γ · mean u, where γ is the encoder's `salience_l1`, SPLADE's sparsity term
    (`SpladeSettings`), which rises over the first third of the steps, and the losses of BGE-M3's parts
    (`bge_m3`). Only encoders use mixed precision: rel, softmax and loss are float32. prompts: texts before
    each query and each document, besides the encoder's.
    """

    reads = tuple(field.name for field in fields(LossSettings))

    def __init__(
        self,
        model: Paradigm,
        corpus: Sequence[str],
        examples: Sequence[Example],
        prompts: tuple[str, str] = ("", ""),
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.examples = examples
        self.prompts = prompts
        self.share = 1.0  # of SPLADE's term

    def configure(self, settings: LossSettings) -> Objective:
        encoder = self.model.encoder
        shorter = settings.matryoshka
        has_pooled = encoder.settings.pooled_dim or isinstance(encoder.settings, BgeM3Settings)
        if shorter and (max(shorter) >= encoder.dim or has_pooled):
            raise ValueError(
                f"matryoshka={shorter} must be below the {encoder.dim} dimensions of {self.model.name}, and "
                "not of vectors that a pooled one joins"
            )
        if not settings.in_batch:
            candidate_count(self.examples, self.model.name, taught=False)
        return super().configure(settings)

    def without_negatives(self, batches: Sequence[Sequence[Example]]) -> int:
        together = [example for batch in batches for example in batch]
        pool = {p for example in together for p in (example.positive, *example.negatives)}
        return sum(pool.issubset(example.relevant) for example in together)

    def collate(self, examples: list[Example]) -> TrainingBatch:
        tokenize = self.model.encoder.tokenize
        positions = [e.positive for e in examples] + [n for e in examples for n in e.negatives]
        relevant = [torch.tensor(e.relevant) for e in examples]
        query_prompt, document_prompt = self.prompts
        return TrainingBatch(
            tokenize([query_prompt + e.query for e in examples], "query"),
            tokenize([document_prompt + self.corpus[p] for p in positions], "document"),
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
        settings = self.model.encoder.settings
        loss, scores = self._of_rel(pool, queries, batch, positions)
        if isinstance(settings, BgeM3Settings):
            teacher = self._logits(scores.detach(), batch, positions) if settings.self_distillation else None
            learned = loss.new_zeros(())  # from the teacher
            for part, share in settings.losses.items():
                recipe = PARTS[part]
                d = part_of(pool, part)
                q = part_of(queries, part)
                bound = self.settings.score_bytes
                scores = in_batch_rel(d, q, recipe.align, recipe.normalise_function, bound=bound)
                scores = scores / settings.weights[part]  # which Q has
                loss = loss + share * self._of_scores(scores, batch, positions)
                if teacher is not None:
                    learned = learned + share * kl(self._logits(scores, batch, positions), teacher)
            loss = loss / (1 + len(settings.losses))
            if teacher is not None:
                loss = (loss + learned / len(settings.losses)) / 2
        if isinstance(settings, SpladeSettings):
            all_queries = gather_documents(queries.map(lambda t: t.transpose(0, 1)))
            few = settings.query_sparsity * sparsity(all_queries, settings.sparsity)
            loss = loss + self.share * (few + settings.document_sparsity * sparsity(pool, settings.sparsity))
        if settings.salience_l1:
            loss = loss + settings.salience_l1 * (mean_salience(queries) + mean_salience(documents))
        return loss

    def _of_rel(
        self,
        pool: Tokens,
        queries: Tokens,
        batch: TrainingBatch,
        positions: Int[Tensor, " n"],
    ) -> tuple[Tensor, Float[Tensor, "b n"]]:
        """Sum the losses on rel with all coordinates and with fewer; return the sum, and rel with all."""
        which = torch.arange(len(positions), device=positions.device)
        if "pool" in getattr(self.model.align, "reads", ()):  # the pool has each document once
            places, which = distinct(positions)
            pool = pool.map(lambda t: t[:, places])
        bound = self.settings.score_bytes
        normalize = self.model.encoder.settings.normalize
        rels = []
        for dim in (None, *self.settings.matryoshka):
            d = first_coordinates(pool, dim, normalize)
            q = first_coordinates(queries, dim, normalize)
            rels.append(in_batch_rel(d, q, self.model.align, self.model.normalise, bound=bound)[:, which])
        losses = [self._of_scores(scores, batch, positions) for scores in rels]
        return torch.stack(losses).sum(), rels[0]

    def _logits(
        self, scores: Float[Tensor, "b n"], batch: TrainingBatch, positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "b c"]:
        """Return rel/τ of each query's candidates; other relevant documents have the least logit."""
        logits = scores / (self.settings.temperature or self.model.recipe.temperature)
        candidates = batch.candidates(place_among(len(batch.positions)))
        if not self.settings.in_batch:
            return logits.gather(1, candidates)
        others = batch.excluded(positions).scatter(1, candidates[:, :1], False)
        return logits.masked_fill(others, torch.finfo(logits.dtype).min)

    def _of_scores(
        self, scores: Float[Tensor, "b n"], batch: TrainingBatch, positions: Int[Tensor, " n"]
    ) -> Tensor:
        """Compute the loss on labels and, if there is a teacher, on its scores. scores: rel."""
        s = self.settings
        first = place_among(len(batch.positions))
        temperature = s.temperature or self.model.recipe.temperature
        if s.in_batch:
            target = torch.arange(first, first + len(batch.relevant), device=scores.device)
            loss = contrastive(scores, target, batch.excluded(positions), temperature)
            if s.distillation is None:  # queries may then have different numbers of hard negatives
                return loss
        candidates = scores.gather(1, batch.candidates(first)) / temperature
        if not s.in_batch:
            loss = first_candidate(candidates)
        return loss if s.distillation is None else s.distillation.joined(loss, candidates, batch.teacher)


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

    def __init__(self, model: Trainable, corpus: Sequence[str], examples: Sequence[Example]) -> None:
        self.candidates = candidate_count(examples, model.name, taught=False)
        self.model = model
        self.corpus = corpus
        self.examples = examples

    def collate(self, examples: list[Example]) -> tuple[Batch, Tensor | None]:
        """Tokenise b · (1 + k) pairs, each query's positive first; with distillation, add t of each pair."""
        queries = [example.query for example in examples for _ in range(self.candidates)]
        documents = [p for example in examples for p in (example.positive, *example.negatives)]
        scores = torch.tensor([e.teacher for e in examples]) if self.settings.distillation else None
        return self.model.tokenize(queries, [self.corpus[p] for p in documents]), scores

    def loss(self, model: nn.Module, batch: tuple[Batch, Tensor | None]) -> Tensor:
        pairs, teacher = batch
        scores = model(pairs).view(-1, self.candidates) / (self.settings.temperature or 1.0)
        loss = first_candidate(scores)
        distillation = self.settings.distillation
        return loss if distillation is None else distillation.joined(loss, scores, teacher)


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
