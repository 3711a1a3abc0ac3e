"""rel(d, q) = w₁ ⟨cls_d, cls_q⟩ + w₂ Σ_t w_t(d) w_t(q) + (w₃/N) Σⱼ maxᵢ dᵢᵀqⱼ: three readouts of one pass.

Chen et al. 2024 (BGE-M3, arXiv:2402.03216), §3.3: a dense vector, the weights of the text's own terms and a
vector per token are three linear readouts of the same hidden states; documents are ranked by the weighted sum
of their scores. The sum is one rel: D and Q contain the tokens of all three readouts. The dense vector has
the id `DENSE`, token vectors have the id `TOKEN`, and terms have their own ids and a single nonzero number.
The alignment A depends on S and the ids: each query token is aligned to the argmax over the document tokens
with the same id, so A is block-diagonal; Z = 1. The weights w₁, w₂ and w₃/N multiply the vectors of Q, which
does not change which tokens are the maxima.

The training loss is L = (L(sum) + λ₁ L(dense) + λ₂ L(sparse) + λ₃ L(tokens)) / 4. For each part without a
loss, the divisor is smaller by 1. With self-distillation, the loss is (L + L′) / 2, where the sum teaches the
parts: L′ = (λ₁ L′(dense) + λ₂ L′(sparse) + λ₃ L′(tokens)) / 3 and L′(part) = KL(softmax(sum/τ) ‖
softmax(part/τ)), without a gradient through the sum. The paper's cross-entropy has the same gradient.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from paradigms.align import AllPairs, EqualIds, QueryToDocument
from paradigms.core import Tokens
from paradigms.encoder.layers import orthogonal, pool, salience_head
from paradigms.encoder.precision import scores_of
from paradigms.encoder.settings import FIXED
from paradigms.encoder.text import ENCODERS, Batch, EncoderSettings, Side, TextEncoder
from paradigms.encoder.tokenizing import call_tokenizer
from paradigms.io.checks import Range
from paradigms.model import paradigm
from paradigms.recipe import Recipe

DENSE = -1
TOKEN = -2  # ids of the dense vector and of all token vectors
Part = Literal["dense", "sparse", "tokens"]
# A and Z of each part alone: since Q has the weights, the sum of their rels is the rel of all.
PARTS: dict[Part, Recipe] = {
    "dense": Recipe("bge_m3.dense", AllPairs(), "one"),
    "sparse": Recipe("bge_m3.sparse", EqualIds(), "one"),
    "tokens": Recipe("bge_m3.tokens", QueryToDocument(), "one"),
}
Weight = Annotated[float, Range(0, 1e6)]


@dataclass(frozen=True, kw_only=True)
class BgeM3Settings(EncoderSettings):
    """Settings for BGE-M3, with the weights of the three parts in rel (w) and in the training loss (λ)."""

    NOT_OF_DOCUMENTS: ClassVar[tuple[str, ...]] = (
        *EncoderSettings.NOT_OF_DOCUMENTS,
        *(f"{part}_{what}" for part in ("dense", "sparse", "token") for what in ("weight", "loss")),
        "self_distillation",
    )

    encoder: str = "bge_m3"
    dense_weight: Weight = 1.0  # w₁
    sparse_weight: Weight = 0.3  # w₂
    token_weight: Weight = 1.0  # w₃
    dense_loss: Weight = 1.0  # λ₁
    sparse_loss: Weight = 0.1  # λ₂
    token_loss: Weight = 1.0  # λ₃
    self_distillation: bool = False  # the sum of the parts teaches each part

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := self.changed(FIXED | {"normalize": True}):
            raise ValueError(f"BGE-M3 has no other {', '.join(wrong)}: its three readouts are fixed")
        if not any(self.weights.values()):
            raise ValueError("one of dense_weight, sparse_weight and token_weight must be above 0")
        if self.self_distillation and not self.losses:
            raise ValueError("self_distillation teaches parts that have a loss, and all losses are 0")

    @property
    def pools(self) -> bool:
        return True

    @property
    def weights(self) -> dict[Part, float]:
        """The weight w of each part in rel."""
        return {"dense": self.dense_weight, "sparse": self.sparse_weight, "tokens": self.token_weight}

    @property
    def losses(self) -> dict[Part, float]:
        """The weight λ of each part's loss, for the parts that have a loss."""
        losses: dict[Part, float] = {
            "dense": self.dense_loss,
            "sparse": self.sparse_loss,
            "tokens": self.token_loss,
        }
        return {part: share for part, share in losses.items() if share and self.weights[part]}


