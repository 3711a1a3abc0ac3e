"""Losses over scores: functions of rel alone, independent of the encoder."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from paradigms.core import Tokens
from paradigms.io.checks import Range, check_types
from paradigms.train.settings import LossOptions, Positive


def contrastive(
    scores: Float[Tensor, "b n"], target: Int[Tensor, " b"], excluded: Bool[Tensor, "b n"], temperature: float
) -> Float[Tensor, ""]:
    """−(1/b) Σ log softmax(rel/τ)[target]: softmax cross-entropy over in-batch and hard negatives.

    excluded: candidates that are not negatives (other relevant documents, copies); the target always counts.
    With cosines and many negatives, the target's probability at τ = 1 stays far below 1.
    """
    target_mask = torch.zeros_like(excluded).scatter(1, target[:, None], True)
    logits = (scores / temperature).masked_fill(excluded & ~target_mask, -torch.inf)
    return torch.nn.functional.cross_entropy(logits, target)


def first_candidate(scores: Float[Tensor, "b c"]) -> Float[Tensor, ""]:
    """−(1/b) Σ log softmax(s)[0], with s = rel/τ: softmax cross-entropy of each query's first candidate."""
    target = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return torch.nn.functional.cross_entropy(scores, target)


def kl(student: Float[Tensor, "b c"], teacher: Float[Tensor, "b c"]) -> Float[Tensor, ""]:
    """(1/b) Σ_q KL(softmax(t_q) ‖ softmax(s_q)) over each query's c candidates (ColBERTv2, §3.2)."""
    log_p = teacher.log_softmax(-1)
    log_q = student.log_softmax(-1)
    return torch.nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def margin_mse(student: Float[Tensor, "b c"], teacher: Float[Tensor, "b c"]) -> Float[Tensor, ""]:
    """1/(b·k) Σ_q Σ_m ((s_q0 − s_qm) − (t_q0 − t_qm))²: squared errors in margins over k = c − 1 negatives.

    Hofstätter et al. 2020 (arXiv:2010.02666). Unlike `kl`, this loss also depends on the scale of the scores.
    """
    difference = student - teacher
    return (difference[:, :1] - difference[:, 1:]).square().mean()


def flops(mean: Float[Tensor, " v"], frequency: Float[Tensor, " v"]) -> Float[Tensor, ""]:
    """Σ_t ā_t²: estimated number of multiplications per document in an inverted index.

    The estimate assumes queries that are distributed like these texts (Paria et al. 2020, Eq. 3).
    """
    return mean.square().sum()


def l1(mean: Float[Tensor, " v"], frequency: Float[Tensor, " v"]) -> Float[Tensor, ""]:
    """Σ_t ā_t: the sum of a text's weights, averaged over the texts."""
    return mean.sum()


def df_flops(mean: Float[Tensor, " v"], frequency: Float[Tensor, " v"]) -> Float[Tensor, ""]:
    """Σ_t (ω_t · ā_t)², ω = 1/(1 + (f^{log_α 2} − 1)^β), α = .1, β = 10: FLOPS of frequent terms only.

    Porco et al. 2025 (arXiv:2505.15070) measure f on the dev documents every 100 steps; here, f is measured
    on the batch.
    """
    omega = 1 / (1 + (frequency ** (math.log(2) / math.log(0.1)) - 1) ** 10)
    return (omega * mean).square().sum()


# Functions of each term's mean weight ā_t in the texts and the share f_t of texts with the term.
REGULARISERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"flops": flops, "l1": l1, "df_flops": df_flops}


def sparsity(texts: Tokens, kind: str) -> Float[Tensor, ""]:
    """Apply a regulariser to texts whose tokens [1, x, l, 1] are weights of the terms `ids`."""
    assert texts.ids is not None
    ids = texts.ids.where(texts.mask, 0).flatten()
    weights = texts.vectors.squeeze(-1).where(texts.mask, 0).flatten()
    empty = weights.new_zeros(int(ids.amax()) + 1)
    count = texts.mask.shape[1]
    sums, counts = (empty.scatter_add(0, ids, t) for t in (weights, (weights > 0).to(weights.dtype)))
    return REGULARISERS[kind](sums / count, counts / count)


DISTILLATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"kl": kl, "margin_mse": margin_mse}


@dataclass(frozen=True)
class Distillation:
    """(1 − w) · L + w · ℓ(rel/τ, t/τ_t): the loss L on labels and the loss ℓ on a teacher's scores t.

    Both losses take scores divided by the student's τ. The paper on `margin_mse` uses inner products with
    τ = 1; cosines with τ = 0.02 can reach margins of up to 100.
    """

    loss: Literal["kl", "margin_mse"] = "kl"  # ℓ: a key of DISTILLATIONS
    # w; with 1, labels only choose the positive document
    weight: Annotated[float, Range(0, 1, above=True)] = 0.5
    temperature: Positive = 1.0  # τ_t: 1 for the logits of a cross-encoder

    def __post_init__(self) -> None:
        check_types(self)

    def joined(
        self,
        supervised: Float[Tensor, ""],
        student: Float[Tensor, "b c"],
        teacher: Float[Tensor, "b c"] | None,
    ) -> Float[Tensor, ""]:
        """Combine L with ℓ over each query's candidates, positive first. student: rel/τ; teacher: t."""
        assert teacher is not None  # `Objective.configure` has checked it
        teacher = teacher.to(student.dtype) / self.temperature
        return torch.lerp(supervised, DISTILLATIONS[self.loss](student, teacher), self.weight)