class BgeM3(TextEncoder):
    """Encode each text as the tokens of all three readouts.

    The heads are initialised to keep what the backbone has learned: the token projection is a rotation, and
    every term starts with weight 1.
    """

    Settings: ClassVar[type[EncoderSettings]] = BgeM3Settings
    settings: BgeM3Settings

    def __init__(self, backbone: str | Path, settings: BgeM3Settings) -> None:
        super().__init__(backbone, settings)
        width = self.backbone.config.hidden_size
        self.token_projection = orthogonal(width, width, bias=True)
        self.term_projection = salience_head(width)
        names = ["unk", "pad", *(["mask"] if settings.query_augmentation else [])]
        special = {getattr(self.tokenizer, f"{name}_token_id") for name in names} - {None}
        self._no_term = torch.tensor(sorted(special.union(call_tokenizer(self.tokenizer, "")["input_ids"])))

    def labels(self, text: str, side: Side, ids: Tensor | None = None) -> list[str]:
        batch = self.tokenize([text], side)
        ids = self.ids_of(batch, side) if ids is None else ids
        vectors = batch.input_ids[self._with_vectors(batch)].tolist()
        names = iter(self.tokenizer.convert_ids_to_tokens(vectors))
        flat = ids.flatten().tolist()
        terms = iter(self.tokenizer.convert_ids_to_tokens([id for id in flat if id >= 0]))
        return [
            "[dense]" if id == DENSE else next(names, "") if id == TOKEN else f"={next(terms)}" for id in flat
        ]

    def _with_vectors(self, batch: Batch) -> Bool[Tensor, "x l"]:
        """Return which tokens have a vector: all but the first, [CLS], whatever the text itself says."""
        counts = batch.counts.clone()
        counts[:, : int(self.begins_specially)] = False
        return counts

    def _together(self, batch: Batch, side: Side) -> Tokens:
        hidden = self._hidden(batch, side)
        ids = batch.input_ids
        share = self.settings.weights
        dense = self._finish(pool(hidden, batch.attention_mask, self.settings.pooling))
        tokens = self._finish(self.token_projection(hidden))
        content = batch.counts & ~torch.isin(ids, self._no_term.to(ids.device))
        heavy = scores_of(self.term_projection, hidden).squeeze(-1).relu()
        terms, weights, term_mask = heaviest(ids, heavy, content)
        counts = self._with_vectors(batch)
        if side == "query":
            lengths = counts.sum(-1).clamp(min=1).to(tokens.dtype)[:, None, None]
            dense = dense * share["dense"]
            weights = weights * share["sparse"]
            tokens = tokens * (share["tokens"] / lengths)
        single = nn.functional.pad(weights[..., None], (0, tokens.shape[-1] - 1))
        named = [ids.new_full((len(ids), 1), DENSE), torch.full_like(ids, TOKEN), terms]
        mask = [batch.counts.any(-1, keepdim=True), counts, term_mask]
        parts = torch.cat([dense, tokens, single], 1), torch.cat(mask, 1), torch.cat(named, 1)
        padded = Tokens(*(t.unsqueeze(1 if side == "query" else 0) for t in parts))
        return _packed(padded, padded.mask)  # so that places do not depend on the other texts of a batch


def heaviest(
    ids: Int[Tensor, "x l"], weights: Float[Tensor, "x l"], counts: Bool[Tensor, "x l"]
) -> tuple[Int[Tensor, "x t"], Float[Tensor, "x t"], Bool[Tensor, "x t"]]:
    """Return each text's distinct ids, the largest weight per id, and a mask of ids with a weight above 0."""
    row, place = counts.nonzero(as_tuple=True)
    span = int(ids.amax()) + 1 if ids.numel() else 1
    keys, groups = (row * span + ids[row, place]).unique(return_inverse=True)
    largest = weights.new_zeros(len(keys)).scatter_reduce(0, groups, weights[row, place], "amax")
    row = keys // span
    sizes = torch.bincount(row, minlength=len(ids))
    place = torch.arange(len(keys), device=row.device) - (sizes.cumsum(0) - sizes)[row]
    shape = len(ids), max(1, int(sizes.max())) if len(sizes) else 1
    at = row, place
    heavy = weights.new_zeros(shape).index_put(at, largest)
    return ids.new_zeros(shape).index_put(at, keys % span), heavy, ~(heavy <= 0)  # NaN stays


def part_of(tokens: Tokens, part: Part) -> Tokens:
    """Return the tokens of one part, with ids: one vector, a vector per token, or terms with h = 1."""
    ids = tokens.ids
    assert ids is not None
    mask = {"dense": ids == DENSE, "tokens": ids == TOKEN, "sparse": ids >= 0}[part] & tokens.mask
    chosen = _packed(tokens, mask)
    return replace(chosen, vectors=chosen.vectors[..., :1]) if part == "sparse" else chosen


def _packed(tokens: Tokens, mask: Bool[Tensor, "x n l"]) -> Tokens:
    """Move the tokens that `mask` marks, in order, before all padding."""
    longest = max(1, int(mask.sum(-1).max())) if mask.numel() else 1
    at = mask.byte().argsort(dim=-1, descending=True, stable=True)[..., :longest]
    return replace(tokens, mask=mask).map(lambda t: t.take_along_dim(at if t.ndim == 3 else at[..., None], 2))


ENCODERS["bge_m3"] = BgeM3


@paradigm(BgeM3Settings)
def bge_m3(settings: BgeM3Settings) -> Recipe:
    """Build BGE-M3 over a backbone."""
    return Recipe("bge_m3", EqualIds(), "one", temperature=0.02)