@dataclass(kw_only=True)
class LossSettings(LossOptions):
    """Settings of a loss. `TrainingSettings` inherits them, and `train` gives them to the objective.

    Values are checked when the object is made: `dataclasses.replace` makes one with changes.
    """

    # whether other queries' documents are negatives, unlike in ColBERTv1 (Khattab and Zaharia 2020, §3.4)
    in_batch: bool = True
    distillation: Distillation | None = None  # learn a teacher's scores; None = labels only

    def __post_init__(self) -> None:
        check_types(self)
        if any(dim < 1 for dim in self.matryoshka):
            raise ValueError(f"matryoshka are numbers of coordinates, at least 1, got {self.matryoshka}")


def digest_of(examples: Iterable[Any]) -> str:
    """SHA-256 of stored examples' files, or of repr(list(examples)), with one repr in memory at a time."""
    if stored := getattr(examples, "digest", ""):
        return str(stored)
    digest = hashlib.sha256(b"[")
    for n, example in enumerate(examples):
        digest.update(f"{', ' if n else ''}{example!r}".encode("utf-8", "surrogatepass"))
    digest.update(b"]")
    return digest.hexdigest()


class Objective(ABC):
    """A loss averaged over examples: provides the examples, makes batches and computes a batch's loss."""

    model: Any  # the paradigm to train
    examples: Sequence[Any]  # with distinctive reprs (`digest`)
    corpus: Sequence[str] = ()  # texts to which examples refer by position
    prompts: tuple[str, str] = ("", "")
    settings = LossSettings()  # set by `configure`
    reads: Sequence[str] = ()  # the fields of `settings` that change the loss
    learns_alone: bool = False  # whether an example without negatives teaches something
    renews: bool = False  # whether `prepare` changes what `collate` returns: no batch is made ahead

    def configure(self, settings: LossSettings) -> "Objective":
        """Set the loss's settings, and return self. Raises ValueError if one of them would have no effect.

        Also raises it if the examples cannot be distilled (`candidate_count`).
        """
        for name in (f.name for f in fields(LossSettings) if f.name not in self.reads):
            value = getattr(settings, name)
            if value != getattr(Objective.settings, name):
                raise ValueError(f"{name}={value} has no effect on {self.model.name}: leave it out")
        if settings.distillation is not None:
            candidate_count(self.examples, self.model.name, taught=True)
        self.settings = settings
        return self

    def digest(self) -> str:
        """Return a checksum of the examples, texts and prompts: a run resumes only with the same ones."""
        texts = () if hasattr(self.examples, "digest") else self.corpus  # that digest covers the texts
        parts = [digest_of(self.examples), digest_of(texts), self.prompts]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def without_negatives(self, batches: Sequence[Sequence[Any]]) -> int:
        """Count the examples of one step, a batch for each process, that have no negative to learn from."""
        return 0

    def collections(self) -> tuple[list[int], list[float]]:
        """Return the numbers of examples and shares of steps of collections; a batch is from one of them."""
        return [len(self.examples)], [1.0]

    @abstractmethod
    def collate(self, examples: list[Any]) -> Any:
        """Make a batch: tensors, objects with a method `to(device)`, or tuples of these."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of this process's batch; `model` is the paradigm wrapped by accelerate."""

    def prepare(self, step: int, steps: int) -> None:  # noqa: B027 - most objectives keep nothing
        """Update state before step `step` of `steps`, on every process."""


def candidate_count(examples: Sequence[Any], name: str, taught: bool) -> int:
    """Return 1 + k, the number of documents per example (`Example`, or `Pair` of a generative model).

    Raises ValueError if k is 0 or varies, or if `taught` examples lack a teacher's scores.
    """
    stored: Any = examples if hasattr(examples, "negatives") else None  # `StoredExamples` know their counts
    counts = sorted({len(example.negatives) for example in examples}) if stored is None else stored.negatives
    loss = f"the distillation of {name}" if taught else name
    if len(counts) != 1 or counts[0] < 1:
        raise ValueError(
            f"{loss} needs the same number of hard negatives for every query, at least one, but has "
            f"{' or '.join(map(str, counts)) or 'no examples'}: set negatives"
        )
    if taught:
        lengths = (len(example.teacher) for example in examples)
        if not (all(n == 1 + counts[0] for n in lengths) if stored is None else stored.taught):
            raise ValueError(f"{loss} needs a teacher's scores: build the examples with a teacher")
    return 1 + counts[0]
